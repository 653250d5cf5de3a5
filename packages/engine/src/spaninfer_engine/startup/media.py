"""Decisions about media: memory of encodings, how prompts hold them, and which tower sees which."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spaninfer_engine.config import DType, EngineConfig
from spaninfer_engine.errors import ConfigError
from spaninfer_engine.preprocess.layout import MediaLayout, MediaSetup
from spaninfer_engine.request.media import MediaKind, TowerInput
from spaninfer_engine.spec.nodes import Decoder, Model, ropes

if TYPE_CHECKING:  # a process without an engine asks for `media_setup` alone
    from spaninfer_engine.backends.host.tower import Encoding, HostTower
    from spaninfer_engine.startup.compute import Compute

ENCODER_BYTES = 512 << 20
"""Memory of encodings unless another is requested: 37,000 tokens of a 7B model in float32."""

_SHARE = 16  # at the most this part of the memory that is free, unasked

_ITEM_BYTES: Mapping[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def encoder_bytes(asked: EngineConfig, model: Model, available: int) -> int:
    """Return how many bytes encodings of media may take; none where a model has no towers."""
    if not isinstance(model, Decoder) or not model.towers:
        return 0
    if asked.encoder_bytes is not None:
        return asked.encoder_bytes
    return min(ENCODER_BYTES, available // _SHARE)


def max_encoded(asked: EngineConfig, model: Model, compute: Compute, num_bytes: int) -> int:
    """Return how many tokens of media that many bytes hold; ConfigError where it is not one."""
    if not isinstance(model, Decoder) or not model.towers:
        return 0
    # On CPUs a dtype is what GEMMs see; rows stay in float32.
    item = 4 if compute.device == "cpu" else _ITEM_BYTES[compute.dtype]
    one = max(tower.width * (1 + len(tower.deepstack)) for tower in model.towers) * item
    if num_bytes < one and asked.encoder_bytes is not None:
        raise ConfigError(
            f"encoder_memory is {num_bytes} bytes, and the encoding of one token takes {one}; "
            "raise it, or leave it out"
        )
    return num_bytes // one


def media_setup(folder: Path, model: Model) -> MediaSetup | None:
    """Return how the prompts of a model hold media; None where it reads text alone."""
    if not isinstance(model, Decoder) or model.media is None or not model.towers:
        return None
    tokens = model.media
    kinds = {kind for tower in model.towers for kind in tower.kinds}
    named: dict[MediaKind, int | None] = {
        "image": tokens.image,
        "video": tokens.video,
        "audio": tokens.audio,
    }
    turns = ropes(model)
    marks = (tokens.start, tokens.end)
    layout = MediaLayout(
        placeholders={
            kind: token_id
            for kind, token_id in named.items()
            if kind in kinds and token_id is not None
        },
        merge=max(tower.merge for tower in model.towers),
        has_mrope=any(rope.sections for rope in turns),
        tokens_per_second=tokens.seconds_per_t,
        # The families that interleave the axes write the time of each frame into the text.
        frame_marks=_both(*marks) if any(rope.mrope_interleaved for rope in turns) else None,
        image_marks=_both(*marks) if tokens.around else None,
        around=tokens.around,
        written=tokens.written,
        replaced_marks=_both(*marks) if tokens.replaces_marks else None,
        bidirectional=tokens.bidirectional,
    )
    return MediaSetup(folder, layout)


def _both(start: int | None, end: int | None) -> tuple[int, int] | None:
    return None if start is None or end is None else (start, end)


@dataclass(frozen=True, slots=True)
class TowersByKind:
    """The towers of a model, each of which sees the media of its kinds: an `Encode`."""

    towers: Sequence[HostTower[Any]]

    def __call__(
        self, inputs: Sequence[TowerInput], /
    ) -> Generator[int, None, list[Encoding[Any]]]:
        """Return the encodings of media in order, with a pause behind every kernel."""
        made: dict[int, Encoding[Any]] = {}
        for each in self.towers:
            numbers = [at for at, item in enumerate(inputs) if item.kind in each.tower.kinds]
            if numbers:
                encoded = yield from each.kernel_by_kernel([inputs[at] for at in numbers])
                made |= zip(numbers, encoded, strict=True)
        return [made[at] for at in range(len(inputs))]

    def close(self) -> None:
        """Give the weights of all towers back; idempotent."""
        for each in self.towers:
            each.close()
