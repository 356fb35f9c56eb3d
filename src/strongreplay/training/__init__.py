"""Training: the loops over batches and epochs, learning rates, devices, and what a training step costs.

May import: errors, protocol, data, memory, methods, metrics, nets, storage.
Public: engine.train_task, engine.evaluate, rates, devices.find_device.
"""
