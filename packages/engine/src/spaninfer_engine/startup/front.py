"""The front of a model that an engine of another process computes."""

from __future__ import annotations

from spaninfer_engine.config import EngineConfig, Resolved
from spaninfer_engine.frontend.encoder import EncoderFront
from spaninfer_engine.frontend.parts import FrontParts
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.packed.file import PackedReader
from spaninfer_engine.load.packed.packing import as_packed
from spaninfer_engine.spec import Encoder
from spaninfer_engine.startup.assets import open_texts
from spaninfer_engine.startup.media import media_setup
from spaninfer_engine.startup.model import locate, resolve_model


def open_front(asked: EngineConfig, resolved: Resolved, context: int) -> FrontParts:
    """Return the parts of a front, of the options of an engine and what it decided.

    Weights stay on disk. Raises what `build` raises for a model's files.
    """
    path, _ = locate(asked.model)
    with open_checkpoint(path, with_weights=asked.weights != "dummy") as checkpoint:
        if isinstance(checkpoint.reader, PackedReader):
            asked = as_packed(asked, checkpoint.reader.packing)
        model = resolve_model(asked, checkpoint)
        texts = open_texts(asked, checkpoint, model, resolved.name)
        return FrontParts(
            resolved=resolved,
            context=context,
            vocab=model.vocab,
            tokenizer=texts.tokenizer,
            template=texts.template,
            sampling=texts.sampling,
            media=media_setup(checkpoint.path, model),
            encoder=EncoderFront.new(model, texts.tokenizer, texts.template, context)
            if isinstance(model, Encoder)
            else None,
        )
