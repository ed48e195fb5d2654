"""Backends of the training engine, one module each; `registry` selects one by `trainer.engine.type`."""
