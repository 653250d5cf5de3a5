import asyncio
import socket

import pytest
from spaninfer_engine import ConfigError
from spaninfer_serving import Settings
from spaninfer_serving.http.listener import bind, url_of


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
            return await asyncio.wait_for(found.get(), 120)

    return asyncio.run(drive())


@pytest.mark.parametrize(
    "option",
    [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY),  # else an answer waits 40 ms for its own head
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),  # else a client that vanished is never missed
    ],
)
def test_connections_send_at_once_and_notice_dead_clients(option):
    assert accepted(bind(Settings(port=0)), option) != 0


def test_the_system_keeps_little_of_an_answer_that_is_not_read():
    assert accepted(bind(Settings(port=0)), (socket.SOL_SOCKET, socket.SO_SNDBUF)) <= 1 << 20


def test_the_url_is_where_the_listener_is():
    with bind(Settings(port=0)) as listener:
        assert url_of(listener, Settings()) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_the_url_of_a_server_at_all_addresses_leads_to_it_from_here():
    with bind(Settings(host="0.0.0.0", port=0, no_auth=True)) as listener:
        assert url_of(listener, Settings()) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_port_that_is_taken_says_what_to_do():
    with bind(Settings(port=0)) as taken:
        port = taken.getsockname()[1]
        taken.listen()

        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*--port"):
            bind(Settings(port=port))


def test_a_host_that_is_no_name_of_this_machine_says_what_to_do():
    with pytest.raises(ConfigError, match=r"cannot listen on nowhere\.invalid.*another --host"):
        bind(Settings(host="nowhere.invalid", no_auth=True))
