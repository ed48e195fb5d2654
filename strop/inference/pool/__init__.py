"""Several inference engines, each a process of its own, that answer as one."""

from strop.inference.pool.member import Wanted
from strop.inference.pool.pool import EnginePool

__all__ = ["EnginePool", "Wanted"]
