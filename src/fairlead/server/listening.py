"""Where the server listens, and by which names it is called there."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress

from fairlead.core.errors import BackendError
from fairlead.server.config import LOOPBACK


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound and takes connections, which wait until somebody answers. Raises BackendError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BackendError(f"cannot listen on {host}: {error.strerror}; --host is an address of this machine") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            told = f"port {port} on {host} is in use; choose another one with --port, or any free one with --port 0"
        elif error.errno == errno.EACCES:
            told = f"port {port} is for the superuser alone; choose one above 1023 with --port"
        else:
            told = f"cannot listen on {host}, port {port}: {error.strerror}; --host is an address of this machine"
        raise BackendError(told) from None
    return listener


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_wildcard(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def reachable(host: str) -> str:
    """What somebody on this machine puts into a URL."""
    if _is_wildcard(host):
        return "[::1]" if ":" in host else LOOPBACK
    return f"[{host}]" if ":" in host else host


def names(host: str, more: tuple[str, ...]) -> tuple[str, ...]:
    """By which clients may call it: as it listens, and as the configuration says. All of this machine's, if it listens
    everywhere."""
    own = (socket.gethostname(), socket.getfqdn()) if _is_wildcard(host) else (host,)
    return tuple(dict.fromkeys((*own, *more)))
