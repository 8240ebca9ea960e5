"""Risks predicted before training, and measured."""
