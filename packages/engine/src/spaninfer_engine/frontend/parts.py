"""The parts of a front, as the start of an engine finds them."""

from __future__ import annotations

from dataclasses import dataclass

from spaninfer_engine.config import Resolved
from spaninfer_engine.frontend.encoder import EncoderFront
from spaninfer_engine.preprocess.layout import MediaSetup
from spaninfer_engine.request.request import SamplingParams
from spaninfer_engine.text.template import ChatTemplate
from spaninfer_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontParts:
    """The parts of a front."""

    resolved: Resolved
    context: int  # tokens of prompt and answer together
    vocab: int
    tokenizer: Tokenizer
    template: ChatTemplate
    sampling: SamplingParams  # where a request brings none
    media: MediaSetup | None
    encoder: EncoderFront | None = None
