"""Figures and pages.  They take records and stored results; no mathematics is done here."""

from notsodeep import extras

extras.require("notsodeep.report", "jinja2", "matplotlib")
