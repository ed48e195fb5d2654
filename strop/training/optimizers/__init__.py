"""Optimizers: construction, updates during the backward pass, and state on disk."""
