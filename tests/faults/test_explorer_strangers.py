"""Other pages in the browser: the explorer's server neither answers them nor calls out for them."""

from __future__ import annotations

import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from browser import free_port, served

pytest.importorskip("streamlit", reason="the explorer needs Streamlit")

PATIENCE = 60.0  # seconds, for answers that take milliseconds


class Outside(socketserver.ThreadingTCPServer):
    """A proxy that every request to the outside would go through, and what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Answer)


class _Answer(socketserver.StreamRequestHandler):
    server: Outside

    def handle(self) -> None:
        self.server.asked.append(self.rfile.readline())
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n203.0.113.7")


@dataclass(frozen=True)
class Explorer:
    port: int
    outside: Outside

    def status(self, host: str | None, origin: str | None = None, *, socket_too: bool) -> int:
        """Ask for the page, or for a WebSocket, with these headers; return the status."""
        lines = ["GET /_stcore/stream HTTP/1.1" if socket_too else "GET / HTTP/1.1"]
        if host is not None:
            lines += [f"Host: {name}" for name in host.format(port=self.port).split("|")]
        if origin is not None:
            lines.append(f"Origin: {origin.format(port=self.port)}")
        if socket_too:
            lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
            lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
        else:
            lines.append("Connection: close")
        request = "\r\n".join([*lines, "", ""]).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(request)
            return int(connection.makefile("rb").readline().split()[1])


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    with Outside() as outside:
        threading.Thread(target=outside.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{outside.server_address[1]}"
        names = ("http_proxy", "https_proxy", "all_proxy")
        environment = {name: address for each in names for name in (each, each.upper())}
        environment |= dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1")
        with served(**environment) as url:
            yield Explorer(urlsplit(url).port or 0, outside)
        outside.shutdown()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LocalHost"])
def test_names_of_this_machine_get_the_page(explorer: Explorer, name: str) -> None:
    host = f"{name}:{{port}}"
    assert explorer.status(host, socket_too=False) == 200
    assert explorer.status(host, socket_too=True) == 101
    assert explorer.status(host, f"http://{host}".lower(), socket_too=True) == 101
    assert explorer.outside.asked == []


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example:{port}",
        "rebound.example",
        "localhost",
        "localhost:1",
        "localhost.rebound.example:{port}",
        "127.0.0.1.rebound.example:{port}",
        "localhost:{port}@rebound.example",
        "0.0.0.0:{port}",
        "192.0.2.1:{port}",
        "",
    ],
)
def test_other_names_get_nothing(explorer: Explorer, host: str) -> None:
    for socket_too in (False, True):
        assert explorer.status(host, socket_too=socket_too) in (400, 403)
        same = f"http://{host}"
        assert explorer.status(host, same, socket_too=socket_too) in (400, 403)
    assert explorer.outside.asked == []


def test_a_request_has_one_name(explorer: Explorer) -> None:
    for host in (None, "localhost:{port}|rebound.example:{port}"):
        assert explorer.status(host, socket_too=False) in (400, 403)
        assert explorer.status(host, socket_too=True) in (400, 403)


@pytest.mark.parametrize(
    "origin",
    [
        "http://any-page-you-visit.example",
        "https://localhost:{port}",
        "http://localhost:1",
        "http://127.0.0.1:{port}",
        "http://[::1]:{port}",
        "http://192.0.2.1:{port}",
        "file://",
        "null",
    ],
)
def test_other_pages_get_nothing(explorer: Explorer, origin: str) -> None:
    assert explorer.status("localhost:{port}", origin, socket_too=True) == 403
    assert explorer.status("localhost:{port}", origin, socket_too=False) == 403
    assert explorer.outside.asked == []


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "notsodeep", "explore", "--no-browser", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"Got {port} (Address already in use)" in done.stderr
    assert not done.stdout
