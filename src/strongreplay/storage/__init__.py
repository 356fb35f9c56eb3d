"""Storage: all writing to disk goes through `files`; reading verifies checksums and never executes code.

May import: errors, and metrics for `records`, which computes scores that old records lack.
`files`, `lock`, `checkpoints` and `records` never import torch; `state` and `objects` do.
Public: files.write_text, lock.locked, checkpoints.checkpoints, records.RunRecord, state.write_checkpoint.
"""
