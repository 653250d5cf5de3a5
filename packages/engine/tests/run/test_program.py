from spaninfer_engine.ops.operation import Operation
from spaninfer_engine.run.program import Program, without_media


def test_steps_without_media_skip_what_only_media_needs():
    program = Program(
        (
            Operation("embed", (), ("x.0",)),
            Operation("replace_rows", ("x.0",), ("x.1",)),
            Operation("add_rows", ("x.1",), ("x.2",), constants=(("layer", 0),)),
            Operation("take_rows", ("x.2",), ("rows",)),
        ),
        "rows",
        (),
        (),
    )

    short = without_media(program)

    assert [str(operation) for operation in short.operations] == [
        "x.0 = embed()",
        "rows = take_rows(x.0)",
    ]


def test_a_result_that_media_would_have_changed_is_what_goes_into_the_change():
    operations = (Operation("embed", (), ("x",)), Operation("add_rows", ("x",), ("y",)))

    assert without_media(Program(operations, "y", (), ())).result == "x"


def test_a_program_prints_an_operation_per_line():
    operations = (Operation("scale", ("x",), ("y",), constants=(("factor", 2.0),)),)

    assert str(Program(operations, "y", (), ())) == "y = scale(x, factor=2.0)"
