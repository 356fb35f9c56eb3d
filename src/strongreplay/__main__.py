"""The process of `ser`, or python -m strongreplay: runs the command and leaves at once."""

import atexit
import os
import sys
from contextlib import suppress

from strongreplay.cli import main


def ser() -> None:
    code: object = 1  # of a traceback

    def leave() -> None:
        # Registered first, so called last. What is left is to take torch down: half a second, for nobody.
        status = code if isinstance(code, int) else int(code is not None)
        try:
            sys.stdout.flush()
        except OSError as error:  # nobody reads any more, or the disk is full
            if not status and not isinstance(error, BrokenPipeError):
                sys.stderr.write(f"error: the output could not be written: {error.strerror}\n")
            status = status or 1
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(status)

    atexit.register(leave)
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
        raise


if __name__ == "__main__":
    ser()
