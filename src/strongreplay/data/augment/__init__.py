"""Augmentation of whole batches of raw images, for methods that need their own."""
