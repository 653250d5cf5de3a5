import subprocess
import sys
from pathlib import Path

import pytest
import spaninfer_serving
from spaninfer_serving import tools

README = Path(__file__).parents[1] / "README.md"


def test_what_is_offered_is_there_and_in_the_readme():
    said = README.read_text(encoding="utf-8")

    assert sorted(spaninfer_serving.__all__) == spaninfer_serving.__all__
    for name in spaninfer_serving.__all__:
        assert callable(getattr(spaninfer_serving, name))
        assert f"{name}(" in said
    with pytest.raises(AttributeError, match="'spaninfer_serving' has no attribute 'app_of'"):
        spaninfer_serving.app_of  # noqa: B018


def test_the_door_of_command_lines_is_opened_without_a_web_framework():
    program = (
        "import sys, spaninfer_serving.tools\n"
        "print(sorted({'fastapi', 'pydantic', 'starlette', 'uvicorn'} & {*sys.modules}))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert sorted(tools.__all__) == tools.__all__
    for name in tools.__all__:
        assert callable(getattr(tools, name))


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("process", {"fastapi", "uvicorn", "spaninfer_serving.wire.chat"}),
        (
            "api_server.program",
            {
                "spaninfer_engine.engine",
                "spaninfer_engine.backends",
                "spaninfer_engine.schedule.scheduler",
            },
        ),
    ],
)
def test_of_an_engine_and_its_api_servers_each_imports_its_own_part(module, spared):
    """The engine's process answers no HTTP, and API servers compute no step: a second of each."""
    program = (
        f"import sys, spaninfer_serving.{module}; print(sorted({spared!r} & {{*sys.modules}}))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("[]\n", "")
