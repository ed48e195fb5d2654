"""`reasoning_gym`: the scorer of a reasoning_gym dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from strop.errors import RewardError


def reasoning_gym_reward(
    completion: str,
    answer: Any,
    metadata: Mapping[str, Any],
    question: str = "",
    *,
    extract: Literal["tags", "text"] = "tags",
) -> float:
    """The score, from 0 to 1, that the task's dataset gives to the completion's answer.

    The answer is the text in the last `<answer>` tags, or 0 points without them; with `extract: text` it is the
    whole completion. `metadata` is the column that reasoning_gym's datasets have.
    """
    found = _in_tags(completion) if extract == "tags" else completion.strip()
    entry = {"question": question, "answer": answer, "metadata": dict(metadata)}
    return float(_scorer(str(metadata["source_dataset"]))(found, entry))


def _in_tags(text: str) -> str | None:
    _, opened, rest = text.rpartition("<answer>")
    inside, closed, _ = rest.partition("</answer>")
    return inside.strip() if opened and closed else None


@cache
def _scorer(dataset: str) -> Callable[[str | None, Mapping[str, Any]], float]:
    try:
        from reasoning_gym.factory import get_score_answer_fn
    except ImportError as error:
        raise RewardError(
            "The reward reasoning_gym needs the package reasoning-gym. Install it: "
            "pip install 'strop[reasoning-gym]'"
        ) from error
    return get_score_answer_fn(dataset)
