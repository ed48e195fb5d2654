"""Inference engine on an OpenAI-compatible server that runs already."""

from strop.inference.openai.engine import OpenAiEngine

__all__ = ["OpenAiEngine"]
