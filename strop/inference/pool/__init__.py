"""Pool of inference engines, each in its own process, that acts as one engine."""

from strop.inference.pool.engine_handle import EngineSpec
from strop.inference.pool.engine_pool import EnginePool

__all__ = ["EnginePool", "EngineSpec"]
