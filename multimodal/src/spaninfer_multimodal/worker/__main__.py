"""A decoder process: reads jobs from standard input, answers on standard output, one at a time."""

from __future__ import annotations

import os
import sys

from spaninfer_multimodal.errors import MediaError, TooLarge
from spaninfer_multimodal.worker.confine import confine
from spaninfer_multimodal.worker.jobs import Job, Media, from_json
from spaninfer_multimodal.worker.wire import BadAnswer, read_message, write_answer


def main(max_memory_bytes: int) -> None:
    """Serve jobs until standard input is closed."""
    jobs = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries' output must not be read as an answer
    confine(max_memory_bytes)
    while True:
        try:
            header, data = read_message(jobs, max_memory_bytes)
        except BadAnswer:
            return
        write_answer(answers, _run(from_json(header), bytes(data), max_memory_bytes))


def _run(job: Job, data: bytes, max_memory_bytes: int) -> Media | MediaError:
    """Return the result of a job, errors included."""
    try:
        return job.run(data)
    except MediaError as error:
        return error
    except MemoryError:
        return TooLarge(
            f"decoding takes more than {max_memory_bytes} bytes of memory, which is the limit"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
