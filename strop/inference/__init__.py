"""Inference engines, reward models, auxiliary models and the OpenAI-compatible endpoint."""
