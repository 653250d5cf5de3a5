import asyncio
import socket

import pytest
from spaninfer_engine import ConfigError
from spaninfer_serving import Settings
from spaninfer_serving.server import _listen, _url


def accepted(listener, option):
    """Return a socket option of a connection that asyncio accepts from the listener."""
    found = asyncio.Queue()

    class Keeping(asyncio.Protocol):
        def connection_made(self, transport):
            found.put_nowait(transport.get_extra_info("socket").getsockopt(*option))
            transport.close()

    async def drive():
        server = await asyncio.get_running_loop().create_server(Keeping, sock=listener)
        async with server:
            _, writer = await asyncio.open_connection(*listener.getsockname())
            writer.close()
            return await asyncio.wait_for(found.get(), 20)

    return asyncio.run(drive())


@pytest.mark.parametrize(
    "option",
    [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY),  # else an answer waits 40 ms for its own head
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),  # else a client that vanished is never missed
    ],
)
def test_connections_send_at_once_and_notice_dead_clients(option):
    assert accepted(_listen(Settings(port=0)), option) != 0


def test_the_url_is_where_the_listener_is():
    with _listen(Settings(port=0)) as listener:
        assert _url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_port_that_is_taken_says_what_to_do():
    with _listen(Settings(port=0)) as taken:
        port = taken.getsockname()[1]
        taken.listen()

        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*--port"):
            _listen(Settings(port=port))
