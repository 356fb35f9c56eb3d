"""Storage: what is written to disk and read back: checkpoints, records, locks. Reading executes nothing.

May import: errors. `records` never imports torch.
Public: records.RunRecord, records.read_record, state.write_checkpoint, state.read_newest, lock.locked.
"""
