"""Trained models in every container, against golden tokens and a forward pass of definitions."""

import json
import struct

import numpy as np
import pytest
import spaninfer_op_reference as definition
from shared_data import shared_data
from spaninfer_engine import Engine, SamplingParams

pytestmark = pytest.mark.model

STORIES = [
    "stories260K-hf",
    "stories260K/stories260K.bin",
    "stories260K/stories260K-f32.gguf",
    "babyllama-105char-hf",
    "babyllama-105char/model5000.bin",
]


def greedy(max_tokens):
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "cpu") for name in STORIES),
        *(
            (name, backend)
            for name in STORIES
            if "-hf" in name
            for backend in ("torch", "reference")
        ),
    ],
)
def test_greedy_tokens_are_the_golden_ones(name, backend):
    path = shared_data("models", *name.split("/"))
    golden = json.loads(shared_data("models", "golden_greedy_numpy_fp.json").read_text())
    cases = [case for case in golden if name.startswith(case["model"])]

    with Engine(path, backend=backend, dtype="float32") as engine:
        answers = [
            engine.generate(case["prompt"], greedy(len(case["greedy_ids"]))) for case in cases
        ]

    assert cases
    for case, answer in zip(cases, answers, strict=True):
        assert list(answer.prompt_ids) == case["prompt_ids"]
        assert list(answer.token_ids) == case["greedy_ids"]
        assert case["text"] == case["prompt"] + answer.text


def test_int8_weights_give_the_tokens_of_their_own_dequantised_values():
    path = shared_data("models", "stories260K", "stories260K-q8_0.bin")
    expected = Quantised(path).greedy([1, 403, 407, 261, 378], 100)

    with Engine(path) as engine:
        answer = engine.generate([1, 403, 407, 261, 378], greedy(100))

    assert list(answer.token_ids) == expected
    assert len(set(expected)) > 30  # a story, not a loop


class Quantised:
    """llama2.c's version 2 read and computed in float64, sharing nothing with the engine.

    It keeps the file's row order, so rotations are interleaved where the engine's are halves.
    """

    def __init__(self, path):
        self._data = path.read_bytes()
        header = struct.unpack_from("<Ii7iBi", self._data)
        self.dim, self.hidden, self.layers, self.heads, self.kv_heads, self.vocab, _ = header[2:9]
        self._group, self._at = header[10], 256
        self.head_dim = self.dim // self.heads
        attention_norms, mlp_norms = self._norms(self.layers), self._norms(self.layers)
        self.last_norm = self._norms(1)[0]
        self.table = self._weight(self.vocab, self.dim)
        kv = self.kv_heads * self.head_dim
        shapes = {
            "q": (self.dim, self.dim), "k": (kv, self.dim), "v": (kv, self.dim),
            "o": (self.dim, self.dim), "gate": (self.hidden, self.dim),
            "down": (self.dim, self.hidden), "up": (self.hidden, self.dim),
        }  # fmt: skip
        weights = {
            name: [self._weight(*shape) for _ in range(self.layers)]
            for name, shape in shapes.items()
        }
        self.blocks = [
            {name: each[layer] for name, each in weights.items()}
            | {"attention_norm": attention_norms[layer], "mlp_norm": mlp_norms[layer]}
            for layer in range(self.layers)
        ]
        assert self._at == len(self._data)

    def _take(self, dtype, count):
        array = np.frombuffer(self._data, dtype, count, self._at)
        self._at += array.nbytes
        return array.astype(np.float64)

    def _norms(self, count):
        return self._take("<f4", count * self.dim).reshape(count, self.dim)

    def _weight(self, rows, columns):
        groups = self._take("i1", rows * columns).reshape(-1, self._group)
        scales = self._take("<f4", len(groups))
        return (groups * scales[:, None]).reshape(rows, columns)

    def greedy(self, ids, count):
        ids = list(ids)
        for _ in range(count):
            ids.append(int(self.logits(ids).argmax()))
        return ids[-count:]

    def logits(self, ids):
        positions = np.arange(len(ids))
        inverse = 10000.0 ** -(np.arange(0, self.head_dim, 2) / self.head_dim)
        turn = definition.cos_sin(positions, inverse)
        x = self.table[ids]
        for block in self.blocks:
            y = definition.rms_norm(x, block["attention_norm"], 1e-5)
            q, k, v = (
                (y @ block[name].T).reshape(len(ids), -1, self.head_dim) for name in ("q", "k", "v")
            )
            q, k = (definition.rotate(part, *turn, "interleaved") for part in (q, k))
            mixed = definition.attend(q, k, v, positions, positions, scale=self.head_dim**-0.5)
            x = x + mixed.reshape(len(ids), -1) @ block["o"].T
            y = definition.rms_norm(x, block["mlp_norm"], 1e-5)
            inner = definition.gated(y @ block["gate"].T, y @ block["up"].T, "silu")
            x = x + inner @ block["down"].T
        return definition.rms_norm(x[-1], self.last_norm, 1e-5) @ self.table.T
