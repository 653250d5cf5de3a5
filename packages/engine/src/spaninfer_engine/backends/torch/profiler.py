"""A profile by torch: what threads and GPUs ran, for chrome://tracing and Perfetto."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class TorchProfiler:
    """torch's profiler: operators of torch, and every kernel on the GPU, whoever launched it."""

    def __init__(self) -> None:
        # It has to be stopped by the thread that started it.
        self._thread = ThreadPoolExecutor(1)
        gpus = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *gpus], experimental_config=every_thread
        )

    def start(self) -> None:
        """Begin."""
        self._thread.submit(self._profile.start).result()

    def stop(self, folder: Path, name: str) -> Path:
        """Write a trace under that name; return its path."""
        path = folder / f"{name}.trace.json.gz"
        with self._thread:
            self._thread.submit(self._profile.stop).result()
            self._thread.submit(self._profile.export_chrome_trace, str(path)).result()
        return path
