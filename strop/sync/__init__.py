"""Weight synchronization: transfer of the trainer's weights to the explorer, and the staleness policy."""
