"""Numerical methods that know nothing of networks or data sets."""
