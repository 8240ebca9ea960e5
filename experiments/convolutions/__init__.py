"""Convolutional kernels: accuracy, twins and speed."""
