"""A model whose weights are packed once, and mapped at every start."""

from pathlib import Path

from spaninfer import Engine, SamplingParams
from spaninfer_engine.convert import convert

folder = convert("demo", Path("demo-int8"), quantize="int8")

with Engine(folder) as engine:
    print(engine.generate("Once upon a time", SamplingParams(max_tokens=24)).text)
