"""Exact kernels against the papers’ equivalents and matches."""
