import json
import random
from itertools import pairwise

import pytest
from spaninfer_serving.wire import contents
from spaninfer_serving.wire.contents import Contents, check_contents, count
from spaninfer_serving.wire.errors import Problem


def walked(value):
    """What a value holds, by walking through it: (marks, numbers)."""
    match value:
        case dict():
            inner = [walked(each) for each in value.values()]
            # a bracket, a colon each, and a comma between two
            marks = 1 + len(value) + max(len(value) - 1, 0)
        case list():
            inner = [walked(each) for each in value]
            numbers = sum(is_number(a) and is_number(b) for a, b in pairwise(value))
            inner.append((-numbers, numbers))
            marks = 1 + max(len(value) - 1, 0)
        case _:
            return 0, 0
    return marks + sum(pair[0] for pair in inner), sum(pair[1] for pair in inner)


def is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def made(source, depth=0):
    """Return a random value with strings that look like what is counted."""
    kind = source.randrange(7 if depth < 4 else 5)
    if kind == 5:
        return [made(source, depth + 1) for _ in range(source.randrange(5))]
    if kind == 6:
        return {text(source): made(source, depth + 1) for _ in range(source.randrange(5))}
    return [source.randrange(-99, 99), source.random(), None, True, text(source)][kind]


def text(source):
    return "".join(source.choice('\\\\""[{:,12 é\n') for _ in range(source.randrange(8)))


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 18])
@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"separators": (",", ":")}], ids=str)
def test_what_stands_outside_of_strings_is_counted_wherever_pieces_are_cut(
    monkeypatch, piece, options
):
    monkeypatch.setattr(contents, "PIECE", piece)
    source = random.Random(piece)

    for _ in range(40):
        value = [made(source) for _ in range(4)]
        body = json.dumps(value, **options).encode()
        assert count(body) == Contents(*walked(value)), body


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' + b"[1]," * 70_000,
        b"{" + b'"a":1,' * 40_000 + b'"b":2}',
        b'["a",' * 70_000,
        b"[" + b"true," * 70_000 + b"1]",
        b"[" + b"1," * 1_050_000 + b"1]",
        b"[" + b" 1 ," * 1_050_000 + b"1]",
    ],
    ids=lambda body: body[:8].decode(),
)
def test_a_body_of_too_many_values_is_refused(body):
    with pytest.raises(Problem, match="too many values") as refused:
        check_contents(body)

    assert (refused.value.status, refused.value.code) == (400, "too_many_values")


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "' + b"[{:,1,2," * 200_000 + b'"}',
        b'{"prompt": "' + rb"\"[,\\" * 200_000 + b'"}',
        b'{"prompt": [' + b"151643, " * 1_000_000 + b"1]}",
        b" " * 2_000_000 + b"{}",
        b"",
    ],
    ids=lambda body: body[:24].decode(),
)
def test_a_long_text_and_a_million_ids_are_let_through(body):
    check_contents(body)
