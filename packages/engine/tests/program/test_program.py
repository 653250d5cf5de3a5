from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.program.program import Program, gathered_early, without_media


def test_steps_without_media_skip_what_only_media_needs():
    program = Program(
        (
            Operation("embed", (), ("x.0",)),
            Operation("replace_rows", ("x.0",), ("x.1",)),
            Operation("add_rows", ("x.1",), ("x.2",), constants=(("layer", 0),)),
            Operation("gather_rows", ("x.2",), ("rows",)),
        ),
        "rows",
        (),
        (),
    )

    short = without_media(program)

    assert [str(operation) for operation in short.operations] == [
        "x.0 = embed()",
        "rows = gather_rows(x.0)",
    ]


def test_a_result_that_media_would_have_changed_is_what_goes_into_the_change():
    operations = (Operation("embed", (), ("x",)), Operation("add_rows", ("x",), ("y",)))

    assert without_media(Program(operations, "y", (), ())).result == "x"


def test_a_program_prints_an_operation_per_line():
    operations = (Operation("scale", ("x",), ("y",), constants=(("factor", 2.0),)),)

    assert str(Program(operations, "y", (), ())) == "y = scale(x, factor=2.0)"


def _lines(program: Program) -> list[str]:
    return [str(operation) for operation in program.operations]


def _program(*lines: str, result: str) -> Program:
    """Return the program of lines "outputs = operator inputs"."""
    operations = []
    for line in lines:
        outputs, _, right = line.partition("=")
        operator, *inputs = right.split()
        operations.append(Operation(operator, tuple(inputs), tuple(outputs.split())))
    return Program(tuple(operations), result, (), ())


def test_what_follows_the_last_attention_is_computed_at_logit_positions_alone():
    program = _program(
        "x = embed",
        "n = rms_norm x",
        "o = attend n",
        "a = linear o",
        "y = add x a",
        "m = activation y",
        "z = add y m",
        "rows = gather_rows z",
        "logits = linear rows",
        result="logits",
    )

    assert _lines(gathered_early(program)) == [
        "x = embed()",
        "n = rms_norm(x)",
        "o = attend(n)",
        "o.gathered = gather_rows(o)",
        "x.gathered = gather_rows(x)",
        "a = linear(o.gathered)",
        "y = add(x.gathered, a)",
        "m = activation(y)",
        "z = add(y, m)",
        "logits = linear(z)",
    ]


def test_what_attention_reads_as_well_is_computed_of_all_rows():
    """In a parallel layer one norm feeds both, and its MLP may come first."""
    program = _program(
        "x = embed",
        "n = rms_norm x",
        "m = activation n",
        "k = linear n",
        " = append k",
        "o = attend k",
        "b = add o m",
        "rows = gather_rows b",
        result="rows",
    )

    short = gathered_early(program)

    assert _lines(short)[3:] == [
        "append(k)",
        "o = attend(k)",
        "n.gathered = gather_rows(n)",
        "o.gathered = gather_rows(o)",
        "m = activation(n.gathered)",
        "b = add(o.gathered, m)",
    ]
    assert short.result == "b"


def test_rows_are_taken_behind_what_reads_the_step():
    """Media are added to rows of the whole step."""
    program = _program(
        "x = embed", "y = scale x", "z = add_rows y", "rows = gather_rows z", result="rows"
    )

    short = gathered_early(program)

    assert _lines(short)[2:] == ["z = add_rows(y)", "z.gathered = gather_rows(z)"]
    assert short.result == "z.gathered"


def test_a_program_that_takes_no_rows_stays_as_it_is():
    program = _program("x = embed", "y = scale x", result="y")

    assert gathered_early(program) == program
