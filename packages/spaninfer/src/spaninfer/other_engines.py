"""Options of vLLM, SGLang and llama.cpp, with what stands for each of them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ONE_GPU: Final = "A model runs on one GPU."
_ONE_DEVICE: Final = "All layers run on one device: --device."
_CACHED: Final = "That is the default; leave it out."
_DETECTED: Final = "It is detected from the chat template; leave it out."
_NO_ADAPTERS: Final = "Adapters are not supported; merge them into the weights."

SAID: Final[Mapping[str, str]] = {
    "--model": "The model is the first argument.",
    "-m": "The model is the first argument.",
    "--prompt": "The prompt is the argument after the model.",
    "--revision": "It follows the name: ORG/NAME@REVISION.",
    "--task": "It is read from the model's files; leave it out.",
    "--trust-remote-code": "Code in model files is never executed; leave it out.",
    "--download-dir": "The variable HF_HUB_CACHE names the folder.",
    "--max-model-len": "Here it is --max-len.",
    "--context-length": "Here it is --max-len.",
    "--ctx-size": "Here it is --max-len.",
    "--kv-cache-memory": "Here it is --memory.",
    "--kv-cache-memory-bytes": "Here it is --memory.",
    "--gpu-memory-utilization": "--memory sets the size of the KV cache, as in 8GiB.",
    "--mem-fraction-static": "--memory sets the size of the KV cache, as in 8GiB.",
    "--max-num-seqs": "Here it is --max-running.",
    "--max-running-requests": "Here it is --max-running.",
    "--parallel": "Here it is --max-running.",
    "--max-num-batched-tokens": "Here it is --step-tokens.",
    "--chunked-prefill-size": "Here it is --step-tokens.",
    "--block-size": "Here it is --span-len.",
    "--page-size": "Here it is --span-len.",
    "--kv-cache-dtype": "Here it is --kv-dtype.",
    "--quantization": "Quantised checkpoints are recognised; --quantize quantises others.",
    "--enable-prefix-caching": _CACHED,
    "--enable-chunked-prefill": _CACHED,
    "--no-enable-prefix-caching": "Here it is --no-prefix-cache.",
    "--disable-radix-cache": "Here it is --no-prefix-cache.",
    "--enforce-eager": "Here it is --no-graphs.",
    "--disable-cuda-graph": "Here it is --no-graphs.",
    "--enable-auto-tool-choice": _DETECTED,
    "--reasoning-parser": _DETECTED,
    "--tool-call-parser": "Here it is --tool-parser, and rarely needed.",
    "--tensor-parallel-size": _ONE_GPU,
    "--pipeline-parallel-size": _ONE_GPU,
    "--data-parallel-size": _ONE_GPU,
    "--n-gpu-layers": _ONE_DEVICE,
    "--gpu-layers": _ONE_DEVICE,
    "--enable-lora": _NO_ADAPTERS,
    "--lora": _NO_ADAPTERS,
    "--lora-modules": _NO_ADAPTERS,
    "--speculative-config": "Speculative decoding is not supported.",
    "--disable-log-requests": "Here it is --quiet.",
    "--workers": "Here it is --api-server-count.",
    "--temp": "Here it is --temperature.",
    "--n-predict": "Here it is --max-tokens.",
}
"""By the option's name there: a sentence to follow "No such option: NAME."."""
