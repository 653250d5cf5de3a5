"""Divergence of the bundled model when its weights are rotated before they are rounded, and not.

As `published_divergence.py` does, with what `--quantize` makes. Blocks of 128 inputs have their
signs changed at random and are multiplied by a Hadamard matrix; the rounded numbers are turned back
here, where an engine would turn activations. The bundled model's weights have a normal
distribution; of random ones with heavier tails, and of the matrices of a model in a safetensors
file that is named, the errors alone are printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from published_divergence import print_divergence
from published_formats import Published
from spaninfer_engine.backends.rounded_weights import round_to_levels, rounded_format
from spaninfer_engine.config import GroupLen, Quantize
from spaninfer_engine.load.containers.safetensors import read_safetensors
from spaninfer_engine.load.packed.packing import packing_of
from spaninfer_op_reference import dequantize_weight
from weight_divergence import Array

BLOCK = 128
FORMATS: tuple[tuple[Quantize, GroupLen], ...] = (
    ("int4", 32), ("int4", 64), ("int4", 128), ("iq4_nl", 32), ("iq4_nl", 64), ("iq4_nl", 128),
    ("int3", 32), ("int3", 128), ("int2", 32),
)  # fmt: skip
FREEDOMS = (None, 10, 5, 3)
"""Of Student's distributions; None: the normal one."""


def hadamard(size: int) -> Array:
    """Return the orthogonal symmetric matrix of Sylvester's construction."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / size**0.5


def rotated(round_weight: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return what rounds a weight[N K] in turned blocks of K, and turns them back."""
    turn = hadamard(BLOCK)

    def around(weight: Array) -> Array:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], weight.shape[1])
        blocks = (weight * signs).reshape(len(weight), -1, BLOCK) @ turn
        made = round_weight(blocks.reshape(weight.shape)).reshape(blocks.shape) @ turn
        back: Array = made.reshape(weight.shape) * signs
        return back

    return around


def formats() -> list[Published]:
    """Return each format, and the same of rotated weights."""
    made = []
    for name, group in FORMATS:
        format = rounded_format(packing_of(name, group))
        assert format is not None

        def round_weight(weight: Array, format=format) -> Array:
            return dequantize_weight(round_to_levels(np.float32(weight), format))

        bits, title = format.stored_bits, f"{name} g{group}"
        made.append(Published(title, bits, round_weight, rounds_head=True))
        made.append(Published(f"{title} rotated", bits, rotated(round_weight), rounds_head=True))
    return made


def weights() -> Iterator[tuple[str, list[Array]]]:
    """Yield matrices by what they are of."""
    rng = np.random.default_rng(1)
    for freedom in FREEDOMS:
        shape = 256, 1024
        weight = rng.standard_normal(shape) if freedom is None else rng.standard_t(freedom, shape)
        yield "normal" if freedom is None else f"Student, {freedom}", [weight]
    for file in sys.argv[1:]:
        found = read_safetensors(Path(file))
        inner = {name: each for name, each in found.items() if "layer" in name}
        some = [inner[name].read()[::8] for name in sorted(inner) if len(inner[name].shape) == 2]
        yield Path(file).parent.name, [np.float64(each) for each in some]


def main() -> None:
    """Print errors of weights, then divergences."""
    for of, matrices in weights():
        size = sum((each**2).sum() for each in matrices)
        for format in formats():
            error = sum(((format.round(each) - each) ** 2).sum() for each in matrices)
            about = {"benchmark": "rotated weights", "weights": of, "format": format.name}
            about |= {"bits": format.bits, "weight_error": round(float(error / size) ** 0.5, 5)}
            print(json.dumps(about), flush=True)
    print_divergence("rotated divergence", formats())


if __name__ == "__main__":
    main()
