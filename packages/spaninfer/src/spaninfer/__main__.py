"""python -m spaninfer, and the command of that name."""

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line. Ctrl-C ends it without a word, also in the second of its imports."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # models write what code pages of Windows lack
            stream.reconfigure(errors="replace")
    try:
        from spaninfer.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
