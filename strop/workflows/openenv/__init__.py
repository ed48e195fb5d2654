"""Environments of OpenEnv: sessions with a server, and sessions of a Python factory."""
