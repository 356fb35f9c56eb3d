"""The entry point of `ser` and python -m strongreplay: runs the command, then exits without cleanup."""

import atexit
import os
import sys

from strongreplay.cli import main


def ser() -> None:
    code: object = 1  # the exit code of an uncaught exception

    def leave() -> None:
        # Registered first, so called last. os._exit skips the unloading of torch, which takes half a second.
        status = code if isinstance(code, int) else int(code is not None)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # closed pipe or full disk; the last write has already reported it
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
