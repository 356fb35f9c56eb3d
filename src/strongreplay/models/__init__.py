"""Models that `ser learn` keeps on disk: settings, net, memory, versions, and the gate for new versions.

May import: errors, protocol, data, memory, methods, nets, sampling, storage, training.
Public: learn.learn, model.Model, store.Store, gate.Verdict.
"""
