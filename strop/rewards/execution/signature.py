"""Signatures of reward functions: which arguments a function takes, and how its result is read.

Three signatures are supported, recognized by the names of the parameters, and each function may be `async`:

    verl    f(data_source, solution_str, ground_truth, extra_info=None, ...), or of its batch reward manager
            f(data_sources, solution_strs, ground_truths, extra_infos, ...) -> list
    TRL     f(prompts, completions, **columns) -> list of one reward per completion
    Strop   f(completion, answer, ...), f(completion): further parameters are columns, by name, and
            `conversation`, all messages from the prompt to the last reply
"""

from __future__ import annotations

import asyncio
import inspect
import math
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from strop.errors import RewardError
from strop.rewards.limits import LimitExceeded

if TYPE_CHECKING:
    from strop.types import Message

Arguments = dict[str, Any]
RewardValue = tuple[float, dict[str, float]]
"""Value of one function, a `LimitExceeded` where it exceeded a limit, and its named parts."""


class SignatureError(RewardError):
    """A task lacks a column that the function requires, or the function returned no valid reward."""


_VERL_PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")
_SUPPORTED_SIGNATURES = (
    "Supported signatures: f(completion, answer, **columns), verl's "
    "f(data_source, solution_str, ground_truth, extra_info=None) and TRL's f(prompts, completions, **columns)"
)


@dataclass(frozen=True, slots=True)
class RewardInput:
    """One completion and its task: all possible arguments of a reward function."""

    text: str
    prompt: tuple[Message, ...]
    answer: Any = None
    source: str = ""
    completion_ids: Sequence[int] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Other columns of the task's row, and `info`."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Values of the workflow, such as rewards of tools."""
    conversation: tuple[Message, ...] = ()
    """All messages, from the prompt to the last reply."""


@dataclass(frozen=True, slots=True)
class BoundReward:
    """A reward function with its signature resolved."""

    name: str
    function: Callable[..., Any]
    available_arguments: Callable[[RewardInput], Arguments]
    """Builds all arguments that the signature can take, by name."""
    accepted: frozenset[str] | None
    """Parameters to pass; None for all available ones (`**kwargs`)."""
    required: frozenset[str]
    """Parameters without a default that the run file does not set."""
    args: Mapping[str, Any]
    """Arguments from the run file."""

    def __call__(self, response: RewardInput) -> RewardValue:
        """Raises SignatureError, and whatever the function raises."""
        available = self.available_arguments(response)
        missing = sorted(self.required - available.keys())
        if missing:
            columns = ", ".join(sorted(available))
            raise SignatureError(f"requires the column {missing[0]!r}; the task has {columns}")
        if self.accepted is not None:
            available = {name: value for name, value in available.items() if name in self.accepted}
        result = self.function(**{**available, **self.args})
        return parse_reward_result(asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def bind_reward(function: Callable[..., Any], name: str, args: Mapping[str, Any]) -> BoundReward:
    """Resolve the function's signature. Raises RewardError if it is not supported or one of `args` does not fit."""
    parameters = _parameters(function, name)
    hints = _hints(function)
    if "solution_str" in parameters:
        available: Callable[[RewardInput], Arguments] = _verl_arguments
        fixed = frozenset(_VERL_PARAMETERS)
    elif "solution_strs" in parameters:
        available = _verl_batch_arguments
        fixed = frozenset(f"{parameter}s" for parameter in _VERL_PARAMETERS)
    elif {"completions", "completion_ids", "prompts"} & parameters.keys():
        as_text = hints.get("completions") == list[str]
        available = _trl_text_arguments if as_text else _trl_arguments
        fixed = frozenset({"prompts", "completions", "completion_ids"})
    else:
        first = next(iter(parameters))
        available = _StropArguments(first)
        fixed = frozenset({first})
    for key, value in args.items():
        _check_argument(key, value, name, parameters, hints, fixed)
    kinds = {parameter.kind for parameter in parameters.values()}
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    required = {n for n, p in named.items() if p.default is p.empty and n not in args}
    accepted = None if inspect.Parameter.VAR_KEYWORD in kinds else frozenset(named)
    return BoundReward(name, function, available, accepted, frozenset(required), args)


def _parameters(function: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    if inspect.isclass(function):
        raise RewardError(
            f"reward {name!r}: {function.__name__} is a class; name a function. {_SUPPORTED_SIGNATURES}."
        )
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"reward {name!r}: Python cannot read its signature ({error}). {_SUPPORTED_SIGNATURES}."
        ) from error
    written = f"{name}({', '.join(map(str, parameters.values()))})"
    named = [p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if not named or any(p.kind is p.POSITIONAL_ONLY for p in named):
        raise RewardError(
            f"reward {name!r}: the signature {written} is not supported. {_SUPPORTED_SIGNATURES}."
        )
    return parameters


def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The function's annotations; empty if they name types that do not exist at run time."""
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
        raise RewardError(f"reward {name!r}: Strop itself passes args.{key}; remove it from the run file.")
    if key not in parameters and not open_ended:
        options = [n for n, p in parameters.items() if p.default is not p.empty]
        takes = f"the function takes {', '.join(options)}" if options else "the function takes none"
        raise RewardError(f"reward {name!r}: unknown argument {key!r}; {takes}.")
    allowed = typing.get_args(hints.get(key)) if typing.get_origin(hints.get(key)) is typing.Literal else ()
    if allowed and value not in allowed:
        raise RewardError(
            f"reward {name!r}: args.{key} is {value!r}; write one of {', '.join(map(repr, allowed))}."
        )


def _verl_arguments(response: RewardInput) -> Arguments:
    return {
        "data_source": response.source,
        "solution_str": response.text,
        "ground_truth": response.answer,
        "extra_info": _with_info(response.columns.get("extra_info", {}), response.info),
    }


def _verl_batch_arguments(response: RewardInput) -> Arguments:
    """Arguments of a function for verl's batch reward manager: lists of one element each."""
    return {f"{name}s": [value] for name, value in _verl_arguments(response).items()}


def _with_info(extra_info: Any, info: Mapping[str, Any]) -> Any:
    return {**(extra_info or {}), **info} if info else extra_info


def _trl_arguments(response: RewardInput) -> Arguments:
    """Lists of one element each, in TRL's conversational format: prompts and completions are messages. A taskset
    without an answer column or a source column leaves a row's own columns of these names as they are."""
    columns = {"answer": None, "source": "", **response.columns}
    columns |= {"answer": response.answer} if response.answer is not None else {}
    columns |= {"source": response.source} if response.source else {}
    return {
        **{name: [value] for name, value in columns.items()},
        "prompts": [list(response.prompt)],
        "completions": [[{"role": "assistant", "content": response.text}]],
        "completion_ids": [list(response.completion_ids)],
    }


def _trl_text_arguments(response: RewardInput) -> Arguments:
    """TRL's arguments for a function that annotates `completions: list[str]`."""
    texts = {"prompts": [response.prompt[-1]["content"]], "completions": [response.text]}
    return {**_trl_arguments(response), **texts}


@dataclass(frozen=True, slots=True)
class _StropArguments:
    """Arguments of Strop's signature; the first parameter, whatever its name, gets the completion."""

    first: str

    def __call__(self, response: RewardInput) -> Arguments:
        return {
            "conversation": response.conversation,
            **response.columns,
            "prompt": response.prompt,
            "answer": response.answer,
            "source": response.source,
            self.first: response.text,
        }


def parse_reward_result(result: Any) -> RewardValue:
    """Read a number, verl's mapping with `score` and parts, or TRL's list with one of these.

    Parts that are not finite numbers (verl's `pred` is text) are dropped, because parts are averaged.
    Raises SignatureError for anything else, including NaN and infinity.
    """
    if isinstance(result, list) and len(result) == 1:
        return parse_reward_result(result[0])
    if not isinstance(result, Mapping):
        return _number(result), {}
    if "score" not in result:
        raise SignatureError(f"returned a dict without 'score', with {', '.join(map(str, result))}")
    parts = {str(k): float(v) for k, v in result.items() if k != "score" and _is_finite(v)}
    return _number(result["score"]), parts


def _number(value: Any) -> float:
    if getattr(value, "shape", None) == ():  # a NumPy or torch scalar
        value = value.item()
    if not isinstance(value, Real):
        what = "None" if value is None else f"a {type(value).__name__}, {_short(value)}"
        raise SignatureError(f"returned {what}; a reward is a number")
    if not math.isfinite(value):
        raise SignatureError(f"returned {float(value)}; a reward is a finite number")
    return value if isinstance(value, LimitExceeded) else float(value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
