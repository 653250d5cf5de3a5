"""Model descriptions: TOML specs, and the tree they resolve to.

find(config) or load(name) -> ModelSpec -> resolve(spec, config, names) -> Decoder | Encoder
"""

from spaninfer_engine.spec.check import check
from spaninfer_engine.spec.nodes import Decoder, Encoder, Model
from spaninfer_engine.spec.read import ModelSpec
from spaninfer_engine.spec.registry import find, load
from spaninfer_engine.spec.resolve import TowerNotUsed, UnreadConfigKeys, resolve
from spaninfer_engine.spec.tree import parameter_count, weights
from spaninfer_engine.spec.weight_nodes import Weight

__all__ = [
    "Decoder",
    "Encoder",
    "Model",
    "ModelSpec",
    "TowerNotUsed",
    "UnreadConfigKeys",
    "Weight",
    "check",
    "find",
    "load",
    "parameter_count",
    "resolve",
    "weights",
]
