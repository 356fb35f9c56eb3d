"""The end of a run: write its record. If that fails, keep the results and report where they are."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from strongreplay.errors import RunError
from strongreplay.storage import files
from strongreplay.storage.records import RunRecord, record_path, write_record


def save_record(record: RunRecord, out: Path, keep_state: Callable[[], object]) -> None:
    """Write the record of a finished run; if that fails, the results are kept elsewhere."""
    path = record_path(out, record.config)
    try:
        write_record(out, record)
    except OSError as error:
        raise RunError(
            f"{path}: the record of the finished run cannot be written ({error.strerror or error}); "
            f"{keep_elsewhere(record, path, keep_state)}"
        ) from None


def keep_elsewhere(record: RunRecord, path: Path, keep_state: Callable[[], object]) -> str:
    """Write the state beside the record or, if the disk is full, the record to the temporary folder."""
    try:
        keep_state()
        return f"its state is kept in {path.with_suffix('.state')}: fix that and repeat the command"
    except (OSError, RunError):
        spare = Path(tempfile.gettempdir()) / f"{path.parent.name}-{path.name}"
    try:
        files.write_text(spare, record.to_json())
    except OSError as error:
        return f"nor can its state, nor {spare} ({error.strerror or error}): make room and repeat the command"
    return f"nor can its state, so the record is kept as {spare}: make room and move it to its place"
