"""Classification of JSON prefixes in the playground; run by Node.js, where there is one."""

import json

import pytest
from page_modules import needs_node, page_function

pytestmark = needs_node
VALUE = {
    "a": [1, -2.5, 3e-7, True, False, None, {}, []],
    'q"\\\n': {"b é": "x\u2028😀", "": [[["deep"]]]},
}


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """What says of texts whether they are JSON, begin it, or neither, in one process."""
    return page_function(tmp_path_factory.mktemp("page"), "json_state", "jsonState")


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_every_beginning_of_json_is_one_and_the_whole_is_valid(states, indent, ascii_only):
    whole = json.dumps(VALUE, indent=indent, ensure_ascii=ascii_only)

    *begun, last = states(*(whole[:end] for end in range(len(whole) + 1)))

    assert set(begun) == {"begun"}
    assert last == "valid"


def test_what_can_never_become_json_is_told(states):
    broken = ["{a", "[1 2", '{"a" 1', "}", "[]]", '{"a":1}x', "tru3", '"\\x', "Sure: {", "[1,}"]

    assert set(states(*broken)) == {"broken"}
