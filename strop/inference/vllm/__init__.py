"""Inference engine on vLLM."""

from strop.inference.vllm.backend import VllmBackend

__all__ = ["VllmBackend"]
