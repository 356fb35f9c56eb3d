"""python -m strongreplay: the same as ser."""

from strongreplay.cli import main

if __name__ == "__main__":
    main()
