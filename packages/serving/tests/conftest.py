"""A server in this process around an engine with a tiny random model."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import openai
import pytest
import uvicorn.config
from fastapi.testclient import TestClient
from spaninfer_engine import Engine, SamplingParams
from spaninfer_engine.core.stats import EngineStats
from spaninfer_serving import Settings, bind, create_app
from spaninfer_serving.http.protocol import BoundedProtocol
from spaninfer_serving.server import Server
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

# Helpers of several test files are modules of the folder fixtures/, imported by their bare names.
sys.path.append(str(Path(__file__).parent / "fixtures"))

HIDDEN, FFN, HEADS, HEAD, LAYERS, CONTEXT = 16, 32, 2, 8, 2, 256
CONTROLS = ("<|end|>", "<|turn|>")
TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}:{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant:{% endif %}"
)


TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|turn|>{{ m.role }}:"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>"
    "{{ call.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant:"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
    "{# </think> #}"
)
TOOL_MARKS = ("<tool_call>", "</tool_call>", "<think>")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder as Hugging Face lays it out; its tokens are bytes and two control tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    vocab = _write_tokenizer(folder)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": FFN, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "head_dim": HEAD, "num_hidden_layers": LAYERS,
        "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "vocab_size": vocab, "eos_token_id": vocab - 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder / "model.safetensors", vocab)
    return folder


def _write_tokenizer(folder: Path) -> int:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(list(CONTROLS))
    library.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": CONTROLS[0], "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(letters) + len(CONTROLS)


def _write_weights(path: Path, vocab: int) -> None:
    shapes = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        place = f"model.layers.{layer}"
        shapes |= {f"{place}.self_attn.{x}_proj.weight": (HIDDEN, HIDDEN) for x in "qkvo"}
        shapes |= {f"{place}.mlp.{x}_proj.weight": (FFN, HIDDEN) for x in ("gate", "up")}
        shapes |= {f"{place}.mlp.down_proj.weight": (HIDDEN, FFN)}
        shapes |= {f"{place}.{x}_layernorm.weight": (HIDDEN,) for x in ("input", "post_attention")}
    generator, header, data = np.random.default_rng(0), {}, b""
    for name, shape in shapes.items():
        values = generator.normal(size=shape).astype("<f4").tobytes()
        offsets = [len(data), len(data) + len(values)]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        data += values
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data)


@pytest.fixture(scope="module")  # not longer: one that is open changes the garbage collector
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(folder, backend="reference", memory=1 << 22, span_len=16) as engine:
        yield engine


@pytest.fixture
def at_rest(engine: Engine) -> Callable[[], EngineStats]:
    """What waits until the engine has nothing to do and holds no span, and returns its numbers."""

    def wait() -> EngineStats:
        give_up_s = monotonic() + 120
        while (stats := engine.stats()).running or stats.waiting or stats.span_usage:
            assert monotonic() < give_up_s, "it never was"
            sleep(0.001)
        return stats

    return wait


@pytest.fixture
def serving(engine: Engine) -> Callable[..., TestClient]:
    """What makes a client of a server with settings."""

    def make(**settings: object) -> TestClient:
        app = create_app(engine, Settings(**settings))
        return TestClient(app, raise_server_exceptions=False)

    return make


@dataclass
class Live:
    """A server in a thread of this process, with real sockets."""

    server: Server
    address: tuple[str, int]

    @property
    def connections(self) -> list[BoundedProtocol]:
        """The connections that have entered, as the server sees them."""
        return list(self.server.server_state.connections)

    @property
    def num_connections(self) -> int:
        """How many connections were taken, those that have not entered included."""
        return sum(each.num_connections for each in self.server.acceptors)


def _start(running: ExitStack, engine: Engine, **settings: Any) -> Live:
    """Start a server that stops when `running` is closed."""
    asked = Settings(port=0, drain_s=0, **settings)
    listener, started = bind(asked), Event()
    listener.listen()
    server = Server(engine, asked, started.set)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    running.callback(thread.join, 120)
    running.callback(setattr, server, "should_exit", True)
    assert started.wait(120)
    return Live(server, listener.getsockname())


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)])
def each_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Servers run in each event loop that they may find installed, one after the other."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop", reason="the extra 'fast' is not installed")
    factories = uvicorn.config.LOOP_FACTORIES
    monkeypatch.setitem(factories, "auto", factories[request.param])
    return request.param


@pytest.fixture
def live(engine: Engine) -> Iterator[Callable[..., Live]]:
    """What starts a server with settings on a free port."""
    with ExitStack() as running:

        def start(engine: Engine = engine, **settings: Any) -> Live:
            return _start(running, engine, **settings)

        yield start


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread makes true."""
    give_up_s = monotonic() + 120
    while not condition():
        assert monotonic() < give_up_s, "it never came true"
        sleep(0.002)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """What waits for a condition."""
    return wait_until


@pytest.fixture
def frozen() -> Callable[[Engine, int], AbstractContextManager[None]]:
    """What freezes an engine while requests run: none of them ends meanwhile."""

    @contextmanager
    def freeze(engine: Engine, num_running: int = 1) -> Iterator[None]:
        before = engine.stats().generated_tokens
        wait_until(lambda: engine.stats().running == num_running)
        wait_until(lambda: engine.stats().generated_tokens > before)
        engine.freeze()
        try:
            yield
        finally:
            engine.thaw()

    return freeze


@pytest.fixture
def client(serving: Callable[..., TestClient]) -> TestClient:
    return serving()


@pytest.fixture(scope="session")
def long_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with a context of 4096 tokens."""
    copy = tmp_path_factory.mktemp("long") / "tiny"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return copy


@pytest.fixture(scope="module")
def long_engine(long_folder: Path) -> Iterator[Engine]:
    with Engine(long_folder, backend="reference", memory=1 << 23, span_len=16) as engine:
        yield engine


@pytest.fixture(scope="module")
def seeing_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A small Qwen2-VL with random weights: a token for 28 x 28 pixels."""
    from seeing_folder import save_seeing

    folder = save_seeing(tmp_path_factory.mktemp("seeing"))
    options = {
        "served_name": "seeing",
        "weights": "dummy",
        "memory": "8MiB",
        "max_len": 1024,
        "max_running": 8,
    }
    with Engine(folder, backend="reference", **options) as engine:  # type: ignore[arg-type]
        yield engine


@pytest.fixture
def connect(live: Callable[..., Any], seeing_engine: Engine) -> Callable[..., openai.OpenAI]:
    """What starts a server with settings, and gives a client of it."""

    def start(engine: Engine = seeing_engine, **settings: Any) -> openai.OpenAI:
        host, port = live(engine, **settings).address
        return openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)

    return start


@pytest.fixture
def listening(live: Callable[..., Live]) -> Callable[..., AbstractContextManager[tuple[str, int]]]:
    """What serves an engine with settings inside of a block, and gives the address."""

    @contextmanager
    def serve(engine: Engine, **settings: object) -> Iterator[tuple[str, int]]:
        running = live(engine, **settings)
        try:
            yield running.address
        finally:
            running.server.should_exit = True

    return serve


@pytest.fixture(scope="module")
def tool_folder(long_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a template that has tools, whose marks are control tokens."""
    folder = tmp_path_factory.mktemp("tools") / "tiny"
    shutil.copytree(long_folder, folder)
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    library.add_special_tokens(list(TOOL_MARKS))
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": TOOL_TEMPLATE})
    )
    _widen(folder / "config.json", folder / "model.safetensors", len(TOOL_MARKS))
    return folder


def _widen(config_path: Path, weights_path: Path, num_more: int) -> None:
    """Give the model's embedding a row for each new token."""
    config = json.loads(config_path.read_text())
    data = weights_path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    rows, width = header["model.embed_tokens.weight"]["shape"]
    tensors = {name: body[slice(*each["data_offsets"])] for name, each in header.items()}
    tensors["model.embed_tokens.weight"] += np.zeros((num_more, width), "<f4").tobytes()
    header["model.embed_tokens.weight"]["shape"] = [rows + num_more, width]
    at = 0
    for name, raw in tensors.items():
        header[name]["data_offsets"] = [at, at := at + len(raw)]
    head = json.dumps(header).encode()
    weights_path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(tensors.values()))
    config_path.write_text(json.dumps(config | {"vocab_size": rows + num_more}))


@pytest.fixture(scope="module")
def tool_engine(tool_folder: Path) -> Iterator[Engine]:
    with Engine(tool_folder, backend="reference", memory=1 << 23, span_len=16) as engine:
        yield engine


@pytest.fixture(scope="module")
def tool_servers(tool_engine: Engine) -> Iterator[Callable[..., Live]]:
    """What gives a server of the engine with tools: one for all tests with the same settings."""
    known: dict[str, Live] = {}
    with ExitStack() as running:

        def give(**settings: Any) -> Live:
            name = repr(sorted(settings.items()))
            if name not in known:
                known[name] = _start(running, tool_engine, **settings)
            return known[name]

        yield give


@pytest.fixture
def scripted(
    tool_engine: Engine,
    tool_servers: Callable[..., Live],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., AbstractContextManager[tuple[str, int]]]:
    """What serves an engine that gives the same answer to everything, and gives the address.

    The answer is forced by a mask of one token at a time: all else is the real engine. Servers are
    shared: what they keep of one test, another finds.
    """

    @contextmanager
    def serve(text: str, **settings: object) -> Iterator[tuple[str, int]]:
        tokenizer = tool_engine.tokenizer
        ids = tokenizer.encode(text, add_special=False, parse_special=True)
        script = [*ids, *tokenizer.eos_ids]

        def mask(output_ids: np.ndarray) -> np.ndarray:
            allowed = np.zeros(tokenizer.vocab_size, np.bool_)
            allowed[script[min(len(output_ids), len(script) - 1)]] = True
            return allowed

        forced = SamplingParams(temperature=0, mask=mask)
        monkeypatch.setattr(Engine, "default_sampling", forced)
        yield tool_servers(**settings).address

    return serve
