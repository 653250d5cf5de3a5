"""Structured output: schemas, regexes and grammars, compiled by llguidance into token masks."""

from spaninfer_engine.grammar.compiler import GrammarCompiler

__all__ = ["GrammarCompiler"]
