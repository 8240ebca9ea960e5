"""Reproductions of three papers and tests of their claims; `python -m experiments` lists them."""
