"""Tokens to text and back: tokenizers of all kinds, chat templates, incremental decoding."""

from spaninfer_engine.text.detokenize import Detokenizer, StopFinder
from spaninfer_engine.text.sources import open_tokenizer
from spaninfer_engine.text.template import ChatTemplate, Prompt
from spaninfer_engine.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Prompt", "StopFinder", "Tokenizer", "open_tokenizer"]
