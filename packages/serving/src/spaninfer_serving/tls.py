"""TLS of a server: a certificate and its key, from files of the operator's."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NoReturn

from spaninfer_engine import ConfigError


def tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Return the context of a server with this certificate chain, in PEM; no key: it is in there.

    TLS 1.2 and 1.3 with Python's choice of ciphers. Raises ConfigError for files that cannot be
    used, an encrypted key among them: a server that starts unattended cannot ask for it.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except OSError as reason:  # ssl.SSLError is one
        named = f"--ssl-certfile {certificate}" + ("" if key is None else f", --ssl-keyfile {key}")
        raise ConfigError(
            f"{named}: {reason.strerror or reason}; expected are a certificate chain and its "
            "private key, both in PEM"
        ) from reason
    return context


def _refuse_password() -> NoReturn:
    raise ConfigError(
        "--ssl-keyfile is encrypted; decrypt it (openssl pkey -in KEY -out PLAIN) and "
        "make it readable for the server's user only"
    )
