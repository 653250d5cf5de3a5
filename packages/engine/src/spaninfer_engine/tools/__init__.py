"""The door for command lines and benchmarks: models on disk, machines, and what fits in them."""

from __future__ import annotations

from spaninfer_engine.backends.hardware import Machine
from spaninfer_engine.backends.host_memory import available_bytes, total_bytes
from spaninfer_engine.backends.registry import BACKENDS, CPU, CUDA
from spaninfer_engine.config import BackendName, DType, KVDType, Quantize, QuantizeGroup, Weights
from spaninfer_engine.load import open_checkpoint
from spaninfer_engine.load.folders.folder import has_weights
from spaninfer_engine.load.folders.hub_cache import cache_folder, find_model
from spaninfer_engine.load.packed.tensor_error import TensorError
from spaninfer_engine.load.quantised.zero_biases import is_zero_bias
from spaninfer_engine.nearest import did_you_mean
from spaninfer_engine.output.handle import complete
from spaninfer_engine.request.request import Grammar
from spaninfer_engine.request.texts import Task
from spaninfer_engine.sizes import parse_bytes
from spaninfer_engine.spec.describe import check_file as check_spec
from spaninfer_engine.spec.describe import list_specs
from spaninfer_engine.spec.describe import show as show_spec
from spaninfer_engine.startup.build import build, locate
from spaninfer_engine.startup.capacity import Capacity, Place, Room, capacity
from spaninfer_engine.startup.components import Parts
from spaninfer_engine.startup.hardware import free_bytes, has_driver, this_machine
from spaninfer_engine.startup.limits import SPAN_LEN
from spaninfer_engine.tools.conversion import convert
from spaninfer_engine.tools.cpu_tuning import Tuning, TuningRow, tune
from spaninfer_engine.tools.logits import logits_of

__all__ = [
    "BACKENDS",
    "CPU",
    "CUDA",
    "SPAN_LEN",
    "BackendName",
    "Capacity",
    "DType",
    "Grammar",
    "KVDType",
    "Machine",
    "Parts",
    "Place",
    "Quantize",
    "QuantizeGroup",
    "Room",
    "Task",
    "TensorError",
    "Tuning",
    "TuningRow",
    "Weights",
    "available_bytes",
    "build",
    "cache_folder",
    "capacity",
    "check_spec",
    "complete",
    "convert",
    "did_you_mean",
    "find_model",
    "free_bytes",
    "has_driver",
    "has_weights",
    "is_zero_bias",
    "list_specs",
    "locate",
    "logits_of",
    "open_checkpoint",
    "parse_bytes",
    "show_spec",
    "this_machine",
    "total_bytes",
    "tune",
]
