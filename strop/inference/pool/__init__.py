"""Pool of inference engines, each in its own process, that acts as one engine."""

from strop.inference.pool.engine_pool import EnginePool
from strop.inference.pool.messages import EngineSpec

__all__ = ["EnginePool", "EngineSpec"]
