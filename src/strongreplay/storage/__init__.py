"""Storage: everything that is written to disk goes through `files`; reading checks sums and executes nothing.

May import: errors. `files`, `lock`, `checkpoints` and `records` never import torch; `state` and `objects` do.
Public: files.write_text, lock.locked, checkpoints.checkpoints, records.RunRecord, state.write_checkpoint.
"""
