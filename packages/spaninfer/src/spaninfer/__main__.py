"""python -m spaninfer, and the command of that name."""

import sys

from spaninfer.ctrl_c import end_program


def main() -> None:
    """Run the command line. Ctrl-C ends it without a word, wherever it is.

    What serves is a process below this one, which starts another one after a crash.
    """
    end_program()
    if sys.argv[1:2] == ["serve"] and sys.platform != "win32":
        from spaninfer_serving import supervise  # imports little itself

        # -P: the folder that it is started in may be a model's, and code in there is nobody's.
        program = [sys.executable, "-P", "-m", "spaninfer.engine_process"]
        sys.exit(supervise(lambda control: [*program, control, *sys.argv[1:]]))
    from spaninfer.process import run

    run(sys.argv[1:])


if __name__ == "__main__":
    main()
