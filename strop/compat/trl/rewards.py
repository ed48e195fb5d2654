"""The reward functions of `trl.rewards` (TRL 1.16), which `trl grpo` takes by name and scripts import."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Completions = Sequence[Sequence[dict[str, Any]]]
Reward = float | None
"""None for a row that the function does not apply to."""
NAMES = (
    *("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment"),
    *("get_repetition_penalty_reward", "get_cosine_scaled_reward"),
)
_PARSING_SECONDS = 10
_VERIFYING_SECONDS = 5


def accuracy_reward(completions: Completions, solution: Sequence[str], **columns: Any) -> list[Reward]:
    """1 for a completion whose LaTeX answer equals the solution, else 0; None if the solution cannot be parsed."""
    texts = [completion[0]["content"] for completion in completions]
    return [_accuracy(text, gold) for text, gold in zip(texts, solution, strict=True)]


def reasoning_accuracy_reward(
    completions: Completions,
    solution: Sequence[str],
    reasoning_delimiters: Sequence[str] | None = None,
    **columns: Any,
) -> list[Reward]:
    """`accuracy_reward` of the text after the reasoning; 0 without the end of the reasoning."""
    delimiters = ["</think>"] if reasoning_delimiters is None else reasoning_delimiters
    rewards: list[Reward] = []
    for completion, gold in zip(completions, solution, strict=True):
        text = completion[0]["content"]
        found = next((delimiter for delimiter in delimiters if delimiter in text), None)
        rewards.append(0.0 if found is None else _accuracy(text.rpartition(found)[2], gold))
    return rewards


def think_format_reward(completions: Completions, **columns: Any) -> list[float]:
    """1 for a completion that begins with one `<think>...</think>`, else 0."""
    pattern = re.compile(r"<think>(?!.*<think>).*?</think>.*$", re.DOTALL | re.MULTILINE)
    return [float(pattern.match(completion[0]["content"]) is not None) for completion in completions]


@dataclass(frozen=True)
class SoftOverlongPunishment:
    """Length penalty of DAPO (arXiv 2503.14476, equation 13), in tokens."""

    max_completion_len: int
    soft_punish_cache: int
    __name__ = "soft_overlong_punishment_reward"

    def __call__(self, completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
        """0 up to the soft limit, then linear to -1 at the maximum length."""
        return [self._penalty(len(ids)) for ids in completion_ids]

    def _penalty(self, length: int) -> float:
        soft_limit = self.max_completion_len - self.soft_punish_cache
        if length <= soft_limit:
            return 0.0
        return -1.0 if length > self.max_completion_len else (soft_limit - length) / self.soft_punish_cache


@dataclass(frozen=True)
class RepetitionPenalty:
    """Penalty of repeated n-grams of tokens (arXiv 2502.03373, appendix C.2)."""

    ngram_size: int
    max_penalty: float
    __name__ = "repetition_penalty_reward"

    def __call__(self, completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
        """The fraction of n-grams that repeat an earlier one, times `max_penalty`."""
        return [self._penalty(ids) for ids in completion_ids]

    def _penalty(self, ids: Sequence[int]) -> float:
        size = self.ngram_size
        ngrams = [tuple(ids[start : start + size]) for start in range(len(ids) - size + 1)]
        repeated = 1 - len({*ngrams}) / len(ngrams) if ngrams else 0
        return repeated * self.max_penalty if repeated else 0.0


@dataclass(frozen=True)
class CosineScaledReward:
    """Accuracy, scaled by the length of the completion along a cosine (arXiv 2502.03373, appendix C.1)."""

    max_len: int
    min_value_wrong: float
    max_value_wrong: float
    min_value_correct: float
    max_value_correct: float
    __name__ = "cosine_scaled_reward"

    def __call__(
        self,
        completions: Completions,
        solution: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        **columns: Any,
    ) -> list[Reward]:
        """The value at the completion's length, from that of an empty completion to that of `max_len` tokens."""
        found = accuracy_reward(completions, solution)
        pairs = zip(found, completion_ids, strict=True)
        return [None if right is None else self._scaled(bool(right), len(ids)) for right, ids in pairs]

    def _scaled(self, is_right: bool, length: int) -> float:
        short, long = (
            (self.max_value_correct, self.min_value_correct)
            if is_right
            else (self.min_value_wrong, self.max_value_wrong)
        )
        cosine = math.cos(min(length / self.max_len, 1.0) * math.pi)
        return float(long + 0.5 * (short - long) * (1.0 + cosine))


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int) -> SoftOverlongPunishment:
    """The length penalty of DAPO."""
    return SoftOverlongPunishment(max_completion_len, soft_punish_cache)


def get_repetition_penalty_reward(ngram_size: int = 3, max_penalty: float = -1.0) -> RepetitionPenalty:
    """The penalty of repeated n-grams. Raises ValueError for a positive penalty."""
    if max_penalty > 0:
        raise ValueError(f"max_penalty is {max_penalty}; write 0 or a negative number")
    return RepetitionPenalty(ngram_size, max_penalty)


def get_cosine_scaled_reward(
    max_len: int,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
) -> CosineScaledReward:
    """The accuracy, scaled by the length."""
    return CosineScaledReward(max_len, min_value_wrong, max_value_wrong, min_value_correct, max_value_correct)


def _accuracy(text: str, solution: str) -> Reward:
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # math-verify limits times by a signal, which only the main thread receives.
    is_main = threading.current_thread() is threading.main_thread()
    parsing = _PARSING_SECONDS if is_main else None
    gold = parse(solution, parsing_timeout=parsing)
    if not gold:
        return None
    latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    answer = parse(text, extraction_config=[latex], extraction_mode="first_match", parsing_timeout=parsing)
    return float(verify(gold, answer, timeout_seconds=_VERIFYING_SECONDS if is_main else None))
