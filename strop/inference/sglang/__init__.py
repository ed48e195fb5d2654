"""Inference engine on SGLang."""

from strop.inference.sglang.backend import SglangBackend

__all__ = ["SglangBackend"]
