"""Distributed runs: explorer, trainer and buffer as processes of one machine or actors of a Ray cluster."""
