"""OpenAI's client for Node, and types that are generated from /openapi.json and used once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NODE = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs of clients/node and what they need."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("node")
    for file in NODE.iterdir():
        shutil.copy(file, folder)
    run("npm", "install", "--no-audit", "--no-fund", cwd=folder)
    return folder


def run(*command: str, cwd: Path) -> str:
    """Run a command, and return what it printed."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_openai_node(installed: Path, api_url: str) -> None:
    assert "done" in run("node", "openai.mjs", api_url, cwd=installed)


def test_a_typescript_client_is_generated_and_used(installed: Path, server_url: str) -> None:
    made = ("-o", "api.ts", "--default-non-nullable", "false")  # what has a default may be absent
    run("npx", "openapi-typescript", f"{server_url}/openapi.json", *made, cwd=installed)
    run("npx", "tsc", "--noEmit", "-p", ".", cwd=installed)

    assert "done" in run("npx", "tsx", "typed.ts", server_url, cwd=installed)
