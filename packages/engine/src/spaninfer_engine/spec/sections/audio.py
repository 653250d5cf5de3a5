"""[audio] -> the tower that encodes clips."""

from __future__ import annotations

from spaninfer_engine.spec.attention_nodes import Heads, RaggedAttention
from spaninfer_engine.spec.sections.tower_reader import TowerReader
from spaninfer_engine.spec.tower_nodes import TAPS, AudioTower
from spaninfer_engine.spec.weight_nodes import Linear, Weight


class AudioReader(TowerReader):
    """Reads [audio] once and makes the tower."""

    section = "audio"
    probe = "conv1"

    def tower(self) -> AudioTower:
        """Return the tower."""
        hidden, rows = self.hidden, self._size("rows")
        projector = self.maker.name("projector")
        return AudioTower(
            kinds=("audio",),
            hidden=hidden,
            width=self._width,
            heads=self._heads,
            mels=self._size("mels"),
            max_rows=rows,
            pool=self._size("pool"),
            conv1=self._convolution("conv1", self._size("mels")),
            conv2=self._convolution("conv2", hidden),
            act=self._act,
            positions=Weight(self.whole_name("pos"), (rows, hidden)),
            layers=tuple(self._layer(index, self._attention) for index in range(self._layers)),
            norm=self.norm(self.name("final_norm"), hidden),
            projector=self.maker.linear(projector, self._width, hidden, bias=True, split=0),
            extra=self._extra(),
        )

    def _extra(self) -> Weight | None:
        """Return the rows in front of and behind those of a clip."""
        name = self.maker.name("extra", self.maker.prefix, suffix="")
        return Weight(name, (2, self._width)) if name else None

    def _convolution(self, key: str, channels: int) -> Linear:
        name = self.name(key)
        weight = Weight(f"{name}.weight", (self.hidden, channels, TAPS))
        return Linear(weight, Weight(f"{name}.bias", (self.hidden,)))

    def _attention(self, within: str) -> RaggedAttention:
        dim = self.hidden // self._heads
        heads, qkv = (
            Heads(self._heads, self._heads, dim),
            self._split(within, bias=self._bias, key_bias=False),
        )
        return RaggedAttention(heads, qkv, self._out(within), dim**-0.5)
