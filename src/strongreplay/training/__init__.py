"""Training: the loops over batches and epochs, and the trainer that a run and an update of a kept model share.

May import: errors, extensions, protocol, data, memory, methods, metrics, nets, storage.
Public: trainer.Trainer, events.Listener, engine.train_task, engine.evaluate, settings, optimizers, rates,
checkpoints, devices.find_device.
"""
