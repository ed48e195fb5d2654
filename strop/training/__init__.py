"""Training engines: models with optimizers on one process or several ranks, and their checkpoints."""
