"""Made-up photographs, and the check that a model takes images at all."""

from __future__ import annotations

from io import BytesIO
from typing import Final

import numpy as np
from spaninfer_engine import Engine, UnsupportedTask

_GRAIN: Final = 16  # pixels between the points of colour: it packs as a photograph does


def photograph(side: int, seed: int) -> bytes:
    """Return a JPEG of soft colours, another one for each seed."""
    from PIL import Image

    grains = np.random.default_rng(seed).integers(0, 256, (side // _GRAIN, side // _GRAIN, 3))
    data = BytesIO()
    small = Image.fromarray(grains.astype(np.uint8))
    small.resize((side, side), Image.Resampling.BICUBIC).save(data, "JPEG", quality=90)
    return data.getvalue()


def check_takes_images(engine: Engine) -> None:
    """Raise UnsupportedTask for a model that takes no images."""
    processor = engine.media_processor
    if processor is None or "image" not in processor.kinds:
        raise UnsupportedTask(
            f"{engine.resolved.name} takes no images: name a vision-language model"
        )
