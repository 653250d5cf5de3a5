"""The public names of the package."""

import subprocess
import sys
from types import ModuleType

import spaninfer_op_reference as definition


def test_everything_visible_is_promised():
    visible = {
        name
        for name, value in vars(definition).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert visible == set(definition.__all__)


def test_importing_it_imports_numpy_and_nothing_else_that_is_not_pythons_own():
    program = "import numpy, sys; before = set(sys.modules); import spaninfer_op_reference; "
    program += "print(*{name.split('.')[0] for name in set(sys.modules) - before})"

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    others = set(result.stdout.split()) - set(sys.stdlib_module_names)
    assert others <= {"spaninfer_op_reference", "numpy"}
