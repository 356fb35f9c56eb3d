"""Changes to whole batches of raw images that some methods bring along; one file a family."""
