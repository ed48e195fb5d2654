"""`reward.judges` and `reward.calls`: language models that score answers."""

from __future__ import annotations

from pydantic import Field, model_validator

from strop.config.schema.base import Section

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


class Judge(Section):
    """A language model behind an OpenAI-compatible endpoint, which is shown each answer and scores it."""

    url: str = Field(pattern=r"^(https?://|auxiliary$)")
    """Where the endpoint's API begins, such as `http://localhost:8000/v1`; or `auxiliary`, for one of
    `rollout.auxiliary_models`."""
    model: str
    """The model's name there."""
    name: str = "judge"
    """The part's name in metrics."""
    weight: float = 1.0
    """What its score, from 0 to 1, is multiplied with in the sum."""
    key_variable: str | None = None
    """The environment variable that holds the endpoint's key; null where it wants none."""
    prompt: str = JUDGE_PROMPT
    """Jinja text or a `.jinja` file, with `question`, `completion`, `answer` and the task's columns."""
    pattern: str = r"Score:[\s*]*(-?\d+(?:\.\d+)?)"
    """A regular expression with one group; what it last finds in the reply is the score."""
    worst: float = 0.0
    """The score that counts as 0."""
    best: float = 10.0
    """The score that counts as 1."""
    temperature: float = Field(0.0, ge=0)
    """How the judge's reply is drawn."""
    max_tokens: int = Field(512, gt=0)
    """Longest reply."""

    @model_validator(mode="after")
    def _a_range(self) -> Judge:
        if self.worst == self.best:
            raise ValueError(f"worst and best are both {self.best:g}: no score could be better than another")
        return self


class Calls(Section):
    """How judges are called: it never changes a score. Bounds are over all judges."""

    concurrency: int = Field(8, gt=0)
    """Calls under way at most."""
    timeout_seconds: float = Field(60.0, gt=0)
    """A call that takes longer is tried again."""
    retries: int = Field(5, ge=0)
    """So often is a call tried again, before the run stops for want of an answer."""
    backoff_seconds: float = Field(1.0, gt=0)
    """The first wait before another try; it doubles each time."""
    cache: str | None = None
    """The folder in which replies are kept, so that nothing is asked twice; by default the run's own."""
    max_calls: int | None = Field(None, gt=0)
    """The run stops when so many replies are in the cache and another is wanted; null for no bound."""
    max_tokens: int | None = Field(None, gt=0)
    """The same for what the replies in the cache have cost in tokens, requests included."""
