"""The command line."""

from notsodeep import extras

extras.require("The command line", "rich", "typer")
