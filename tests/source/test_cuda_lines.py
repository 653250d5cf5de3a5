"""Line lengths of CUDA sources, as .clang-format sets them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS = 100
SOURCES = sorted(
    path for pattern in ("*/src/**/*.cu*", "packages/*/src/**/*.cu*") for path in ROOT.glob(pattern)
)


def test_the_sources_of_both_kernel_packages_are_found():
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} >= {
        "kernels-cuda",
        "span-attention",
        "packages",
    }


def test_no_line_of_cuda_is_longer_than_the_style_says():
    assert f"ColumnLimit: {COLUMNS}" in (ROOT / ".clang-format").read_text(encoding="utf-8")

    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]

    assert long == []
