"""Start the explorer on this machine, for this machine."""

from __future__ import annotations

from pathlib import Path

from notsodeep.app.uploads import MAX_MEGABYTES
from notsodeep.errors import MissingPackage
from notsodeep.report.colours import DEEP, SHALLOW

SCRIPT = Path(__file__).with_name("script.py")


def serve(runs: Path, *, port: int, browser: bool) -> None:
    """Serve the explorer until it is interrupted.

    It listens on the loopback interface only, and sends nothing anywhere.

    Parameters
    ----------
    runs : Path
        Directory of stored runs.
    port : int
    browser : bool
        Open a browser on it.

    Raises
    ------
    MissingPackage
        Streamlit is not installed.
    """
    try:
        from streamlit.web import bootstrap
    except ImportError as error:
        raise MissingPackage(
            "The explorer needs Streamlit. Install it with: pip install 'notsodeep[app]'"
        ) from error
    options = options_of(port, browser)
    bootstrap.load_config_options(options)
    bootstrap.run(str(SCRIPT), False, [str(runs)], options)


def options_of(port: int, browser: bool) -> dict[str, object]:
    """Return the settings of Streamlit, in the form of its command line."""
    return {
        "server_address": "localhost",
        "server_port": port,
        "server_headless": not browser,
        "server_showEmailPrompt": False,
        "server_maxUploadSize": MAX_MEGABYTES,
        "server_fileWatcherType": "none",
        "browser_gatherUsageStats": False,
        "client_toolbarMode": "minimal",
        "runner_magicEnabled": False,
        "theme_light_primaryColor": DEEP,
        "theme_dark_primaryColor": SHALLOW,
    }
