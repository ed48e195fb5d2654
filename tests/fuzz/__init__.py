"""Damaged configurations and files, reproducible from a seed: each is read, or refused with one paragraph."""
