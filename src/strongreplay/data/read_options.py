"""What a user allows when files are read, and the files that could not be."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from strongreplay.errors import DataError

MOST_NAMED = 50  # files in one message


def ignore(text: str) -> None:
    """Ignore the message."""


class OutsideFolderError(DataError):
    """A file that is not where it may be; it is never skipped as a bad one."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Files outside of the folder are refused and bad ones stop the reading, unless the user allows it."""

    allow_outside: bool = False
    skip_bad: bool = False
    tell: Callable[[str], None] = ignore  # gets notes: columns that are ignored, files that were skipped
    are_offered: bool = True  # to the user, as --skip-bad and --allow-outside, so that errors may name them


STRICT = ReadOptions(are_offered=False)


@dataclass(slots=True)
class Faults:
    """Collects what is wrong with single files, so that all of them are named at once."""

    source: object
    options: ReadOptions
    texts: list[str] = field(default_factory=list)

    @contextmanager
    def collected(self) -> Iterator[None]:
        try:
            yield
        except OutsideFolderError:
            raise
        except DataError as error:
            self.texts.append(str(error))

    def settle(self, num_good: int) -> None:
        """Raise an error with all faults, or report them if they may be skipped and something is left."""
        if not self.texts:
            return
        count, named = len(self.texts), "\n".join(f"  {text}" for text in self.texts[:MOST_NAMED])
        more = f"\n  and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
        if self.options.skip_bad and num_good:
            self.options.tell(f"{self.source}: {count} of {count + num_good} files skipped:\n{named}{more}")
        elif count == 1:
            raise DataError(self.texts[0])
        else:
            remedy = ", or go on without them: --skip-bad" if self.options.are_offered else ""
            raise DataError(
                f"{self.source}: {count} files cannot be read:\n{named}{more}\n"
                f"replace them or take them out{remedy}"
            )
        self.texts.clear()
