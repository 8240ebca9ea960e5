"""Figures and pages.  They take records and stored results; no mathematics is done here."""
