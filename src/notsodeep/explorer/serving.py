"""Start the explorer on this machine, for this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path

from notsodeep import checks, extras
from notsodeep.explorer.loopback import LoopbackOnly
from notsodeep.explorer.uploads import MAX_MEGABYTES
from notsodeep.plotting.canvas import DEEP, SHALLOW

SCRIPT = Path(__file__).with_name("script.py")
_PATIENCE = 2  # seconds that open pages get when the server ends


def serve(
    runs: Path, *, port: int, browser: bool, announce: Callable[[str], None] = lambda address: None
) -> None:
    """Serve the explorer until it is interrupted.

    It listens on the loopback interface only, answers no page but its own (see `loopback`), and
    sends nothing anywhere.

    Parameters
    ----------
    runs : Path
        Directory of stored runs.
    port : int
    browser : bool
        Open a browser on it.
    announce : callable, optional
        Is told the address as soon as there is something to see at it.

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
    sys.argv = [str(SCRIPT), str(runs)]  # what the script is told
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
        raise checks.refusal("port", "explore", requirement, got, "Try another --port.") from error


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
