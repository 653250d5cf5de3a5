"""A conversation in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

import typer
from spaninfer_engine import Engine, NoMemory, PromptTooLong, RequestError, SamplingParams
from spaninfer_engine.tools import did_you_mean

from spaninfer import show
from spaninfer.chat_input import read_message
from spaninfer.interrupts import Interrupts

LOOK_S = 0.1  # how often a wait for the next token looks whether Ctrl-C came

HELP = '''\
/system TEXT  set the system prompt, or with no TEXT show it
/clear        forget the conversation
/bye          end the chat, as Ctrl-D does
""" or a \\     begin a message of several lines, which """ ends; continue a line in the next
Ctrl-C        stop an answer, or drop the line that is being typed
A message that begins with / is typed after a space.'''

ELSEWHERE_BYE = ("/exit", "/quit", "/q")  # of other programs

Message: TypeAlias = dict[str, str]


class Chat:
    """Asks, answers, and remembers, until the input ends.

    Raises TemplateError, before anything is asked, where the model has no template for this.
    """

    def __init__(self, engine: Engine, sampling: SamplingParams, system: str | None) -> None:
        self._engine, self._sampling = engine, sampling
        self._system = [_message("system", system)] if system else []
        self._turns: list[Message] = []
        self._is_open = True
        self._commands: Mapping[str, Callable[[str], None]] = {
            "/help": lambda _: show.note(HELP),
            "/system": self._set_system,
            "/clear": self._clear,
            "/bye": self._leave,
        }
        self._try(self._system)

    def run(self) -> None:
        """Talk until /bye or the end of the input."""
        show.note(f"{self._engine.resolved.name}, context {self._engine.context:,} tokens")
        show.note("/help lists the commands; /bye or Ctrl-D ends the chat")
        with Interrupts() as interrupts:
            while self._is_open:
                self._turn(interrupts)

    def _turn(self, interrupts: Interrupts) -> None:
        try:
            with interrupts.raised():
                text = read_message()
        except EOFError:
            typer.echo()
            self._is_open = False
        except KeyboardInterrupt:
            typer.echo()
            show.note("/bye or Ctrl-D ends the chat")
        else:
            if text.startswith("/"):
                self._command(text)
            elif text.strip():
                self._ask(text, interrupts)

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        if name in self._commands:
            self._commands[name](rest.strip())
        else:
            hint = did_you_mean(name, self._commands) or "; /help lists them"
            if name in ELSEWHERE_BYE:
                hint = "; /bye or Ctrl-D ends the chat"
            show.failure(f"there is no command {name!r}{hint}")

    def _ask(self, text: str, interrupts: Interrupts) -> None:
        """Answer a question; one that cannot be answered is forgotten, and the chat goes on."""
        self._turns.append(_message("user", text))
        try:
            answer = self._answer(interrupts)
        except (RequestError, NoMemory) as error:
            show.failure(str(error))
            self._turns.pop()
            if isinstance(error, PromptTooLong) and self._turns:
                show.note("/clear makes room by starting a new conversation")
        else:
            self._turns.append(_message("assistant", answer))

    def _answer(self, interrupts: Interrupts) -> str:
        """Print the answer as it comes, and return it; Ctrl-C keeps what came so far."""
        engine = self._engine
        prompt_ids = engine.encode_chat([*self._system, *self._turns])
        handle, queue = engine.start_request(prompt_ids, self._sampling)
        pieces: list[str] = []
        try:
            while not interrupts.came:
                with suppress(TimeoutError):
                    if (output := queue.get(timeout=LOOK_S)) is None:
                        break
                    if output.error is not None:
                        raise output.error
                    pieces.append(output.text)
                    typer.echo(output.text, nl=False)
        finally:
            engine.release(handle)
            typer.echo()
        return "".join(pieces)

    def _set_system(self, text: str) -> None:
        if text:
            system = [_message("system", text)]
            try:
                self._try(system)
            except RequestError as error:
                show.failure(str(error))
                return
            self._system = system
        for message in self._system:
            show.note(f"system: {message['content']}")
        if not self._system:
            show.note("no system prompt; set one with /system TEXT")

    def _clear(self, _: str) -> None:
        self._turns.clear()
        show.note("conversation cleared")

    def _leave(self, _: str) -> None:
        self._is_open = False

    def _try(self, system: list[Message]) -> None:
        """Raise what the template has against a conversation that begins so."""
        self._engine.encode_chat([*system, _message("user", "Hello!")])


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}
