"""Several processes that do the same thing at the same time, each with its part of a model."""
