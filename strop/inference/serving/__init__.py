"""Inference engine on a serving library, such as vLLM or SGLang, that computes in processes of its own."""

from strop.inference.serving.backend import ServingBackend
from strop.inference.serving.engine import ServingEngine

__all__ = ["ServingBackend", "ServingEngine"]
