"""Inference engine on vLLM."""

from strop.inference.vllm.engine import VllmEngine

__all__ = ["VllmEngine"]
