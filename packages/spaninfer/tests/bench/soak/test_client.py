import asyncio

import pytest
from spaninfer.bench.soak.client import Tally, Target


def talk(answer, *, closes=True):
    """Have a server that knows one answer asked; return the tally, the body and what was asked."""
    asked = []

    async def serve(reader, writer):
        asked.append(await reader.readuntil(b"}"))
        writer.write(answer)
        await writer.drain()
        if closes:
            writer.close()

    async def drive():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            target = Target(*server.sockets[0].getsockname(), key="k")
            tally = Tally()
            body = await target.ask(target.post({"prompt": "x"}), tally)
        return tally, body, asked[0]

    return asyncio.run(drive())


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"


@pytest.mark.parametrize("answer", [LENGTH, CHUNKED])
def test_an_answer_is_read_to_its_end_and_no_further(answer):
    tally, body, asked = talk(answer, closes=False)

    assert body == b"hello"
    assert tally.summary()["answered"] == 1
    assert b"Authorization: Bearer k\r\n" in asked


@pytest.mark.parametrize("answer", [LENGTH[:-1], CHUNKED[:-6], LENGTH[:20], b""])
def test_an_answer_that_breaks_off_is_counted_as_cut(answer):
    tally, body, _ = talk(answer)

    assert body == b""
    assert tally.summary() == {
        "sent": 1, "answered": 0, "refused": 0, "failed": 0, "cut": 1, "lost": 0, "left": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, "answered"), (429, "refused"), (503, "refused"), (403, "refused"), (500, "failed")],
)
def test_statuses_are_sorted(status, kind):
    tally, _, _ = talk(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())

    assert tally.summary()[kind] == 1
