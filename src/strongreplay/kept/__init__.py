"""A model that is kept up to date: what it is, how it learns a chunk, its versions on disk."""
