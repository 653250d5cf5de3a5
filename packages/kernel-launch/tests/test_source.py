"""Files joined into one translation unit."""

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
    assert lines[kernel + 1].startswith("// Sums over the threads")
