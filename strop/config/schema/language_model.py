"""Language models that operators of a data pipeline ask: behind an endpoint, or run by an inference engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.units import MAX_SECONDS


class ReplyConfig(Section):
    """Replies of a language model, whichever runs it."""

    temperature: float = Field(0.0, ge=0)
    """Sampling temperature of the replies; 0 is greedy."""
    max_tokens: int = Field(1024, gt=0)
    """Maximum length of a reply, in tokens."""


class EndpointModelConfig(ReplyConfig):
    """Language model behind an OpenAI-compatible endpoint."""

    type: Literal["endpoint"] = "endpoint"
    url: str | None = Field(None, pattern=r"^https?://")
    """Base URL of the endpoint's API, such as `http://localhost:8000/v1`; null for the environment variable
    OPENAI_BASE_URL."""
    model: str = Field(min_length=1)
    """Name of the model at the endpoint."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable with the endpoint's API key; no key is sent if it is null or the variable is not set."""
    concurrency: int = Field(8, gt=0)
    """Maximum number of concurrent requests."""
    timeout_seconds: float = Field(120.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of one request; after it the request is repeated."""
    retries: int = Field(8, ge=0)
    """Maximum number of repetitions of a request; after the last one the command stops, and a later one continues."""
    backoff_seconds: float = Field(1.0, gt=0, le=MAX_SECONDS)
    """Wait before the first repetition; it doubles with each further one."""


class EngineModelConfig(ReplyConfig):
    """Language model that the inference engine of `rollout.engine` runs, for this pipeline only."""

    type: Literal["engine"] = "engine"
    path: str | None = None
    """Folder or Hub name of the model; null for the run's own initial model."""


LanguageModelConfig = Annotated[
    Annotated[EndpointModelConfig | EngineModelConfig, Field(discriminator="type")],
    type_shorthand("endpoint"),
]


class InvalidRepliesConfig(Section):
    """Treatment of rows for which the language model gives no usable reply."""

    attempts: int = Field(3, gt=0)
    """Maximum number of requests for a row; further ones sample at temperature 1 with another seed."""
    treatment: Literal["keep", "drop", "error"] = "keep"
    """Rows without a usable reply: `keep` keeps them without a value, `drop` removes them, and both count them;
    `error` stops at the first one."""
    max_fraction: float = Field(0.1, ge=0, le=1)
    """Maximum fraction of rows without a usable reply; above it the pipeline stops."""

    def faults(self) -> Iterator[str]:
        """A fraction that `error` never reaches."""
        if self.treatment == "error" and "max_fraction" in self.model_fields_set and self.max_fraction > 0:
            yield "treatment error stops at the first row, so max_fraction has no effect; remove it"
