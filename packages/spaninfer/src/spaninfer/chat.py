"""A conversation in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import typer
from spaninfer_engine import Engine, RequestError, SamplingParams

from spaninfer import show

with suppress(ImportError):  # where there is none, as on Windows, the console edits lines
    import readline  # noqa: F401  # gives `input` arrow keys and the questions asked before


def converse(engine: Engine, sampling: SamplingParams, system: str | None) -> None:
    """Ask, answer, and remember, until the input ends.

    Raises TemplateError, before anything is asked, where the model has no template for this.
    """
    messages = [{"role": "system", "content": system}] if system else []
    engine.encode_chat([*messages, {"role": "user", "content": "Hello!"}])
    while (text := _ask()) is not None:
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        try:
            answer = _answer(engine, sampling, messages)
        except RequestError as error:  # too long, or refused by the template: the chat goes on
            show.failure(str(error))
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _ask() -> str | None:
    try:
        return input("> ")
    except (EOFError, KeyboardInterrupt):
        typer.echo()
        return None


def _answer(engine: Engine, sampling: SamplingParams, messages: Sequence[dict[str, str]]) -> str:
    """Print the answer as it comes, and return it; Ctrl-C keeps what came so far."""
    handle, queue = engine.start_request(engine.encode_chat(messages), sampling)
    pieces: list[str] = []
    try:
        for output in queue:
            if output.error is not None:
                raise output.error
            pieces.append(output.text)
            typer.echo(output.text, nl=False)
    except KeyboardInterrupt:
        pass
    finally:
        engine.release(handle)
        typer.echo()
    return "".join(pieces)
