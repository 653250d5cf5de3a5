"""The socket at which a server listens, and its URL."""

from __future__ import annotations

import socket

from spaninfer_engine import ConfigError

from spaninfer_serving.settings import Settings

# Of an answer that is not read the system keeps so much, doubled by Linux, 4 MB by default. At
# 100 ms to the client and back it still carries 5 MB/s.
UNREAD_BYTES = 1 << 18


def bind(settings: Settings) -> socket.socket:
    """Return a socket bound to the address of the settings; it does not accept connections yet.

    For programs that check the address before they load a model. Raises ConfigError if the address
    does not exist or is in use.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is said to be TCP; with it, every
    # answer would wait 40 ms for the client's acknowledgement of its head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit it
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        listener.bind((settings.host, settings.port))
    except OSError as reason:
        listener.close()
        raise taken(settings, reason) from reason
    return listener


def taken(settings: Settings, reason: OSError) -> ConfigError:
    """Return the error of an address that cannot be listened on."""
    return ConfigError(
        f"cannot listen on {settings.host}:{settings.port}: {reason.strerror}; "
        "choose another --host or --port (--port 0 takes any free one)"
    )


def url_of(listener: socket.socket, settings: Settings) -> str:
    """Return the URL of a listener; of one at all addresses, that which this machine has for it."""
    scheme = "http" if settings.ssl_certfile is None else "https"
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
