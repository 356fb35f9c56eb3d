"""Models: what `ser learn` keeps on disk: settings, net, memory, versions, and the gate before a new version.

May import: errors, protocol, data, memory, methods, nets, runs, storage, training.
Public: learn.learn, model.Model, store.Store, gate.Verdict.
"""
