"""Runs: a method on a stream with a seed, single or in a grid; configuration, recipe and record.

May import: errors, protocol, data, methods, metrics, nets, storage, training.
Public: config.RunConfig, config.resolve, run.run, grid.Grid. `recipes` and `paper` never import torch.
"""
