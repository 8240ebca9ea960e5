"""Who the explorer's server answers: pages of its own, under a name of this machine.

Listening on the loopback interface keeps other machines out, but not other pages in the same
browser: any of them may open a WebSocket to it, or give its own name the address 127.0.0.1 (DNS
rebinding).  Both show in the headers, and are turned away before Streamlit sees them; Streamlit
itself would ask a server outside for the address of this machine, to compare it with the origin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
"""ASGI, the interface between servers and applications in Python."""

NAMES = ("localhost", "127.0.0.1", "[::1]")
_REFUSAL = b"The explorer answers to this machine only, at http://localhost.\n"


class LoopbackOnly:
    """An application that answers requests to a loopback name, from nowhere or from its own page.

    Parameters
    ----------
    application : callable
        What answers them.
    port : int
        Of the server.

    Examples
    --------
    >>> guard = LoopbackOnly(print, 8501)
    >>> guard.answers([(b"host", b"localhost:8501"), (b"origin", b"http://localhost:8501")])
    True
    >>> guard.answers([(b"host", b"localhost:8501"), (b"origin", b"http://example.org")])
    False
    >>> guard.answers([(b"host", b"example.org:8501")])
    False
    """

    def __init__(self, application: Application, port: int) -> None:
        self._application = application
        self._hosts = {f"{name}:{port}".encode() for name in NAMES}
        if port == 80:  # which browsers leave out
            self._hosts |= {name.encode() for name in NAMES}

    def answers(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request with these headers, names in lower case, gets an answer."""
        found = [(name, value.lower()) for name, value in headers]
        hosts = [value for name, value in found if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return False
        return all(value == b"http://" + hosts[0] for name, value in found if name == b"origin")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with status 403."""
        if scope["type"] == "lifespan" or self.answers(scope["headers"]):
            await self._application(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})  # before it is accepted: 403
        else:
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})
