"""Beginnings of JSON as the playground tells them apart; run by Node.js, where there is one."""

import json
import shutil
import subprocess
from importlib.resources import files

import pytest

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js to run the page's module in")

PROGRAM = """
import { jsonState } from %s;
const texts = JSON.parse(await new Response(process.stdin).text());
process.stdout.write(JSON.stringify(texts.map(jsonState)));
"""
VALUE = {
    "a": [1, -2.5, 3e-7, True, False, None, {}, []],
    'q"\\\n': {"b é": "x\u2028😀", "": [[["deep"]]]},
}


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """What says of texts whether they are JSON, begin it, or neither, in one process."""
    module = tmp_path_factory.mktemp("page") / "json_state.mjs"
    module.write_text((files("spaninfer_serving") / "page" / "json_state.js").read_text())

    def run(*texts):
        result = subprocess.run(
            [NODE, "--input-type=module", "-e", PROGRAM % json.dumps(module.as_uri())],
            input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return json.loads(result.stdout)

    return run


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
