"""Finite networks in PyTorch."""
