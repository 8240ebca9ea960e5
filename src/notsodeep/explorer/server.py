"""The explorer's server: Streamlit on the loopback interface, and nothing sent elsewhere."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

from notsodeep import checks, extras
from notsodeep.explorer.explorer_data import MAX_MEGABYTES
from notsodeep.plotting.canvas import DEEP, SHALLOW

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
        """Pass a request on, or reject it with status 403."""
        if scope["type"] == "lifespan" or self.answers(scope["headers"]):
            await self._application(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})  # before it is accepted: 403
        else:
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})


SCRIPT = Path(__file__).with_name("script.py")
_PATIENCE = 2  # seconds that open pages get when the server ends


def serve(
    *, port: int, browser: bool, announce: Callable[[str], None] = lambda address: None
) -> None:
    """Serve the explorer until it is interrupted.

    It listens on the loopback interface only, answers no page but its own (see `loopback`), and
    sends nothing anywhere.

    Parameters
    ----------
    port : int
    browser : bool
        Open a browser on it.
    announce : callable, optional
        Called with the address as soon as there is something to see at it.

    Raises
    ------
    MissingPackage
        Streamlit is not installed.
    InvalidInput
        The port is taken.
    """
    extras.require("The explorer", "streamlit")
    import streamlit
    import uvicorn
    from streamlit.web import bootstrap

    bootstrap.load_config_options(options_of(port))
    sys.argv = [str(SCRIPT)]
    settings = uvicorn.Config(
        LoopbackOnly(streamlit.App(SCRIPT), port),
        lifespan="on",
        log_level="warning",
        proxy_headers=False,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=_PATIENCE,
    )
    address = f"http://localhost:{port}"
    with _listening(port) as listener, _ended_by_signals():
        announce(address)
        if browser:  # requests wait in the queue of the listener until the server runs
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        uvicorn.Server(settings).run(sockets=[listener])


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        requirement = "be a port that this program may listen on"
        got = f"{port} ({os.strerror(error.errno or 0)})"
        raise checks.invalid("port", "explore", requirement, got, "Try another --port.") from error


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Take Ctrl-C and SIGTERM, which Uvicorn repeats when it has shut down, for a good end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def options_of(port: int) -> dict[str, object]:
    """Return the settings of Streamlit, in the form of its command line."""
    return {
        "server_address": "localhost",
        "server_port": port,
        "server_headless": True,  # the browser is opened here
        "server_showEmailPrompt": False,
        "server_maxUploadSize": MAX_MEGABYTES,
        "server_fileWatcherType": "none",
        "browser_gatherUsageStats": False,
        "client_toolbarMode": "minimal",
        "runner_magicEnabled": False,
        "theme_light_primaryColor": DEEP,
        "theme_dark_primaryColor": SHALLOW,
    }
