"""Python interface: training on data in memory, the four verbs of a training loop, and reading of runs."""
