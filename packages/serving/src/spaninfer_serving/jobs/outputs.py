"""The outputs of a job's requests, as one async iterator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self

from spaninfer_engine import Output, OutputStream

Ended = Callable[[Output], None]
"""Called with the last output of each choice."""


def outputs_of(
    streams: Sequence[OutputStream], choices: int, ended: Ended
) -> AsyncIterator[tuple[int, Output]]:
    """Return (prompt * choices + index, output) of several requests as they come."""
    return _Outputs(streams[0], ended) if len(streams) == 1 else _merged(streams, choices, ended)


class _Outputs:
    """The outputs of one request; to stop reading stops it (`OutputStream`)."""

    def __init__(self, stream: OutputStream, ended: Ended) -> None:
        self._stream, self._ended = stream, ended

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Output]:
        output = await self._stream.__anext__()
        if output.usage is not None:
            self._ended(output)
        return output.index, output


async def _merged(
    streams: Sequence[OutputStream], choices: int, ended: Ended
) -> AsyncIterator[tuple[int, Output]]:
    outputs: asyncio.Queue[tuple[int, Output] | Exception | None] = asyncio.Queue()

    async def drain(number: int, stream: OutputStream) -> None:
        try:
            async for index, output in _Outputs(stream, ended):
                outputs.put_nowait((number * choices + index, output))
        except Exception as error:
            outputs.put_nowait(error)
        outputs.put_nowait(None)

    tasks = [asyncio.ensure_future(drain(i, stream)) for i, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            match await outputs.get():
                case None:
                    running -= 1
                case Exception() as error:
                    raise error
                case found:
                    yield found
    finally:
        for task, stream in zip(tasks, streams, strict=True):
            task.cancel()
            stream.close()
