"""Result of a workflow, and the exceptions that concern it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from strop.types import Turn


class ContextLengthExceeded(Exception):
    """The conversation is too long for another reply; the rollout ends here, truncated."""


class InvalidWorkflowResult(ValueError):
    """A workflow returned a value that cannot be trained on."""


@dataclass(frozen=True, slots=True)
class WorkflowResult:
    """Optional return value of a workflow.

    A number is short for `WorkflowResult(reward=...)`, and text for `WorkflowResult(text=...)`.
    """

    reward: float | None = None
    """Reward by the workflow itself; the components under `reward` in the run file are added to it."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named components of that reward, for the metrics."""
    turn_rewards: Sequence[float] | None = None
    """Reward of each turn; without a `reward`, their sum is the reward."""
    turn_states: Sequence[str] | None = None
    """State of the environment before each turn, as text that is equal for equal states; `gigpo` compares the turns
    that begin in equal states."""
    text: str | None = None
    """Response to score; the last reply if None."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further values for reward functions, such as rewards of tools: columns of Strop's signature, and part of
    verl's `extra_info`. Values of JSON."""
    turns: Sequence[Turn] | None = None
    """Turns to train on; all calls of the model, in their order, if None."""


def to_workflow_result(returned: Any) -> WorkflowResult:
    """Convert a workflow's return value. Raises `InvalidWorkflowResult` for unsupported values."""
    if returned is None:
        return WorkflowResult()
    if isinstance(returned, str):
        return WorkflowResult(text=returned)
    if isinstance(returned, Real):
        return _checked(WorkflowResult(reward=float(returned)))
    if not isinstance(returned, WorkflowResult):
        raise InvalidWorkflowResult(
            f"the workflow returned a {type(returned).__name__}. It may return nothing, a number (the "
            "reward), text (the response to score), or a strop.workflows.WorkflowResult"
        )
    return _checked(returned)


def _checked(result: WorkflowResult) -> WorkflowResult:
    rewards = [*result.parts.values(), *(result.turn_rewards or ())]
    if result.reward is not None:
        rewards.append(result.reward)
    for value in rewards:
        if not isinstance(value, Real) or not math.isfinite(value):
            raise InvalidWorkflowResult(
                f"the workflow returned the reward {value!r}; a reward is a finite number"
            )
    try:
        json.dumps(result.info)
    except (TypeError, ValueError) as error:
        raise InvalidWorkflowResult(
            f"the `info` of the workflow is not JSON ({error}); reward functions get text, numbers, lists and "
            "mappings"
        ) from None
    states = result.turn_states
    if states is not None and not (
        isinstance(states, list | tuple) and all(isinstance(state, str) for state in states)
    ):
        raise InvalidWorkflowResult(
            f"the workflow returned the turn_states {states!r:.80}; return a list of texts"
        )
    turns = result.turns
    if turns is not None and not all(isinstance(turn, Turn) for turn in turns):
        raise InvalidWorkflowResult("not all `turns` of the workflow are of type strop.types.Turn")
    return result
