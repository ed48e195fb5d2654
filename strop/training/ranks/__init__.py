"""Rank processes of a sharded training engine: start, messages, batches per rank, checkpoints."""
