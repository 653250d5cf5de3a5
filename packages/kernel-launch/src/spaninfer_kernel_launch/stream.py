"""On which stream to launch: the handle of any framework's stream.

Nothing is launched on the legacy default stream for want of another: it is used only where the
framework that owns the arrays says that it is the current one, as torch does unless told otherwise.
"""

from __future__ import annotations

import sys
from typing import Any

from spaninfer_kernel_launch.errors import StreamMissing

_WAY_OUT = "pass stream=, such as torch.cuda.current_stream()"


def stream_handle(stream: object, array: object = None) -> int:
    """Return the driver's handle of `stream`.

    A stream is a handle, an object with `__cuda_stream__`, or a stream of torch or cupy. For None
    it is the current stream of the framework that made `array`. Raises StreamMissing for an array
    of no framework that has one, for the handle 0 and for what is no stream.
    """
    if stream is None:
        return current_stream(array)
    if isinstance(stream, int):
        if stream <= 0:
            raise StreamMissing(f"{stream} is not a stream of its own; {_WAY_OUT}")
        return stream
    if hasattr(stream, "__cuda_stream__"):
        _, handle = stream.__cuda_stream__()
        return int(handle)
    for name in ("cuda_stream", "ptr"):  # torch, cupy
        if isinstance(handle := getattr(stream, name, None), int):
            return handle
    raise StreamMissing(f"{type(stream).__name__} is not a stream; {_WAY_OUT}")


def current_stream(array: object) -> int:
    """Return the handle of the stream that the framework of `array` uses now, on its GPU.

    Arrays of classes that are made from a framework's are that framework's.
    """
    owners = {made.__module__.partition(".")[0] for made in type(array).__mro__}
    if "torch" in owners:
        torch: Any = sys.modules["torch"]
        return int(torch.cuda.current_stream(array.device).cuda_stream)  # type: ignore[attr-defined]
    if "cupy" in owners:
        cupy: Any = sys.modules["cupy"]
        return int(cupy.cuda.get_current_stream().ptr)
    raise StreamMissing(
        f"no stream is given, and {type(array).__name__} has no current one; {_WAY_OUT}"
    )
