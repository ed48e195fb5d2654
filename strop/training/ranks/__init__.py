"""Ranks of a training engine: their operations, their processes, their shares of a batch, and sharded checkpoints."""
