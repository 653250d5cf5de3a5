"""The `.bin` files of llama2.c: versions 0 and 1 in float32, version 2 in groups of int8.

Facts of the format (all numbers little-endian, arrays row-major, one kind for all layers after
the other):

    version 0   7 int32: dim, hidden, layers, heads, kv heads, ±vocabulary, context
                (a negative vocabulary says that the head is stored apart)
                embedding, attention norms, wq, wk, wv, wo, ffn norms, w1, w2, w3, last norm,
                two rope tables [context, head/2], head if apart
    version 1   "ak42", version, the same 7, uint8 head is shared; data from byte 256:
                attention norms, ffn norms, last norm, embedding, wq, wk, wv, wo, w1, w2, w3, head
    version 2   as 1 with an int32 group length after the shared flag; all but the norms are
                int8 followed by one float32 scale per group
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from spaninfer_engine.errors import CheckpointError
from spaninfer_engine.load.tensors.mapped import MappedArray, map_file
from spaninfer_engine.load.tensors.reader import Entry, EntryReader
from spaninfer_engine.load.tensors.rows import halved_rows

MAGIC = 0x616B3432  # "ak42"
HEADER_BYTES = 256  # of versions 1 and 2
FLOAT32 = np.dtype("<f4")
INT8 = np.dtype(np.int8)

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
LAST_NORM = "model.norm.weight"
NORMS = ("input_layernorm", "post_attention_layernorm")
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
FFN = ("mlp.gate_proj", "mlp.down_proj", "mlp.up_proj")


@dataclass(frozen=True, slots=True)
class Header:
    """The sizes at the top of a file and where its data starts."""

    hidden: int
    ffn: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab: int
    context: int
    version: int
    tied: bool
    data_start: int
    group_len: int = 0  # values per scale; 0: the weights are float32

    @property
    def head_size(self) -> int:
        """Rows per head."""
        return self.hidden // self.num_heads

    def shape_of(self, kind: str) -> tuple[int, ...]:
        """The shape of one layer's weight of this kind."""
        kv = self.num_kv_heads * self.head_size
        match kind.rpartition(".")[2]:
            case "q_proj" | "o_proj":
                return (self.hidden, self.hidden)
            case "k_proj" | "v_proj":
                return (kv, self.hidden)
            case "gate_proj" | "up_proj":
                return (self.ffn, self.hidden)
            case "down_proj":
                return (self.hidden, self.ffn)
        return (self.hidden,)


@dataclass(frozen=True, slots=True)
class GroupedInt8:
    """Int8 codes and a float32 scale per group of them, read as their float32 product."""

    codes: MappedArray
    scales: MappedArray
    dtype: np.dtype = FLOAT32

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the dequantised array."""
        return self.codes.shape

    def read(self) -> np.ndarray:
        """The dequantised array, made anew."""
        scales = self.scales.read()
        codes = self.codes.read().reshape(len(scales), -1).astype(FLOAT32)
        codes *= scales[:, None]
        return codes.reshape(self.shape)


def open_llama2c(path: Path) -> tuple[dict[str, Any], EntryReader]:
    """The config.json equivalent and the weights of a `.bin` file."""
    data = map_file(path)
    header = _read_header(path, data)
    cursor = _Cursor(path, data, header.data_start)
    entries: dict[str, Entry] = {}
    for name, shape in _arrays_in_order(header):
        quantised = header.group_len and len(shape) > 1
        entries[name] = cursor.take(shape, header.group_len if quantised else 0)
    entries = {name: entry for name, entry in entries.items() if not name.startswith("rope.")}
    for layer in range(header.num_layers):
        for kind, heads in (("q_proj", header.num_heads), ("k_proj", header.num_kv_heads)):
            name = f"model.layers.{layer}.self_attn.{kind}.weight"
            entries[name] = halved_rows(entries[name], heads)
    cursor.finish()
    return _config(header), EntryReader(str(path), entries)


def _config(header: Header) -> dict[str, Any]:
    """Return the config.json of this model; eps and theta are constants of llama2.c."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": header.hidden,
        "intermediate_size": header.ffn,
        "num_hidden_layers": header.num_layers,
        "num_attention_heads": header.num_heads,
        "num_key_value_heads": header.num_kv_heads,
        "vocab_size": header.vocab,
        "max_position_embeddings": header.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": header.tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _arrays_in_order(header: Header) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as they follow each other in the file."""

    def layers(*kinds: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        for kind in kinds:
            for layer in range(header.num_layers):
                yield f"model.layers.{layer}.{kind}.weight", header.shape_of(kind)

    embedding = (header.vocab, header.hidden)
    if header.version == 0:
        yield EMBEDDING, embedding
        yield from layers(NORMS[0], *ATTENTION, NORMS[1], *FFN)
        yield LAST_NORM, (header.hidden,)
        yield "rope.cos", (header.context, header.head_size // 2)
        yield "rope.sin", (header.context, header.head_size // 2)
    else:
        yield from layers(*NORMS)
        yield LAST_NORM, (header.hidden,)
        yield EMBEDDING, embedding
        yield from layers(*ATTENTION, *FFN)
    if not header.tied:
        yield HEAD, embedding


def _read_header(path: Path, data: np.ndarray) -> Header:
    if len(data) < HEADER_BYTES:
        raise CheckpointError(f"{path} has {len(data)} bytes; too few for a llama2.c model")
    text = data[:HEADER_BYTES].tobytes()
    magic, version = struct.unpack_from("<Ii", text)
    if magic != MAGIC:
        version = 0
    elif version not in (1, 2):
        raise CheckpointError(f"{path} is llama2.c version {version}; 0, 1 and 2 are read")
    sizes = struct.unpack_from("<7i", text, offset=8 if version else 0)
    hidden, ffn, num_layers, num_heads, num_kv_heads, vocab, context = sizes
    shared, group_len = struct.unpack_from("<Bi", text, offset=36)
    header = Header(
        hidden=hidden,
        ffn=ffn,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        vocab=vocab if version else abs(vocab),
        context=context,
        version=version,
        tied=bool(shared) if version else vocab > 0,
        data_start=HEADER_BYTES if version else struct.calcsize("<7i"),
        group_len=group_len if version == 2 else 0,
    )
    _check_header(path, header)
    return header


def _check_header(path: Path, header: Header) -> None:
    sizes = (
        header.hidden,
        header.ffn,
        header.num_layers,
        header.num_heads,
        header.num_kv_heads,
        header.vocab,
        header.context,
    )
    sane = (
        all(0 < size < 2**31 for size in sizes)
        and header.hidden % header.num_heads == 0
        and header.num_heads % header.num_kv_heads == 0
        and header.head_size % 2 == 0
        and header.num_layers < 10_000
        and (header.version != 2 or header.group_len > 0)
    )
    if not sane:
        raise CheckpointError(
            f"{path} is not a llama2.c model, or its header is damaged: "
            f"dim, hidden, layers, heads, kv heads, vocabulary, context = {sizes}"
        )


class _Cursor:
    """Hands out the arrays of a file one after the other."""

    def __init__(self, path: Path, data: np.ndarray, start: int) -> None:
        self._path, self._data, self._at = path, data, start

    def take(self, shape: tuple[int, ...], group_len: int) -> Entry:
        """The next array; int8 with scales if `group_len` is not 0."""
        if not group_len:
            return self._array(shape, FLOAT32)
        if prod(shape) % group_len:
            raise CheckpointError(
                f"{self._path}: {shape} is not a multiple of the group of {group_len}"
            )
        codes = self._array(shape, INT8)
        return GroupedInt8(codes, self._array((prod(shape) // group_len,), FLOAT32))

    def finish(self) -> None:
        """Nothing may be left behind the last array."""
        if self._at != len(self._data):
            raise CheckpointError(
                f"{self._path} has {len(self._data)} bytes, its header asks for {self._at}; "
                "it is damaged or no llama2.c model"
            )

    def _array(self, shape: tuple[int, ...], dtype: np.dtype) -> MappedArray:
        array = MappedArray(self._data, self._at, shape, dtype)
        self._at += array.num_bytes
        if self._at > len(self._data):
            raise CheckpointError(
                f"{self._path} ends at byte {len(self._data)}, within an array that needs bytes "
                f"up to {self._at}; it is truncated or no llama2.c model"
            )
        return array
