"""What stands before the explorer's server: host, origin and token are checked, and bodies are bounded."""

import hmac
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:  # imported where it is used: an extra
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TOKEN_HEADER = "x-fieldlens-token"
BODY = 1 << 20
"""Maximum size of a request in bytes."""
DRAINED = 64 << 20
"""Bytes of a body that is too large that are still read, so that the client sees the answer."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy of everything but the page."""


class TooLarge(Exception):
    """A request's body is larger than BODY."""


class Guard:
    """ASGI middleware that refuses requests of other sites, and of anybody without the token."""

    def __init__(self, app: "ASGIApp", token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        from starlette.datastructures import MutableHeaders
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":  # websockets are not offered
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in {**HEADERS, "Content-Security-Policy": NOTHING}.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self.refusal(Request(scope))
        if refusal is not None:
            status, reason = refusal
            await drain(receive)
            await PlainTextResponse(reason, status)(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)

    def refusal(self, request: "Request") -> tuple[int, str] | None:
        """Status and reason if a request is refused, else None."""
        host = request.headers.get("host", "")
        if not is_loopback(host):
            return 400, "bad host: this server answers to 127.0.0.1, localhost and [::1] only"
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, "requests from other sites are refused"
        # A page of another site may open this one only as a whole, in a tab of its own.
        site, mode = (request.headers.get(f"sec-fetch-{name}") for name in ("site", "mode"))
        if site in ("cross-site", "same-site") and mode != "navigate":
            return 403, "requests from other sites are refused"
        query = request.query_params.get("token", "") if request.url.path == "/" else ""
        given = request.headers.get(TOKEN_HEADER, "") or query
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return 403, "the token is missing or wrong: open the address that fieldlens explore printed"
        return None


def is_loopback(host: str) -> bool:
    """Whether a Host header names this machine; the port may be that of a tunnel."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname in LOOPBACK and parts.username is None and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


async def drain(receive: "Receive") -> None:
    """Read what is left of a request, up to DRAINED bytes."""
    size, more = 0, True
    while more and size <= DRAINED:
        message = await receive()
        size += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


async def bounded_body(request: "Request") -> bytes:
    """The body of a request; raises TooLarge beyond BODY bytes, after reading the rest."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= BODY:
            chunks.append(chunk)
        else:
            chunks.clear()
            if size > DRAINED:
                break
    if size > BODY:
        raise TooLarge
    return b"".join(chunks)
