"""Weights packed into a folder: the same answers; incomplete folders are refused."""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_model import write_gguf
from ml_dtypes import bfloat16
from published import METHODS
from published import write_model as write_published
from random_llama import write_model
from safetensors.numpy import load_file, save_file
from spaninfer_engine import Engine, SamplingParams
from spaninfer_engine.backends.cpu.packing_error import SAMPLED_PANELS
from spaninfer_engine.errors import CheckpointError, ConfigError
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.checkpoint import Checkpoint
from spaninfer_engine.load.packed.file import PACKED_FILE, open_packed
from spaninfer_engine.load.packed.tensor_error import TensorError
from spaninfer_engine.ops.operation import Use
from spaninfer_engine.spec.weight_nodes import Weight
from spaninfer_engine.startup.packed_weights import PackedWeights
from spaninfer_engine.tools.conversion import convert
from spaninfer_engine.vocab import Vocabulary
from spaninfer_kernels_cpu import Format, Layout, Packed, unpack

SHORT = [[5, 31, 77, 40], [1, 2]]  # of models with few tokens
PROMPTS = [[5, 900, 31, 4000, 77], [1, 2]]
SAMPLING = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of random weights, with files beside them that are copied, and that are not."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    write_model(folder, 1, bfloat16)
    (folder / "generation_config.json").write_text('{"top_k": 3}')
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (folder / "modeling_llama.py").write_text("raise SystemExit")
    return folder


@pytest.fixture(scope="module")
def int8(model: Path) -> Path:
    """The model in int8."""
    return convert(model, model.parent / "int8", quantize="int8")


def answers(folder: Path, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[Any]:
    """Return tokens and log-probabilities of answers to the prompts."""
    with Engine(folder, memory=1 << 22, **options) as engine:
        made = engine.generate(prompts, SAMPLING)
    return [(each.token_ids, each.logprobs) for each in made]


@pytest.mark.parametrize(
    "codes",
    [
        {},
        {"quantize": "int8"},
        {"quantize": "int8", "quantize_group": "row"},
        {"quantize": "int4", "quantize_group": 64},
        {"quantize": "int3", "quantize_group": 128},
        {"quantize": "int3.5"},
        {"quantize": "iq4_nl", "quantize_group": 64},
        {"quantize": "w8a16"},
        {"quantize": "w7a7", "quantize_group": "row"},
        {"quantize": "w13a13"},
    ],
    ids=lambda codes: " ".join(map(str, codes.values())) or "as stored",
)
def test_a_converted_folder_answers_to_the_bit_what_packing_at_the_start_does(
    model: Path, tmp_path: Path, codes: dict[str, Any]
):
    out = convert(model, tmp_path / "new" / "out", **codes)

    assert answers(out) == answers(model, backend="cpu", **codes)
    assert answers(out, backend="cpu", device="cpu", **codes) == answers(out)


def text_of(checkpoint: Checkpoint) -> tuple[object, ...]:
    """All of a checkpoint that makes texts, read from its file."""
    vocab = checkpoint.tokenizer
    assert isinstance(vocab, Vocabulary)
    read = replace(vocab, pieces=tuple(vocab.pieces), merges=tuple(vocab.merges))
    return read, checkpoint.chat_template, checkpoint.special_tokens


@pytest.mark.parametrize(
    ("types", "codes"),
    [
        ({"attn_v": "Q6_K", "output": "Q6_K", "": "Q4_K"}, {}),
        ({"token_embd": "Q6_K", "": "IQ4_XS"}, {}),
        ({"": "Q4_0"}, {"quantize": "int8"}),
    ],
    ids=["Q4_K and Q6_K", "IQ4_XS", "Q4_0 to int8"],
)
def test_a_gguf_file_becomes_a_folder_of_the_same_answers_and_the_same_text(
    tmp_path: Path, types: dict[str, str], codes: dict[str, Any]
):
    file = write_gguf(tmp_path / "model.gguf", types)
    with open_checkpoint(file) as checkpoint:
        text = text_of(checkpoint)
        config = dict(checkpoint.config)
    expected = answers(file, SHORT, backend="cpu", **codes)

    out = convert(file, tmp_path / "out", **codes)

    file.unlink()
    with open_checkpoint(out) as checkpoint:
        assert dict(checkpoint.config) == config
        assert text_of(checkpoint) == text
    assert answers(out, SHORT) == expected
    (out / "chat_template.jinja").write_text("mine")
    with open_checkpoint(out) as checkpoint:
        assert checkpoint.chat_template == "mine"


@pytest.mark.parametrize("name", ["GPTQ", "AWQ", "W8A8", "MXFP4", "NF4", "FP8 blocks"])
def test_codes_of_a_published_checkpoint_stay_as_they_are(tmp_path: Path, name: str):
    folder = write_published(tmp_path / "published", lambda _: METHODS[name], dtype="float32")

    out = convert(folder, tmp_path / "out")

    assert answers(out, SHORT) == answers(folder, SHORT, backend="cpu")


@pytest.mark.parametrize("quantize", ["int4", "int3.5", "iq4_nl", "w8a16"])
def test_the_report_is_of_what_packing_changed(model: Path, tmp_path: Path, quantize: Any):
    """Beside the error of the numbers in the file that is written, all of them."""
    errors: list[TensorError] = []
    out = convert(model, tmp_path / "out", quantize=quantize, report=errors.append)
    read = {
        name: np.asarray(each, np.float64)
        for name, each in load_file(model / "model.safetensors").items()
    }

    with open_packed(out / PACKED_FILE) as reader:
        packed = {
            name.partition(": ")[2]: (form, reader.arrays[name].read())
            for name, form in reader.contents.forms.items()
        }
    assert {each.name for each in errors} == set(packed)
    for each in errors:
        (kind, group, _), count, outputs, channels = packed[each.name][0]
        assert (kind, count) == (quantize, 1)
        layout = Layout(Format(kind, group), outputs, channels)
        numbers = np.concatenate([read[name] for name in each.name.split(" + ")])
        error = unpack(Packed(layout, packed[each.name][1])) - numbers
        size = np.sqrt((numbers**2).mean())
        assert each.shape == numbers.shape
        largest = np.abs(error).max() / size
        is_whole = outputs <= SAMPLED_PANELS * 64  # of others, some rows
        expected = pytest.approx(np.sqrt((error**2).mean()) / size, 1e-6 if is_whole else 0.01)
        assert each.relative_rms == expected
        assert (
            (each.largest == pytest.approx(largest)) if is_whole else each.largest < 1.01 * largest
        )
        assert each.bits == {"int4": 5, "int3.5": 4.5, "iq4_nl": 4.5, "w8a16": 9}[quantize]


def test_without_quantising_there_is_nothing_to_report(model: Path, tmp_path: Path):
    errors: list[TensorError] = []
    convert(model, tmp_path / "out", report=errors.append)

    assert not errors


def test_numbers_of_32_bits_become_bfloat16_where_that_is_asked_for(model: Path, tmp_path: Path):
    """Numbers that bfloat16 holds, stored in float32: packed so, they are those of `model`."""
    wide = tmp_path / "wide"
    shutil.copytree(model, wide)
    tensors = load_file(model / "model.safetensors")
    save_file(
        {name: each.astype(np.float32) for name, each in tensors.items()},
        wide / "model.safetensors",
    )

    out = convert(wide, tmp_path / "out", quantize="bfloat16")

    assert answers(wide, backend="cpu", quantize="bfloat16") == answers(model, backend="cpu")
    assert answers(out) == answers(model, backend="cpu")
    with open_packed(out / PACKED_FILE) as reader:
        assert {form[0][0] for form in reader.contents.forms.values()} == {"bfloat16"}
    with pytest.raises(ConfigError, match="packed as bfloat16, and another format was requested"):
        Engine(out, quantize="int8")


@pytest.mark.parametrize("quantize", [None, "bfloat16", "int4"])
@pytest.mark.parametrize("stem", ["tokenizer", "tok300"])
def test_a_llama2c_file_is_converted_with_the_tokenizer_beside_it(
    tmp_path: Path, stem: str, quantize: Any
):
    """Also one that Hugging Face folders do not know by its name."""
    hidden, inner, layers, heads, kv_heads, vocab, context = sizes = 64, 96, 2, 4, 2, 300, 64
    kv = hidden // heads * kv_heads
    each = 2 * hidden + 2 * hidden * hidden + 2 * kv * hidden + 3 * hidden * inner
    count = vocab * hidden + layers * each + hidden + context * hidden // heads
    weights = np.random.default_rng(0).standard_normal(count, np.float32)
    pieces = b"".join(struct.pack("<fi", 0, 3) + f"{i:03x}".encode() for i in range(vocab))
    file = tmp_path / "stories.bin"
    file.write_bytes(struct.pack("<7i", *sizes) + weights.tobytes())
    (tmp_path / f"{stem}.bin").write_bytes(struct.pack("<i", 3) + pieces)

    out = convert(file, tmp_path / "out", quantize=quantize)

    assert sorted(file.name for file in out.iterdir()) == sorted(
        ["config.json", PACKED_FILE, f"{stem}.bin"]
    )
    prompts = [[5, 9, 31, 40, 77], [1, 2]]
    made = []
    for folder in (out, file):
        with Engine(folder, backend="cpu", memory=1 << 22, quantize=quantize) as engine:
            found = engine.generate(prompts, SAMPLING)
        made.append([(one.token_ids, one.text, one.logprobs) for one in found])
    assert made[0] == made[1]


def test_everything_but_weights_and_code_goes_along(int8: Path):
    assert sorted(file.name for file in int8.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        PACKED_FILE,
        "tokenizer.json",
    ]


def test_panels_lie_in_the_mapped_file_each_from_a_cache_line_on(int8: Path):
    with open_packed(int8 / PACKED_FILE) as reader:
        weights = PackedWeights(reader)
        sizes = {"q": 512, "k": 512, "v": 512}
        uses = [
            Use("weight", (Weight(f"model.layers.0.self_attn.{name}_proj.weight", (size, 512)),))
            for name, size in sizes.items()
        ]
        packed = weights.pack(uses, "product")
        again = weights.pack(uses, "product")

    assert not packed.panels.flags.owndata
    assert not packed.panels.flags.writeable
    assert np.shares_memory(packed.panels, again.panels)
    assert packed.panels.ctypes.data % 64 == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "torch"}, "packed for backend cpu, and backend torch .* was converted"),
        ({"backend": "cuda"}, "packed for backend cpu, and backend cuda"),
        ({"backend": "reference"}, "packed for backend cpu, and backend reference"),
        ({"device": "cuda"}, "packed for backend cpu, and device cuda"),
        ({"quantize": "int4"}, "int8 with a scale per 32 channels, and another .* leave quantize"),
        ({"quantize": "int8", "quantize_group": "row"}, "another format was requested"),
    ],
)
def test_what_the_files_cannot_give_is_refused(int8: Path, options: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        Engine(int8, **options)


@pytest.mark.parametrize(
    "asked",
    [{}, {"quantize": "int8"}, {"quantize_group": "row"}],
    ids=["nothing", "int8", "row"],
)
def test_a_folder_with_a_scale_per_row_is_read_unless_other_groups_are_asked_for(
    model: Path, tmp_path: Path, asked: dict[str, Any]
):
    """Folders of versions whose default was a row say so in their metadata."""
    row = convert(model, tmp_path / "row", quantize="int8", quantize_group="row")

    assert answers(row, **asked) == answers(row)
    with pytest.raises(ConfigError, match="int8 with a scale per row, and another format"):
        Engine(row, **asked | {"quantize_group": 32})


def test_a_format_that_no_folder_holds_is_refused(model: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"in w4afp8.* at every start; give --quantize w4afp8 th"):
        convert(model, tmp_path / "out", quantize="w4afp8")

    assert list(tmp_path.iterdir()) == []


def test_only_new_and_empty_folders_are_written(model: Path, tmp_path: Path):
    used = tmp_path / "used"
    used.mkdir()
    (used / "notes").write_text("mine")
    empty = tmp_path / "empty"
    empty.mkdir()

    for out in (used, used / "notes", model):
        with pytest.raises(ConfigError, match="already exists; give a new or"):
            convert(model, out)
    convert(model, empty)

    assert (empty / PACKED_FILE).is_file()
    assert (used / "notes").read_text() == "mine"


def test_bare_weights_and_converted_folders_are_not_converted(int8: Path, tmp_path: Path):
    (tmp_path / "model.safetensors").write_bytes(bytes(16))

    with pytest.raises(ConfigError, match="holds weights only; give its folder"):
        convert(tmp_path / "model.safetensors", tmp_path / "out")
    with pytest.raises(ConfigError, match="is already converted; use the checkpoint"):
        convert(int8, tmp_path / "out")


# ---- what is not whole ---------------------------------------------------------------------------


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file of this process may grow beyond a megabyte."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_is_too_small_is_named_and_nothing_stays_on_it(model: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="out cannot be written: "):
        convert(model, tmp_path / "out", quantize="int8")

    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", interrupt)

    with pytest.raises(KeyboardInterrupt):
        convert(model, tmp_path / "out", quantize="int8")

    assert list(tmp_path.iterdir()) == []


def edited(folder: Path, out: Path, edit: Callable[[dict[str, str]], None]) -> Path:
    """Copy a converted folder, with other metadata."""
    shutil.copytree(folder, out)
    data = (out / PACKED_FILE).read_bytes()
    stop = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:stop])
    edit(header["__metadata__"])
    text = json.dumps(header).encode()
    (out / PACKED_FILE).write_bytes(len(text).to_bytes(8, "little") + text + data[stop:])
    return out


def changed(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, str]], None]:
    """Return an edit of one of the metadata that are JSON."""

    def edit(metadata: dict[str, str]) -> None:
        metadata[key] = json.dumps(change(json.loads(metadata[key])))

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda data: data.update(layout="of 2031"), "layout 'of 2031', and the kernels"),
        (lambda data: data.update(spaninfer_packed="7"), "spaninfer_packed '7', and this version"),
        (lambda data: data.pop("spaninfer_packed"), "spaninfer_packed None"),
        (lambda data: data.pop("tensors"), "metadata are damaged"),
        (lambda data: data.update(packing="[]"), "metadata are damaged"),
        (lambda data: data.update(forms="{}"), "wrong shape"),
        (
            changed("forms", lambda forms: dict.fromkeys(forms, "?")),
            "unknown form '[?]'",
        ),
        (
            changed("forms", lambda forms: {name: [*f[:3], 64, 64] for name, f in forms.items()}),
            "unknown form",
        ),
        (
            changed("tensors", lambda tensors: {"model.norm.weight": tensors["model.norm.weight"]}),
            "is missing",
        ),
    ],
)
def test_a_file_of_another_layout_or_version_or_that_is_damaged_is_refused_by_name(
    int8: Path, tmp_path: Path, edit: Callable[[dict[str, str]], None], said: str
):
    folder = edited(int8, tmp_path / "edited", edit)

    with pytest.raises(CheckpointError, match=said):
        Engine(folder)


def test_weights_that_a_spec_names_and_the_file_lacks_are_named(int8: Path):
    with open_packed(int8 / PACKED_FILE) as reader:
        use = Use("weight", (Weight("elsewhere.weight", (8, 8)),))
        with pytest.raises(
            CheckpointError, match=r"no 'product: elsewhere\.weight': .* another spec"
        ):
            PackedWeights(reader).pack([use], "product")
        with pytest.raises(CheckpointError, match="was packed and cannot be read"):
            reader.read("model.norm.weight")


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's accounts")
def test_no_page_of_the_mapped_file_becomes_the_process_s_own(int8: Path):
    with Engine(int8, memory=1 << 22) as engine:
        engine.generate(PROMPTS, SAMPLING)
        mappings = Path("/proc/self/smaps").read_text().split("VmFlags")
        (mapping,) = (text for text in mappings if str(int8) in text)

    assert "Private_Dirty:         0 kB" in mapping
    assert "Anonymous:             0 kB" in mapping
    assert "Rss:                   0 kB" not in mapping
