"""Download one published file: try mirrors in order, verify the checksum, write atomically."""

from pathlib import Path

from strongreplay.data.archives import CHUNK_SIZE, Archive, OnProgress, checksum_fault
from strongreplay.errors import DataError
from strongreplay.storage import files

TIMEOUT = 30.0  # seconds without data before the next mirror is tried


class _Bar:
    """A progress bar with pooch's interface that calls a callback."""

    def __init__(self, what: str, progress: OnProgress) -> None:
        self.what, self.progress = what, progress
        self.total = self.done = 0

    def update(self, step: int) -> None:
        self.done = min(self.done + step, self.total or self.done + step)
        self.progress(self.what, self.done, self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def download(archive: Archive, folder: Path, progress: OnProgress | None = None) -> Path:
    """Download the archive into the data folder from the first mirror with the right checksum."""
    target = folder / archive.path
    try:
        files.make_folder(target.parent)
    except OSError as error:
        raise DataError(
            f"{target.parent} cannot be written: {error.strerror}; make it writable or choose another folder"
        ) from error
    bar = _Bar(target.name, progress) if progress else False
    reasons = []
    for mirror in archive.mirrors:
        try:
            with files.replaced(target) as (new, file):
                _download_from(mirror, file, bar)
                if fault := checksum_fault(new, archive.checksum):
                    raise DataError(fault)
            return target
        except (OSError, ValueError) as error:  # from the network, the address or the checksum
            reasons.append(f"{mirror}: {_reason(error)}")
    raise DataError(
        f"{archive.path} could not be downloaded ({'; '.join(reasons)}); "
        f"try again later, or place the file by hand at {target} (checksum {archive.checksum})"
    )


def _download_from(mirror: str, file: files.Writer, bar: _Bar | bool) -> None:
    import pooch  # type: ignore[import-untyped]

    pooch.HTTPDownloader(bar, CHUNK_SIZE >> 4, timeout=TIMEOUT)(mirror, file, None)


def _reason(error: Exception) -> str:
    if isinstance(error, DataError):
        return str(error)
    if (response := getattr(error, "response", None)) is not None:
        return f"HTTP {response.status_code}"
    return getattr(error, "strerror", None) or type(error).__name__
