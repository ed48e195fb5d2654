"""Checks between sections of a run file, which need the whole `Run`."""
