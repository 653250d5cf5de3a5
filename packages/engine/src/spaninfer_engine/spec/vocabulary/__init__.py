"""The vocabulary of spec files: sections, keys, their types, defaults and meanings."""

from spaninfer_engine.spec.vocabulary.sections import KINDS, SECTIONS, TOP

__all__ = ["KINDS", "SECTIONS", "TOP"]
