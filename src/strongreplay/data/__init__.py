"""Data: published datasets, a user's own images and tables, whole-batch views, and streams of tasks.

May import: errors, protocol, extensions, storage.
Public: streams.STREAMS, streams.build_stream, streams.split_by_class, user_data.read_chunk, views.
"""
