"""The guard of the server: only the page that it served itself may call it.

A page of another site that is open in the same browser can send requests to 127.0.0.1. Its requests carry an ``Origin``
or ``Sec-Fetch-Site`` header that says so. With a name of its own that leads to 127.0.0.1 (DNS rebinding) it would be of
the same origin, but then the ``Host`` header has that name. Starlette's ``TrustedHostMiddleware`` does not serve here:
it cannot allow every IP address without allowing every name, and its older versions do not know ``[::1]``.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Sent with every response. The page loads nothing from elsewhere and may not be framed.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def allowed_hosts(host: str) -> frozenset[str]:
    """Return the names under which a server on this address may be called."""
    names = {*_LOOPBACK, host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def is_loopback(host: str) -> bool:
    """Tell whether an address is reached from this machine only."""
    return host == "localhost" or getattr(_number(host), "is_loopback", False)


def _number(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a name spells, or None."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _address(text: str) -> SplitResult:
    """Return the parts of an address; of a malformed one, such as ``http://[bad``, empty parts."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


class Guard:
    """A middleware that refuses requests of foreign pages, and sends :data:`HEADERS` with every response.

    The server may be called by the names ``hosts`` or, if it is on all addresses of the machine, by any IP address.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], any_address: bool = False) -> None:
        self.app, self.hosts, self.any_address = app, frozenset(hosts), any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # the server's start and end; there are no sockets to open
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        reason = self.refusal(scope["path"], Headers(scope=scope))
        app = JSONResponse({"error": reason}, 403) if reason else self.app
        await app(scope, receive, send_with_headers)

    def refusal(self, path: str, headers: Headers) -> str:
        """Return why a request is refused, or an empty text."""
        host = headers.get("host", "")
        if not self.knows(_address(f"//{host}").hostname or ""):
            return "This server does not answer under that name: use the address that it printed."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_foreign = origin is not None and _address(origin).netloc.lower() != host.lower()
        is_navigation = headers.get("sec-fetch-mode") == "navigate" and path == "/"
        if is_foreign or (site not in ("same-origin", "none") and not is_navigation):
            return "A page of another site may not use this server."
        return ""

    def knows(self, name: str) -> bool:
        """Tell whether the server may be called by this name."""
        return name.lower() in self.hosts or (self.any_address and _number(name) is not None)
