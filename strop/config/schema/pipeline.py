"""`buffer.pipeline`: operators that change or remove scored rollouts before they enter the buffer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.data_juicer import DataJuicerSection
from strop.config.schema.language_model import EndpointModelConfig, ReplyConfig
from strop.config.units import MAX_SECONDS


class RewardFilterConfig(Section):
    """Removal of rollouts with a low reward; the others of a group are compared with each other."""

    type: Literal["reward_filter"] = "reward_filter"
    min_reward: float = 0.0
    """Minimum reward of the rollouts that are kept."""


class RewardStdFilterConfig(Section):
    """Removal of groups whose rewards hardly differ. They are not replaced, unlike with `dynamic_sampling`."""

    type: Literal["reward_std_filter"] = "reward_std_filter"
    threshold: float = Field(0.0, ge=0)
    """Standard deviation up to which a group is removed; a group of one rollout is always removed."""
    deviation: Literal["population", "sample"] = "population"
    """Divisor of the variance: the number of rewards, or one less."""


class CorrectnessFilterConfig(Section):
    """Removal of groups in which all responses are correct, or none is (DAPO, arXiv 2503.14476). They are not replaced,
    unlike with `dynamic_sampling`."""

    type: Literal["correctness_filter"] = "correctness_filter"
    metric: str | None = None
    """Name of a number in the rollout's `info` or of a part of its reward, such as `accuracy`, which also finds
    `math/accuracy`; the total reward if omitted, and for a rollout without it."""
    threshold: float = 0.0
    """Value above which a response is correct; a group of one rollout is always removed."""


class RewardTermConfig(Section):
    """Change of a reward by a statistic of the rollout."""

    stat: str = Field(min_length=1)
    """Name of a number in the rollout's `info`, of a part of its reward, or of a column of the task's row; a rollout
    without it keeps its reward."""
    operation: Literal["add", "subtract", "multiply", "divide"] = "add"
    """Operation on the reward and `weight` times the statistic; a division by 0 keeps the reward."""
    weight: float = 1.0
    """Factor of the statistic."""


class RewardShapingConfig(Section):
    """Change of rewards by statistics of their rollouts, one term after the other."""

    type: Literal["reward_shaping"] = "reward_shaping"
    terms: tuple[RewardTermConfig, ...] = Field(min_length=1)
    """Terms, in order."""


class QualityModelConfig(EndpointModelConfig):
    """Language model behind an OpenAI-compatible endpoint that judges responses."""


class RolloutEngineModelConfig(ReplyConfig):
    """The policy itself, which the inference engine of the rollouts runs with the weights of the step."""

    type: Literal["engine"] = "engine"


JudgeModelConfig = Annotated[
    Annotated[QualityModelConfig | RolloutEngineModelConfig, Field(discriminator="type")],
    type_shorthand("endpoint"),
]


class LlmQualityConfig(Section):
    """Reward for the quality of a response, from 0 to 1, which a language model judges; the score also becomes the
    statistic `llm_quality_score` of the rollout's `info`."""

    type: Literal["llm_quality"] = "llm_quality"
    model: JudgeModelConfig
    """Language model that is asked: one behind an endpoint, whose replies are cached in the run's folder, or the policy
    itself with `type: engine`."""
    weight: float = 1.0
    """Factor of the score; 0 computes the statistic only."""
    attempts: int = Field(3, gt=0)
    """Maximum number of requests for a response; further ones sample at temperature 1. A response without a score keeps
    its reward."""
    max_invalid_fraction: float = Field(0.1, ge=0, le=1)
    """Maximum fraction of responses without a score, of which one is always allowed; above it the run stops."""


class DiversityRewardConfig(Section):
    """Reward for responses that differ from the others of their group: 1 minus the mean Jaccard similarity of their
    sets of word n-grams, which also becomes the statistic `diversity` of the rollout's `info`."""

    type: Literal["diversity_reward"] = "diversity_reward"
    weight: float = 1.0
    """Factor of the diversity, which is between 0 and 1; 0 computes the statistic only."""
    ngram_words: int = Field(2, gt=0)
    """Number of words in an n-gram."""


class LengthRewardConfig(Section):
    """Reward for short responses in comparison with the others of their group (arXiv 2501.12599): from 0.5 for the
    shortest to -0.5 for the longest; a wrong response gets only the negative part."""

    type: Literal["length_reward"] = "length_reward"
    weight: float = 1.0
    """Factor of the length reward, which is between -0.5 and 0.5."""
    correct_reward: float = 1.0
    """Minimum reward of a correct response."""


class RelabelConfig(Section):
    """Replacement of rewards by one of two values."""

    type: Literal["relabel"] = "relabel"
    threshold: float = 0.5
    """Minimum reward that becomes `above`; lower ones become `below`."""
    above: float = 1.0
    """New reward from `threshold` on."""
    below: float = 0.0
    """New reward under `threshold`."""


class HumanFeedbackConfig(Section):
    """Questions to people about the responses of a group, answered on Strop Studio's page *Rate* or through its HTTP
    interface; a score, from 0 to 1, also becomes the statistic `human_score` of the rollout's `info`."""

    type: Literal["human_feedback"] = "human_feedback"
    question: Literal["score", "preference"] = "score"
    """`score` asks for a score of each response; `preference` asks for the better of two that differ, which gets the
    score 1, and the worse one 0."""
    fraction: float = Field(1.0, gt=0, le=1)
    """Fraction of the groups that people are asked about, chosen by a hash of the group's id."""
    operation: Literal["replace", "add"] = "replace"
    """Whether `weight` times the score replaces the reward or is added to it. Responses without a score keep their
    reward."""
    weight: float = 1.0
    """Factor of the score; with `add`, 0 computes the statistic only."""
    timeout_seconds: float = Field(3600.0, gt=0, le=MAX_SECONDS)
    """Maximum wait for the answers to the questions of one step. A separate trainer waits at the same time: its own
    limits, such as `buffer.read_timeout_seconds`, must be longer."""
    unanswered: Literal["keep", "drop", "error"] = "keep"
    """Groups whose question nobody answered in time, or was skipped: `keep` leaves their rewards, `drop` removes them,
    `error` stops the run."""


class DataJuicerConfig(DataJuicerSection):
    """Operators of Data-Juicer, which its service runs on the rollouts of each group: filters remove rollouts, and
    statistics become values of the rollouts' `info`, for `reward_shaping`."""

    type: Literal["data_juicer"] = "data_juicer"


class CustomOperatorConfig(Section):
    """Operator of the user: a class whose objects are called with a group and return it, another one, or None."""

    type: Literal["custom"] = "custom"
    operator: str
    """Dotted path or `file.py:Class`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


ExperienceOperatorConfig = Annotated[
    RewardFilterConfig
    | RewardStdFilterConfig
    | CorrectnessFilterConfig
    | RewardShapingConfig
    | LlmQualityConfig
    | DiversityRewardConfig
    | LengthRewardConfig
    | RelabelConfig
    | HumanFeedbackConfig
    | DataJuicerConfig
    | CustomOperatorConfig,
    Field(discriminator="type"),
]
