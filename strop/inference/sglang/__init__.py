"""Inference engines on SGLang: in processes of the run, and on a server."""

from strop.inference.sglang.backend import SglangBackend
from strop.inference.sglang.server_backend import SglangServerBackend

__all__ = ["SglangBackend", "SglangServerBackend"]
