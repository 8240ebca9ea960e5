"""Trained networks of finite width."""
