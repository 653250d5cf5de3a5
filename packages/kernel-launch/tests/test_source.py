"""Files joined into one translation unit."""

from dataclasses import replace

from spaninfer_kernel_launch import Source


def test_headers_come_first_then_macros_and_every_file_announces_itself():
    source = Source("spaninfer_kernel_launch", "csrc/reduce.cuh", headers=("math.cuh",))

    lines = source.text([("T", "half")]).splitlines()

    header, macros, kernel = (i for i, line in enumerate(lines) if line.startswith("#line"))
    assert lines[header] == '#line 1 "spaninfer_kernel_launch/csrc/math.cuh"'
    assert lines[macros : kernel + 1] == [
        '#line 1 "macros"',
        "#define T half",
        '#line 1 "spaninfer_kernel_launch/csrc/reduce.cuh"',
    ]
    assert lines[kernel + 1].startswith("// Sums and extremes")


def test_headers_of_the_package_itself_come_second(source_of, tmp_path):
    made = source_of("// the kernel")
    own = tmp_path / made.package / "csrc"
    own.mkdir()
    (own / "own.cuh").write_text("// ours")
    source = replace(made, headers=("math.cuh",), own=("own.cuh",))

    lines = source.text([]).splitlines()

    assert [line for line in lines if line.startswith("#line")] == [
        '#line 1 "spaninfer_kernel_launch/csrc/math.cuh"',
        f'#line 1 "{made.package}/csrc/own.cuh"',
        '#line 1 "macros"',
        f'#line 1 "{made.package}/kernel.cu"',
    ]


def test_parts_of_a_kernel_stand_between_the_macros_and_its_file(source_of, tmp_path):
    made = source_of("// the kernel")
    (tmp_path / made.package / "part.cuh").write_text("// a part")
    source = replace(made, parts=("part.cuh",))

    lines = source.text([("T", "half")]).splitlines()

    assert [line for line in lines if line.startswith("#line")] == [
        '#line 1 "macros"',
        f'#line 1 "{made.package}/part.cuh"',
        f'#line 1 "{made.package}/kernel.cu"',
    ]
