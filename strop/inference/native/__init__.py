"""The native sampler: continuous batching in the trainer's process, on the trainer's weights."""

from strop.inference.native.engine import NativeEngine
from strop.inference.native.scheduler import Stats

__all__ = ["NativeEngine", "Stats"]
