"""The run file: one pydantic model per section."""

from strop.config.schema.run import Run

__all__ = ["Run"]
