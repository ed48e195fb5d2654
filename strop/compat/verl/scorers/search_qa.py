"""`verl_search_qa`: verl's scorer of the Search-R1 data sets, exact match of a short answer (arXiv 2503.09516)."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import Any

from strop.rewards.builtin.math_text import last_tagged

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MAX_TAGS = 10


def verl_search_qa_reward(completion: str, answer: Any) -> float:
    """1 if the last `<answer>...</answer>` is one of the answers, without case, articles and punctuation, else 0.

    A quarter of it for a response with more than 10 opening or closing tags. `answer` is a mapping with `target`: an
    answer or a list of them. Raises ValueError for anything else.
    """
    if not isinstance(answer, Mapping) or "target" not in answer:
        raise ValueError(f"the task's answer must have `target`, got {answer!r}")
    target = answer["target"]
    targets = [target] if isinstance(target, str) else list(target)
    stated = last_tagged(completion)
    if stated is None or normalized(stated) not in {normalized(str(each)) for each in targets}:
        return 0.0
    crowded = max(completion.count("<answer>"), completion.count("</answer>")) > _MAX_TAGS
    return 0.25 if crowded else 1.0


def normalized(text: str) -> str:
    """The text in lower case without ASCII punctuation and articles, with single spaces (SQuAD, arXiv 1606.05250)."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())
