"""Placement of models on devices: whole on one device, or sharded over a mesh of ranks."""
