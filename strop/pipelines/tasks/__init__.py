"""Pipelines of task operators, which filter, change, choose and order the rows of a dataset before a run."""
