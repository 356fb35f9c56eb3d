"""Runs: a method on a stream with a seed, single, in a sweep or in a grid; configuration, recipe and record.

May import: errors, protocol, data, methods, metrics, nets, storage, training.
Public: config.RunConfig, config.resolve, sweep.Sweep, run.run, grid.Grid.
`recipes` and `paper` never import torch.
"""
