"""The door for command lines and benchmarks: models on disk, machines, and what fits in them."""

from typing import TYPE_CHECKING

from spaninfer_engine.lazy import lazily

if TYPE_CHECKING:
    from spaninfer_engine.backends.hardware import Machine
    from spaninfer_engine.backends.host_memory import available_bytes, total_bytes
    from spaninfer_engine.backends.registry import BACKENDS, CPU, CUDA
    from spaninfer_engine.config import (
        BackendName,
        DType,
        KVDType,
        Quantize,
        QuantizeGroup,
        Weights,
    )
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
    from spaninfer_engine.startup.build import build
    from spaninfer_engine.startup.capacity import Capacity, Place, Room, capacity
    from spaninfer_engine.startup.components import Parts
    from spaninfer_engine.startup.hardware import free_bytes, has_driver, this_machine
    from spaninfer_engine.startup.limits import SPAN_LEN
    from spaninfer_engine.startup.model import locate
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

__getattr__, __dir__ = lazily(
    globals(),
    {
        "BACKENDS": "backends.registry.BACKENDS",
        "BackendName": "config.BackendName",
        "CPU": "backends.registry.CPU",
        "CUDA": "backends.registry.CUDA",
        "Capacity": "startup.capacity.Capacity",
        "DType": "config.DType",
        "Grammar": "request.request.Grammar",
        "KVDType": "config.KVDType",
        "Machine": "backends.hardware.Machine",
        "Parts": "startup.components.Parts",
        "Place": "startup.capacity.Place",
        "Quantize": "config.Quantize",
        "QuantizeGroup": "config.QuantizeGroup",
        "Room": "startup.capacity.Room",
        "SPAN_LEN": "startup.limits.SPAN_LEN",
        "Task": "request.texts.Task",
        "TensorError": "load.packed.tensor_error.TensorError",
        "Tuning": "tools.cpu_tuning.Tuning",
        "TuningRow": "tools.cpu_tuning.TuningRow",
        "Weights": "config.Weights",
        "available_bytes": "backends.host_memory.available_bytes",
        "build": "startup.build.build",
        "cache_folder": "load.folders.hub_cache.cache_folder",
        "capacity": "startup.capacity.capacity",
        "check_spec": "spec.describe.check_file",
        "complete": "output.handle.complete",
        "convert": "tools.conversion.convert",
        "did_you_mean": "nearest.did_you_mean",
        "find_model": "load.folders.hub_cache.find_model",
        "free_bytes": "startup.hardware.free_bytes",
        "has_driver": "startup.hardware.has_driver",
        "has_weights": "load.folders.folder.has_weights",
        "is_zero_bias": "load.quantised.zero_biases.is_zero_bias",
        "list_specs": "spec.describe.list_specs",
        "locate": "startup.model.locate",
        "logits_of": "tools.logits.logits_of",
        "open_checkpoint": "load.open_checkpoint",
        "parse_bytes": "sizes.parse_bytes",
        "show_spec": "spec.describe.show",
        "this_machine": "startup.hardware.this_machine",
        "total_bytes": "backends.host_memory.total_bytes",
        "tune": "tools.cpu_tuning.tune",
    },
)
