"""Interactive chat."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from time import monotonic

import pytest
from spaninfer.chat_input import read_message

GREEDY = ("--temperature", "0", "--max-tokens", "12")
LIMIT_S = 300  # only ends a test that has failed


def answers(result):
    assert result.exit_code == 0, result.output
    return [text.strip() for text in result.stdout.split("> ")]


def test_the_banner_names_the_model_and_the_ways_out_beside_the_answers(call):
    result = call("chat", "--max-len", "512", *GREEDY, typed="")

    assert "demo, context 512 tokens" in result.stderr
    assert "/help" in result.stderr
    assert "/bye or Ctrl-D ends the chat" in result.stderr
    assert result.stdout.strip() == ">"


def test_bye_ends_a_chat_before_the_input_does(call):
    assert len(answers(call("chat", *GREEDY, typed="/bye\nHello!\n"))) == 2


def test_help_names_every_command(call):
    said = call("chat", *GREEDY, typed="/help\n").stderr

    for name in ("/system", "/clear", "/bye", "Ctrl-C", '"""'):
        assert name in said


def test_what_was_said_is_part_of_the_next_prompt_until_it_is_cleared(call):
    """The context holds one of these questions and its answer, and not two."""
    question = f"{'word ' * 60}\n"
    options = ("--max-len", "120", *GREEDY)

    kept = call("chat", *options, typed=question * 2)
    cleared = call("chat", *options, typed=f"{question}/clear\n{question}")

    assert [bool(text) for text in answers(kept)] == [False, True, False, False]
    assert kept.stderr.count("the prompt has") == 1
    assert "/clear makes room" in kept.stderr
    assert "error" not in cleared.stderr
    assert answers(cleared)[3] == answers(cleared)[1]


def test_a_system_message_is_that_of_the_option(call):
    told = answers(call("chat", "--system", "You are a crow.", *GREEDY, typed="Who are you?\n"))
    result = call("chat", *GREEDY, typed="/system You are a crow.\nWho are you?\n/system\n")

    assert answers(result)[2] == told[1]
    assert result.stderr.count("system: You are a crow.") == 2


def test_an_unknown_command_is_refused_with_the_nearest_and_not_sent(call):
    result = call("chat", *GREEDY, typed="/claer\n/etc/passwd is a file\n/quit\n")

    assert answers(result) == ["", "", "", "", ""]
    assert "'/quit'; /bye or Ctrl-D ends the chat" in result.stderr
    assert "there is no command '/claer'; did you mean '/clear'?" in result.stderr
    assert "'/etc/passwd'; /help lists them" in result.stderr


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["one"], "one"),
        (["one \\", "two\\", "three"], "one \ntwo\nthree"),
        (['"""', "one", "", "two", '"""'], "one\n\ntwo"),
        (['"""one', 'two""" '], "one\ntwo"),
        (['"""one"""'], "one"),
        ([' """/bye', '"""'], "/bye"),
    ],
)
def test_messages_may_have_several_lines(monkeypatch, typed, message):
    lines = iter(typed)
    monkeypatch.setattr("builtins.input", lambda _: next(lines))

    assert read_message() == message
    assert list(lines) == []


class Terminal:
    """A chat behind a pseudo-terminal."""

    def __init__(self):
        import pty

        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "spaninfer", "chat", "--seed", "1", "--max-tokens", "3000"]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.shown, self._more = "", threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                piece = os.read(self._ours, 65536).decode(errors="replace")
            except OSError:
                return
            with self._more:
                self.shown += piece
                self._more.notify_all()

    def wait_for(self, *texts, after=0):
        """Wait until all of these were shown behind a place; return the place behind that."""
        end = monotonic() + LIMIT_S
        with self._more:
            while not all(text in self.shown[after:] for text in texts):
                assert self._more.wait(end - monotonic()), self.shown
            return len(self.shown)

    def type(self, text):
        os.write(self._ours, text.encode())

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def interrupt_until(self, *texts, after):
        """Press Ctrl-C until these are shown: readline misses one that comes while it echoes."""
        end = monotonic() + LIMIT_S
        while not all(text in self.shown[after:] for text in texts):
            assert monotonic() < end, self.shown
            self.interrupt()
            with self._more:
                self._more.wait(1)
        return len(self.shown)

    def leave(self):
        """Type /bye until the chat ends: a Ctrl-C that readline missed drops the next line."""
        end = monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert monotonic() < end, self.shown
            self.type("/bye\n")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        return self.process.returncode

    def close(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._ours)


@pytest.fixture
def terminal():
    pytest.importorskip("pty", reason="there are no pseudo-terminals here")
    chat = Terminal()
    yield chat
    chat.close()


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_drops_a_line_and_never_ends_the_chat(terminal):
    place = terminal.wait_for("/bye or Ctrl-D", "> ")
    terminal.type("Tell me a long fable about a fox.\n")
    terminal.wait_for("fox.\r\n", after=place)
    begun = place + len("Tell me a long fable about a fox.\r\n")
    while len(terminal.shown) < begun + 20:  # the answer has begun
        terminal.wait_for(" ", after=len(terminal.shown))
    for _ in range(3):  # as an impatient person does
        terminal.interrupt()
    place = terminal.wait_for("\r\n> ", after=begun)

    terminal.type("half a line")
    terminal.wait_for("half a line", after=place)
    place = terminal.interrupt_until("ends the chat", "\n> ", after=place)

    terminal.type("And the crow?\n")
    terminal.wait_for("crow?\r\n", after=place)
    terminal.interrupt()
    terminal.wait_for("\r\n> ", after=place + len("And the crow?"))

    assert terminal.leave() == 0
    assert "Traceback" not in terminal.shown
    assert "error:" not in terminal.shown
