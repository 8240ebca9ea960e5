"""Neural collapse of trained heads, kernels and the layer-peeled model."""
