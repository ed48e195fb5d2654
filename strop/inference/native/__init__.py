"""Native inference engine: continuous batching in the calling process, on the trainer's weights if possible."""

from strop.inference.native.engine import NativeEngine
from strop.inference.native.scheduler import EngineStats

__all__ = ["NativeEngine", "EngineStats"]
