"""Code in a model's folder: never run, never fetched, whatever its files name.

As CVE-2025-66448, CVE-2026-22807, CVE-2026-27893 (auto_map) and CVE-2026-4372 (a kernel named in
the config): in processes of their own, so that each library is asked anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from random_llama import write_model

CLASSES = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer", "AutoProcessor",
           "AutoImageProcessor", "AutoFeatureExtractor", "AutoVideoProcessor")  # fmt: skip
MODULES = ("modeling_trap", "configuration_trap", "tokenization_trap", "processing_trap",
           "generate", "__init__", "kernel")  # fmt: skip
CONFIGS = ("config", "tokenizer_config", "generation_config", "preprocessor_config",
           "processor_config", "video_preprocessor_config", "adapter_config")  # fmt: skip

OPEN = """
import sys
from spaninfer_engine import Engine, EngineError
try:
    with Engine(sys.argv[1], backend="reference", memory="4MiB") as engine:
        engine.generate("a", max_tokens=2)
        if engine.tokenizer.eos_ids is not None:
            print("opened")
except EngineError as refused:
    print("refused", refused)
"""


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """What a hub on loopback is asked for, which stands where the libraries look for one."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        paths.append(f"http://127.0.0.1:{server.server_address[1]}")
        yield paths
        server.shutdown()


def trapped(folder: Path) -> Path:
    """Write a model whose files name code, beside that code: each file of it leaves a trace."""
    write_model(folder, 1, np.float32)
    trap = f"open({str(folder.parent / 'trace')!r}, 'a').write(__name__)\n"
    code = "\n".join(f"class Trap{number}(object): pass" for number in range(len(CLASSES)))
    for place in (folder, folder / "custom_generate"):
        place.mkdir(exist_ok=True)
        for name in MODULES:
            (place / f"{name}.py").write_text(trap + code)
    named = {
        "auto_map": {
            each: f"{MODULES[number % 4]}.Trap{number}" for number, each in enumerate(CLASSES)
        },
        "custom_pipelines": {"text-generation": {"impl": "modeling_trap.Trap0"}},
        "_attn_implementation_internal": "org/kernel",
        "_attn_implementation": "org/kernel",
        "_experts_implementation_internal": "org/kernel",
        "trust_remote_code": True,
    }
    for name in CONFIGS:
        path = folder / f"{name}.json"
        own = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps(own | named))
    return folder


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def known(folder: Path) -> None:
    """A family that is read here."""


def unknown_model(folder: Path) -> None:
    change(folder / "config.json", model_type="trap", architectures=["Trap0"])


def unknown_tokenizer(folder: Path) -> None:
    """No tokenizer file that is read here: transformers is asked."""
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("a\n[UNK]\n")
    change(folder / "tokenizer_config.json", tokenizer_class="Trap3")


def unknown_both(folder: Path) -> None:
    unknown_model(folder)
    unknown_tokenizer(folder)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (known, "opened"),
        (unknown_tokenizer, "transformers does not know it either"),
        pytest.param(unknown_model, "refused", marks=pytest.mark.slow),
        pytest.param(unknown_both, "refused", marks=pytest.mark.slow),
    ],
)
def test_no_code_of_a_folder_leaves_its_trace(
    kind: Callable[[Path], None], says: str, asked: list[str], tmp_path: Path
) -> None:
    if kind is unknown_tokenizer:
        pytest.importorskip("transformers", reason="is asked for tokenizers that are not read here")
    folder = trapped(tmp_path / "model")
    kind(folder)
    hub = asked.pop()
    env = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home")}
    env |= {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}

    ran = subprocess.run(
        [sys.executable, "-c", OPEN, str(folder)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    assert says in ran.stdout
    assert not (tmp_path / "trace").exists(), (tmp_path / "trace").read_text()
    assert asked == []


def test_the_code_would_leave_its_trace(tmp_path: Path) -> None:
    folder = trapped(tmp_path / "model")

    subprocess.run([sys.executable, "-c", "import modeling_trap"], cwd=folder, check=True)

    assert (tmp_path / "trace").read_text().endswith("modeling_trap")
