"""The public names of the package."""

from types import ModuleType

import span_attention


def test_everything_visible_is_promised():
    visible = {
        name
        for name, value in vars(span_attention).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert visible <= set(span_attention.__all__)
    assert all(hasattr(span_attention, name) for name in span_attention.__all__)
