"""`reward.judges` and `reward.judge_calls`: language models that score responses."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.units import MAX_SECONDS

JUDGE_PROMPT = """\
Judge how good the answer to a question is.

Question:
{{ question }}

{% if answer is not none %}
Reference answer:
{{ answer }}

{% endif %}
Answer to judge:
{{ completion }}

Say in a sentence or two what is good and what is bad about it. Then write one last line, "Score: n",
where n is a number from 0 (worthless) to 10 (perfect)."""


class JudgeConfig(Section):
    """Language model behind an OpenAI-compatible endpoint that scores each response."""

    url: str = Field(pattern=r"^(https?://|auxiliary$)")
    """Base URL of the endpoint's API, such as `http://localhost:8000/v1`; or `auxiliary` for a model of
    `rollout.auxiliary_models`."""
    model: str
    """Name of the model at the endpoint."""
    name: str = "judge"
    """Name of this part of the reward in metrics."""
    weight: float = 1.0
    """Weight of the score, which is between 0 and 1, in the sum."""
    api_key_env: str | None = None
    """Environment variable that holds the endpoint's API key; null if the endpoint requires none."""
    prompt: str = JUDGE_PROMPT
    """Jinja text or a `.jinja` file, with `question`, `completion`, `answer` and the task's columns."""
    pattern: str = r"Score:[\s*]*(-?\d+(?:\.\d+)?)"
    """Regular expression with one group; the last match in the reply is the score."""
    min_score: float = 0.0
    """Score of the judge that becomes 0."""
    max_score: float = 10.0
    """Score of the judge that becomes 1."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature of the judge's reply; 0 is greedy."""
    max_tokens: int = Field(512, gt=0)
    """Maximum length of the reply, in tokens."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.min_score == self.max_score:
            yield (
                f"min_score and max_score are both {self.max_score:g}, so all scores would be equal; write "
                "two "
                "different numbers"
            )


class JudgeCallsConfig(Section):
    """Concurrency, retries, cache and budget of calls to judges, over all judges; none of it changes a
    score."""

    concurrency: int = Field(8, gt=0)
    """Maximum number of concurrent calls."""
    timeout_seconds: float = Field(60.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of one call; after it the call is retried."""
    retries: int = Field(5, ge=0)
    """Maximum number of retries of a call; after the last one the run stops with an error."""
    backoff_seconds: float = Field(1.0, gt=0, le=MAX_SECONDS)
    """Wait before the first retry; it doubles with each further retry."""
    cache: str | None = None
    """Folder of cached replies, so that no answered request is sent again; null is a folder of the run."""
    max_calls: int | None = Field(None, gt=0)
    """Maximum number of replies in the cache; the run stops when another call is needed. Null for no
    limit."""
    max_tokens: int | None = Field(None, gt=0)
    """Maximum number of tokens of the requests and replies in the cache; the run stops when another call is
    needed. Null for no limit."""
