"""The process of `ser`, or python -m strongreplay: runs the command and leaves at once."""

import atexit
import os
import sys

from strongreplay.cli import main


def ser() -> None:
    code: object = 1  # of a traceback

    def leave() -> None:
        # Registered first, so called last. What is left is to take torch down: half a second, for nobody.
        status = code if isinstance(code, int) else int(code is not None)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # nobody reads any more, or the disk is full: told by whoever wrote last
                status = status or 1
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
