"""Compiles every variant of every operator and prints what the assembler says of each kernel.

    python -m spaninfer_kernel_launch.survey PACKAGE ... [--arch ARCH]

An operator is a sub-package with a tuple VARIANTS. Needs no GPU. Kernels that spill registers or
keep arrays in memory are listed again at the end, as are variants that do not compile, and make the
program end with status 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pkgutil import iter_modules

from spaninfer_kernel_launch.compiler import compile_variant
from spaninfer_kernel_launch.cover import Case, every_case
from spaninfer_kernel_launch.errors import CompileError
from spaninfer_kernel_launch.variant import ARCHITECTURES, Variant


def variants_of(package: str) -> Iterator[Variant]:
    """Yield the variants of every operator of an importable package."""
    found = import_module(package)
    for module in iter_modules(found.__path__):
        if module.ispkg:
            yield from getattr(import_module(f"{package}.{module.name}"), "VARIANTS", ())


def describe(case: Case) -> tuple[list[str], list[str]]:
    """Return a line per kernel of a compiled case, and those of them that tell of a defect."""
    variant, arch = case
    try:
        reports = compile_variant(variant, arch).reports
    except CompileError as refused:
        line = f"{arch:8} {variant}: {refused}"
        return [line], [line]
    lines, defects = [], []
    for entry, report in reports.items():
        line = (
            f"{arch:8} {report.registers:3} registers, {report.spill_bytes} bytes spilled, "
            f"{report.stack_bytes} stack, {report.shared_bytes} shared: {entry} of {variant}"
        )
        lines.append(line)
        if report.spill_bytes or report.stack_bytes:
            defects.append(line)
    return lines, defects


def main(arguments: Sequence[str]) -> int:
    """Print the survey; return 1 where something spills or does not compile, else 0."""
    parser = argparse.ArgumentParser(prog="survey", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="+", metavar="PACKAGE")
    parser.add_argument("--arch", choices=ARCHITECTURES, help="one architecture instead of all")
    asked = parser.parse_args(arguments)
    cases = [
        case
        for package in asked.packages
        for case in every_case(variants_of(package))
        if asked.arch in (None, case[1])
    ]
    defects: list[str] = []
    with ProcessPoolExecutor() as pool:
        for lines, found in pool.map(describe, cases, chunksize=4):
            defects += found
            print("\n".join(lines), flush=True)
    print(f"{len(cases)} compilations, {len(defects)} defects", *defects, sep="\n")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
