"""What people read is what was said: brackets in it are no markup."""

from types import SimpleNamespace

import pytest
from rich.console import Console
from spaninfer import show
from spaninfer_engine.config import Decision


@pytest.fixture
def said(monkeypatch):
    """What makes a call, and returns what it prints on standard error."""

    def during(call, *arguments):
        console = Console(width=200, color_system=None)
        monkeypatch.setattr(show, "_err", console)
        with console.capture() as printed:
            call(*arguments)
        return printed.get()

    return during


@pytest.mark.parametrize(
    "sentence",
    ["pip install 'spaninfer[cuda]'", "closed [/bold] and [/]", r"C:\[models]\tiny", "[red]"],
)
def test_brackets_are_printed_as_they_are(said, sentence):
    decided = SimpleNamespace(
        name=sentence,
        architecture="llama",
        decisions=(Decision("backend", "torch", sentence), Decision("name", sentence, "asked for")),
    )

    assert said(show.failure, sentence) == f"error: {sentence}\n"
    assert said(show.warning, sentence) == f"warning: {sentence}\n"
    assert said(show.note, sentence) == f"{sentence}\n"
    assert said(show.decisions, decided).count(sentence) == 3
    assert sentence in said(show.addresses, "http://127.0.0.1:8000", decided)
