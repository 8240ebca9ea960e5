"""The product: a DEQ and data in, the shallow network and the evidence out."""
