"""Sandboxes that run programs of a model: isolated processes of this machine, or a SandboxFusion server.

`protocol.py` has the interface and the isolation levels, `registry.py` the kinds of sandboxes, and `inside/` the
code of the isolated process.
"""
