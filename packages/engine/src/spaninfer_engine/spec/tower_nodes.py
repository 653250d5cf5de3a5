"""The nodes of towers: what turns media into hidden states of a decoder's tokens.

PatchTower           images and videos
├── Linear           patch embedding
├── PatchPositions   a learned table of a square, stretched to the picture
├── Norm             in front of the first layer
├── Layer ...        with RaggedAttention among the patches of a frame, or of a window
├── Norm             behind the last layer
├── Merger ...       neighbouring patches become a row per token; one more per deepstack layer
│   Resampler        or queries that read all patches of a frame
└── Weight           rows that stand between those of patches, such as one behind every line

AudioTower           clips
├── Linear ...       two convolutions
├── Weight           positions
├── Layer ...        with RaggedAttention among the rows of a clip
├── Norm             behind the mean of neighbouring rows
└── Linear           projection to the text model's channels

MediaTokens          which tokens of a prompt stand for media
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from spaninfer_engine.request.media import MediaKind
from spaninfer_engine.spec.attention_nodes import AxialRope, FusedQkv, RaggedAttention
from spaninfer_engine.spec.mlp_nodes import ActivationName
from spaninfer_engine.spec.nodes import Layer
from spaninfer_engine.spec.weight_nodes import Linear, Norm, Weight

Stretch: TypeAlias = Literal["bilinear", "bicubic"]

TAPS = 3  # frames that a convolution of an audio tower sees


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """Token ids that stand for media in a prompt; None where a model has no such token."""

    image: int | None = None
    video: int | None = None
    audio: int | None = None
    start: int | None = None  # in front of an image or video
    end: int | None = None  # behind it
    seconds_per_t: float | None = None  # positions per second of video; None: one per patch
    frames_apart: bool = False  # each frame of a video stands alone, behind its time (Qwen3-VL)
    bidirectional: bool = False  # tokens of an image see each other, not just those before
    replaces_marks: bool = False  # rows of a clip replace `start` and `end`, too (Qwen-Audio)
    around: str = ""  # text in front of the start token and behind the end token (Gemma 3)
    written: str = ""  # the template's text for an image, where it is not that of `image`


class Square(NamedTuple):
    """A square of vectors, and their interpolation for pictures of other sizes.

    "bilinear": the corners of picture and square lie on each other (Qwen3-VL). "bicubic": their
    edges do (Qwen-VL).
    """

    side: int
    stretch: Stretch = "bilinear"


@dataclass(frozen=True, slots=True)
class PatchPositions:
    """A learned vector per place of a square, stretched to the picture."""

    table: Weight  # [side * side, C]
    square: Square


@dataclass(frozen=True, slots=True)
class Merger:
    """down(act(up(y))) of the `count` neighbouring patches of a token: side by side in y, or their
    mean; down(y) where there is no `up`; down(act(g) * u) where `is_gated`, u and g the halves of
    up(y).

    The norm is of each patch before, or of y where `norm_after`. `join` makes one patch of those
    side by side first; it reads them channel by channel. With `project`, the result is that of
    act(down(...)).
    """

    norm: Norm | None
    up: Linear | None
    down: Linear
    count: int
    act: ActivationName = "gelu"
    norm_after: bool = False
    is_mean: bool = False
    is_gated: bool = False
    join: Linear | None = None
    project: Linear | None = None


@dataclass(frozen=True, slots=True)
class Resampler:
    """down(norm(out(attention))): `count` learned queries read all patches of a frame (Qwen-VL).

    What is read is y = kv_norm(kv(x)): keys are projected from y + positions, values from y,
    queries from q_norm(query) + positions, of which there are as many as queries.
    """

    query: Weight  # [count, width]
    positions: PatchPositions
    kv: Linear | None  # None where the tower's channels are the resampler's
    q_norm: Norm
    kv_norm: Norm
    qkv: FusedQkv
    heads: int
    out: Linear
    norm: Norm
    down: Linear

    @property
    def count(self) -> int:
        """Queries."""
        return self.query.shape[0]


@dataclass(frozen=True, slots=True)
class PatchTower:
    """Patches of images and videos in, a row per token of the text model out.

    A row of patches holds [channel, frame, row, column] of its pixels. `merge` patches squared
    become one token; `window` patches squared attend among themselves in layers that say so.
    The j-th of `deepstack` is a layer and the merger whose rows are added to the output of the
    decoder's layer j. Towers with `tile` read pictures of one size, that many patches squared.
    `extra` rows [n, width] come behind those of patches, for inputs that say where they belong.
    A class token [hidden] attends beside the patches of each tile; its position is the last of the
    table, or the first, and no token of the text model is made of it.
    """

    kinds: tuple[MediaKind, ...]
    hidden: int  # channels of the tower
    width: int  # channels of its rows: the decoder's hidden
    heads: int
    patch: int  # pixels of a patch's side
    temporal: int  # frames of a patch
    channels: int  # of a pixel
    merge: int
    embedding: Linear
    layers: tuple[Layer, ...]
    merger: Merger | Resampler
    positions: PatchPositions | None = None
    pre_norm: Norm | None = None
    norm: Norm | None = None
    window: int | None = None
    deepstack: tuple[tuple[int, Merger], ...] = ()
    tile: int | None = None
    extra: Weight | None = None
    class_token: Weight | None = None
    class_first: bool = False  # in the table

    @property
    def num_beside(self) -> int:
        """Rows behind the patches of a tile: a class token, and what makes it as many as a token's
        patches.
        """
        return 0 if self.class_token is None else self.merge**2

    @property
    def has_frames(self) -> bool:
        """Return True if patches span frames, of which their embedding has an axis."""
        return self.tile is None and "video" in self.kinds

    @property
    def numbers(self) -> int:
        """Numbers of a patch."""
        return self.channels * self.temporal * self.patch**2

    @property
    def squares(self) -> tuple[Square, ...]:
        """The different squares that are stretched to a frame."""
        found = [self.positions]
        if isinstance(self.merger, Resampler):
            found.append(self.merger.positions)
        return tuple(dict.fromkeys(each.square for each in found if each is not None))

    def rows_of(self, num_patches: int) -> int:
        """Return how many rows are made of a frame of that many patches."""
        if isinstance(self.merger, Resampler):
            return self.merger.count
        return num_patches // self.merge**2

    @property
    def ropes(self) -> tuple[AxialRope, ...]:
        """The different rotary embeddings, in layer order."""
        found = (layer.attention.positions for layer in self.layers
                 if isinstance(layer.attention, RaggedAttention))  # fmt: skip
        return tuple(dict.fromkeys(each for each in found if isinstance(each, AxialRope)))


@dataclass(frozen=True, slots=True)
class AudioTower:
    """A spectrogram in, a row per token of the text model out (Whisper's encoder, Qwen2-Audio).

    Two convolutions of three frames, the second of every other frame, then `positions`, layers, the
    mean of `pool` neighbouring rows, a norm, and a projection to the text model's channels. Of two
    `extra` rows [2, width] one comes in front of those of a clip, one behind them (Qwen-Audio).
    """

    kinds: tuple[MediaKind, ...]
    hidden: int
    width: int  # channels of its rows: the decoder's hidden
    heads: int
    mels: int
    max_rows: int  # rows of the position table: half as many as frames
    pool: int
    conv1: Linear  # weight [hidden, mels, 3]
    conv2: Linear  # weight [hidden, hidden, 3]
    act: ActivationName
    positions: Weight  # [max_rows, hidden]
    layers: tuple[Layer, ...]
    norm: Norm
    projector: Linear
    extra: Weight | None = None

    @property
    def ropes(self) -> tuple[AxialRope, ...]:
        """No rotary embeddings."""
        return ()

    @property
    def merge(self) -> int:
        """One: a row has no neighbours above and below."""
        return 1

    @property
    def deepstack(self) -> tuple[tuple[int, Merger], ...]:
        """Nothing joins deeper layers of the decoder."""
        return ()


Tower: TypeAlias = PatchTower | AudioTower


def num_extra(tower: Tower) -> int:
    """Return how many rows a tower's model brings itself."""
    if tower.extra is None:
        return 0
    return tower.extra.shape[0] if len(tower.extra.shape) > 1 else 1
