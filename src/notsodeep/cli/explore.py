"""`notsodeep explore`."""

from __future__ import annotations

from typing import Annotated

import typer

from notsodeep.errors import InvalidInput


def explore_command(
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 8501,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Open the explorer, a local web page: move sliders and watch DEQ and network agree.

    It listens on this machine only and sends nothing anywhere. Ctrl-C ends it.

    Example: notsodeep explore --port 8501 --no-browser
    """
    from notsodeep.explorer.server import serve

    if not 1 <= port <= 65535:
        raise InvalidInput(f"port of explore must be from 1 to 65535. Got {port}.")
    serve(
        port=port,
        browser=browser,
        announce=lambda address: typer.echo(f"The explorer is at {address}"),
    )
