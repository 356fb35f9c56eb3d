"""Training: the loops over batches and epochs, and the trainer used by runs and by updates of kept models.

May import: errors, extensions, protocol, data, memory, methods, metrics, nets, storage.
Public: trainer.Trainer, events.Listener, engine.train_task, engine.evaluate, settings, optimizers, rates,
checkpoints, devices.find_device.
"""
