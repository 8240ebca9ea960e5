"""Whole jobs: compiling a DEQ, and the papers' figures; they store numbers, not pictures."""
