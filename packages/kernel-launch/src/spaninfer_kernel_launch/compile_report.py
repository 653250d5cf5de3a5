"""Compiles every variant of every operator and prints the assembler's report on each kernel.

    python -m spaninfer_kernel_launch.compile_report PACKAGE ... [--arch ARCH]

An operator is a sub-package with a tuple VARIANTS. Needs no GPU. Kernels that spill registers or
keep arrays in memory are listed again at the end, as are variants that do not compile, and make the
program end with status 1. How many are done, and how long the rest will take, is on standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pkgutil import iter_modules
from time import monotonic
from typing import Final

from spaninfer_kernel_launch.compiler import compile_variant
from spaninfer_kernel_launch.cover import Case, every_case
from spaninfer_kernel_launch.errors import CompileError
from spaninfer_kernel_launch.variant import ARCHITECTURES, Variant

EVERY_S: Final = 5.0


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


class Clock:
    """Tells on standard error how far a survey has come: at once, and then every few seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began_s = monotonic()
        self._next_s = 0.0

    def tell(self, done: int) -> None:
        """Print a line if it is time for one."""
        spent_s = monotonic() - self._began_s
        if spent_s >= self._next_s:
            self._next_s = spent_s + EVERY_S
            print(progress(done, self._total, spent_s), file=sys.stderr, flush=True)


def progress(done: int, total: int, spent_s: float) -> str:
    """Return how many are done and how long the rest takes, if it goes on as it did.

    >>> progress(0, 1200, 0.0)
    '0 of 1,200 compilations'
    >>> progress(300, 1200, 100.0)
    '300 of 1,200 compilations, about 5 min 00 s left'
    """
    count = f"{done:,} of {total:,} compilations"
    if not done:
        return count
    minutes, seconds = divmod(round((total - done) * spent_s / done), 60)
    return f"{count}, about {minutes} min {seconds:02} s left"


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
    clock = Clock(len(cases))
    with ProcessPoolExecutor() as pool:
        for done, (lines, found) in enumerate(pool.map(describe, cases, chunksize=4)):
            clock.tell(done)
            defects += found
            print("\n".join(lines), flush=True)
    print(f"{len(cases)} compilations, {len(defects)} defects", *defects, sep="\n")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
