"""Checkpoints: folders, files, and the tensors in them."""
