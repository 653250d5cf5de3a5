"""python -m spaninfer, and the command of that name."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a word, also in the second of its imports."""
    try:
        from spaninfer.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
