"""python -m spaninfer.bench: the benchmarks alone; the server need not be installed for them."""

from spaninfer.ctrl_c import end_program, interrupt_program

if __name__ == "__main__":
    end_program()
    from spaninfer.bench.commands import app

    interrupt_program()
    app()
