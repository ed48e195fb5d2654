"""How a reward function wants to be called, and what its result means.

Three signatures are understood, by the names of the parameters:

    verl    f(data_source, solution_str, ground_truth, extra_info=None, ...)
    TRL     f(prompts, completions, **columns) -> list of one reward per completion
    Strop   f(completion, answer, ...), f(completion): further parameters are columns, by name, and
            `conversation`, all messages from the prompt to the last reply
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from strop.errors import RewardError

if TYPE_CHECKING:
    from strop.types import Message

Arguments = dict[str, Any]
Score = tuple[float, dict[str, float]]
"""One function's value and its named parts."""


class Misfit(RewardError):
    """A task without a column that the function asks for, or a result that is no reward."""


_WAYS = (
    "Strop understands f(completion, answer, **columns), verl's "
    "f(data_source, solution_str, ground_truth, extra_info=None) and TRL's f(prompts, completions, **columns)"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """All that a reward function can ask for: one completion and its task."""

    text: str
    prompt: tuple[Message, ...]
    answer: Any = None
    source: str = ""
    completion_ids: Sequence[int] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The other columns of the task's row."""
    conversation: tuple[Message, ...] = ()
    """All messages, from the prompt to the last reply."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A function that is ready to score answers."""

    name: str
    function: Callable[..., Any]
    offer: Callable[[Answer], Arguments]
    """All that its signature could take of an answer."""
    wanted: frozenset[str] | None
    """The parameters to pass; None for all that is on offer."""
    required: frozenset[str]
    args: Mapping[str, Any]

    def __call__(self, answer: Answer) -> Score:
        """Raises what the function raises, and Misfit."""
        offer = self.offer(answer)
        missing = sorted(self.required - offer.keys())
        if missing:
            columns = ", ".join(sorted(offer))
            raise Misfit(f"asks for the column {missing[0]!r}; the task has {columns}")
        taken = offer if self.wanted is None else {k: v for k, v in offer.items() if k in self.wanted}
        return read_result(self.function(**{**taken, **self.args}))


def bind(function: Callable[..., Any], name: str, args: Mapping[str, Any]) -> Reward:
    """Understand the function's signature. Raises RewardError when that, or one of `args`, does not fit."""
    parameters = _parameters(function, name)
    hints = _hints(function)
    if "solution_str" in parameters:
        offer: Callable[[Answer], Arguments] = _verl
        fixed = frozenset({"data_source", "solution_str", "ground_truth", "extra_info"})
    elif {"completions", "completion_ids", "prompts"} & parameters.keys():
        offer = _trl_texts if hints.get("completions") == list[str] else _trl
        fixed = frozenset({"prompts", "completions", "completion_ids"})
    else:
        first = next(iter(parameters))
        offer = _Plain(first)
        fixed = frozenset({first})
    for key, value in args.items():
        _check_argument(key, value, name, parameters, hints, fixed)
    kinds = {parameter.kind for parameter in parameters.values()}
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    required = {n for n, p in named.items() if p.default is p.empty and n not in args}
    wanted = None if inspect.Parameter.VAR_KEYWORD in kinds else frozenset(named)
    return Reward(name, function, offer, wanted, frozenset(required), args)


def _parameters(function: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    if inspect.isclass(function):
        raise RewardError(f"reward {name!r}: {function.__name__} is a class; name a function. {_WAYS}.")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise RewardError(f"reward {name!r}: its signature cannot be read ({error}). {_WAYS}.") from error
    written = f"{name}({', '.join(map(str, parameters.values()))})"
    if "solution_strs" in parameters:
        raise RewardError(
            f"reward {name!r}: {written} scores whole batches at once, as verl's batch reward manager "
            f"wants it; Strop scores answers one by one. {_WAYS}."
        )
    named = [p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if not named or any(p.kind is p.POSITIONAL_ONLY for p in named):
        raise RewardError(f"reward {name!r}: the signature {written} is not understood. {_WAYS}.")
    return parameters


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Its annotations, or none where they name what only a type checker sees."""
    target = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        return typing.get_type_hints(target)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return {}


def _check_argument(
    key: str,
    value: Any,
    name: str,
    parameters: Mapping[str, inspect.Parameter],
    hints: Mapping[str, Any],
    fixed: frozenset[str],
) -> None:
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if key in fixed:
        raise RewardError(f"reward {name!r}: args.{key} is what Strop itself passes; leave it out.")
    if key not in parameters and not open_ended:
        options = [n for n, p in parameters.items() if p.default is not p.empty]
        takes = f"it takes {', '.join(options)}" if options else "it takes none"
        raise RewardError(f"reward {name!r}: there is no argument {key!r}; {takes}.")
    allowed = typing.get_args(hints.get(key)) if typing.get_origin(hints.get(key)) is typing.Literal else ()
    if allowed and value not in allowed:
        raise RewardError(
            f"reward {name!r}: args.{key} is {value!r}; it can be {', '.join(map(repr, allowed))}."
        )


def _verl(answer: Answer) -> Arguments:
    return {
        "data_source": answer.source,
        "solution_str": answer.text,
        "ground_truth": answer.answer,
        "extra_info": answer.columns.get("extra_info", {}),
    }


def _trl(answer: Answer) -> Arguments:
    """One of everything, in lists; conversational, as TRL calls prompts that are messages."""
    columns = {**answer.columns, "answer": answer.answer, "source": answer.source}
    return {
        **{name: [value] for name, value in columns.items()},
        "prompts": [list(answer.prompt)],
        "completions": [[{"role": "assistant", "content": answer.text}]],
        "completion_ids": [list(answer.completion_ids)],
    }


def _trl_texts(answer: Answer) -> Arguments:
    """The same for a function that asks for `completions: list[str]`."""
    return {**_trl(answer), "prompts": [answer.prompt[-1]["content"]], "completions": [answer.text]}


@dataclass(frozen=True, slots=True)
class _Plain:
    """The completion goes to the first parameter, whatever its name."""

    first: str

    def __call__(self, answer: Answer) -> Arguments:
        return {
            "conversation": answer.conversation,
            **answer.columns,
            "prompt": answer.prompt,
            "answer": answer.answer,
            "source": answer.source,
            self.first: answer.text,
        }


def read_result(result: Any) -> Score:
    """A number; verl's mapping with `score` and parts; or TRL's list of one of them.

    Parts that are no finite numbers (verl's `pred` is text) are not kept: parts are averaged.
    Raises Misfit for anything else, NaN and infinity among it.
    """
    if isinstance(result, list) and len(result) == 1:
        return read_result(result[0])
    if not isinstance(result, Mapping):
        return _number(result), {}
    if "score" not in result:
        raise Misfit(f"returned a dict without 'score', with {', '.join(map(str, result))}")
    parts = {str(k): float(v) for k, v in result.items() if k != "score" and _is_finite(v)}
    return _number(result["score"]), parts


def _number(value: Any) -> float:
    if getattr(value, "shape", None) == ():  # a NumPy or torch scalar
        value = value.item()
    if not isinstance(value, Real):
        what = "None" if value is None else f"a {type(value).__name__}, {_short(value)}"
        raise Misfit(f"returned {what}; a reward is a number")
    if not math.isfinite(value):
        raise Misfit(f"returned {float(value)}; a reward is a finite number")
    return float(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
