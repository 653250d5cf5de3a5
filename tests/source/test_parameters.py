"""Parameter counts of functions: at most six, except where others set the signature.

Operators name every operand and option, as torch's and FlashInfer's do (`attend`, `moe`, `launch`,
`prepare`); commands have an option per parameter, or per field of a group; Numba calls intrinsics.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 6

OPERATOR_PACKAGES = {"kernels-cpu", "kernels-cuda", "span-attention", "op-reference"}
OPERATORS = {"delta_rule", "norm_rows"}
"""Those of the engine's backends."""
COMMANDS, CALLED_BY_NUMBA = {"command"}, {"intrinsic", "entry"}

DOCUMENTED = {"conversion.convert"}
"""Functions that guides show with an option per parameter."""


def long_ones(path: Path, source: str) -> Iterator[str]:
    """Yield the functions of a source file that have more parameters, by file and name."""
    module = path.parent.name if path.name == "__init__.py" else path.stem
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = node.args
        names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        if len([name for name in names if name not in ("self", "cls")]) <= MOST:
            continue
        if not is_operator(path, node.name) and decorators(node).isdisjoint(
            COMMANDS | CALLED_BY_NUMBA
        ):
            yield f"{module}.{node.name}"


def is_operator(path: Path, name: str) -> bool:
    """Return True for public functions of kernel packages, and operators of the engine's table."""
    return name in OPERATORS or (
        not name.startswith("_") and not OPERATOR_PACKAGES.isdisjoint(path.parts)
    )


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of a function's decorators, called or not."""
    found = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return {each.attr if isinstance(each, ast.Attribute) else ast.unparse(each) for each in found}


SEVEN = "(a, b, c, d, e, f, g): pass"


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("packages/engine/src/x/y.py", f"def f{SEVEN}", ["y.f"]),
        ("packages/engine/src/x/__init__.py", f"class A:\n  def f{SEVEN}", ["x.f"]),
        ("packages/engine/src/x/y.py", "def f(self, a, b, c, d, *, e, f): pass", []),
        ("packages/engine/src/x/y.py", f"async def f{SEVEN}", ["y.f"]),
        ("packages/engine/src/x/y.py", f"def delta_rule{SEVEN}", []),
        ("packages/spaninfer/src/x/y.py", f"@app.command('x')\n@spread\ndef f{SEVEN}", []),
        ("kernels-cuda/src/x/y.py", f"def prepare{SEVEN}", []),
        ("kernels-cuda/src/x/y.py", f"def _checked{SEVEN}", ["y._checked"]),
        ("kernels-cpu/src/x/y.py", f"@intrinsic\ndef _add{SEVEN}", []),
    ],
)
def test_only_signatures_of_others_may_be_longer(path, source, found):
    assert list(long_ones(Path(path), source)) == found


def test_no_more_functions_are_longer():
    sources = [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("*/src/**/*.py")]

    found = {
        name
        for path in sources
        for name in long_ones(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    }

    assert found == DOCUMENTED, "group parameters that belong together"
