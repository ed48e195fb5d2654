"""Signatures of reward functions: which arguments a function takes.

Three signatures are supported, recognized by the names of the parameters, and each function may be `async`:

    verl    f(data_source, solution_str, ground_truth, extra_info=None, ...), or of its batch reward manager
            f(data_sources, solution_strs, ground_truths, extra_infos, ...) -> list
    TRL     f(prompts, completions, **columns) -> list of one reward per completion; both are texts where the
            prompt column holds text, and otherwise messages; further parameters are `completion_ids`,
            `trainer_state`, `log_metric` and `log_extra`
    Strop   f(completion, answer, ...), f(completion): further parameters are columns, by name, and
            `conversation`, all messages from the prompt to the last reply
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strop.errors import RewardError
from strop.rewards.execution.result import (
    RewardValue,
    SignatureError,
    finite_number,
    parse_reward_result,
)
from strop.rewards.execution.trainer_state import TrainerState

if TYPE_CHECKING:
    from strop.types import Message

Arguments = dict[str, Any]

_VERL_PARAMETERS = ("data_source", "solution_str", "ground_truth", "extra_info")
_TRL_PARAMETERS = frozenset({"prompts", "completions", "completion_ids"})
"""Parameters by which TRL's form is recognized."""
_TRL_LOGS = frozenset({"log_metric", "log_extra"})
_TRL_SERVICES = _TRL_LOGS | {"trainer_state"}
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
    prompt_text: str | None = None
    """The prompt column's value where it is text; None where it is messages."""
    trainer_state: TrainerState = field(default_factory=TrainerState)


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
    is_trl: bool = False
    """Whether the signature is TRL's, whose functions may leave themselves out of the sum."""

    def __call__(self, response: RewardInput) -> RewardValue:
        """Raises SignatureError, and whatever the function raises."""
        available = self.available_arguments(response)
        missing = sorted(self.required - available.keys())
        if missing:
            columns = ", ".join(sorted(available))
            raise SignatureError(f"requires the column {missing[0]!r}; the task has {columns}")
        log = _RewardLog()
        if self.is_trl:
            available |= {"log_metric": log.metric, "log_extra": log.extra}
        if self.accepted is not None:
            available = {name: value for name, value in available.items() if name in self.accepted}
        result = self.function(**{**available, **self.args})
        result = asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
        value, parts = parse_reward_result(result, may_skip=self.is_trl)
        parts.update(log.numbers)
        return value, parts


@dataclass(frozen=True, slots=True)
class _RewardLog:
    """Log of a function in TRL's form, in addition to its rewards; the numbers become parts of its reward."""

    numbers: dict[str, float] = field(default_factory=dict)

    def metric(self, name: str, value: Any) -> None:
        """TRL's `log_metric`: a number of the whole call, which has one response."""
        if (number := finite_number(value)) is not None:
            self.numbers[str(name)] = number

    def extra(self, column: str, values: Sequence[Any]) -> None:
        """TRL's `log_extra`: a column of TRL's table of completions; its texts are not recorded."""
        for value in values:
            self.metric(column, value)


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def bind_reward(function: Callable[..., Any], name: str, args: Mapping[str, Any]) -> BoundReward:
    """Resolve the function's signature. Raises RewardError if it is not supported or one of `args` does not fit."""
    parameters = _parameters(function, name)
    hints = _hints(function)
    is_trl = not {"solution_str", "solution_strs"} & parameters.keys() and not _TRL_PARAMETERS.isdisjoint(
        parameters
    )
    if "solution_str" in parameters:
        available: Callable[[RewardInput], Arguments] = _verl_arguments
        fixed = frozenset(_VERL_PARAMETERS)
    elif "solution_strs" in parameters:
        available = _verl_batch_arguments
        fixed = frozenset(f"{parameter}s" for parameter in _VERL_PARAMETERS)
    elif is_trl:
        available = _trl_arguments
        fixed = _TRL_PARAMETERS | _TRL_SERVICES
    else:
        first = next(iter(parameters))
        available = _StropArguments(first)
        fixed = frozenset({first})
    for key, value in args.items():
        _check_argument(key, value, name, parameters, hints, fixed)
    kinds = {parameter.kind for parameter in parameters.values()}
    named = {n: p for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    required = {n for n, p in named.items() if p.default is p.empty and n not in args}
    required -= _TRL_LOGS if is_trl else set()
    accepted = None if inspect.Parameter.VAR_KEYWORD in kinds else frozenset(named)
    if available in (_verl_arguments, _verl_batch_arguments) and (unknown := sorted(required - fixed)):
        raise RewardError(
            f"reward {name!r}: it requires {unknown[0]!r}, and a function in verl's form gets "
            f"{', '.join(sorted(fixed))}. Give {unknown[0]!r} a default, set it in args, or read it from extra_info."
        )
    return BoundReward(name, function, available, accepted, frozenset(required), args, is_trl)


def _parameters(function: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    if inspect.isclass(function):
        raise RewardError(
            f"reward {name!r}: {function.__name__} is a class; name a function. {_SUPPORTED_SIGNATURES}."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RewardError(
            f"reward {name!r}: Python cannot read its signature ({error}). {_SUPPORTED_SIGNATURES}."
        ) from error
    parameters = signature.parameters
    named = [p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if not named or any(p.kind is p.POSITIONAL_ONLY for p in named):
        raise RewardError(
            f"reward {name!r}: the signature {name}{signature} is not supported. {_SUPPORTED_SIGNATURES}."
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


def _columns(response: RewardInput) -> Arguments:
    """The columns of the row, with its answer and source. A taskset without an answer column or a source column leaves
    a row's own columns of these names as they are."""
    columns = {"answer": None, "source": "", **response.columns}
    columns |= {"answer": response.answer} if response.answer is not None else {}
    columns |= {"source": response.source} if response.source else {}
    return columns


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
    """Lists of one element each: texts in TRL's standard format, whose prompt column holds text, and messages in its
    conversational one."""
    said = response.conversation[len(response.prompt) :] or ({"role": "assistant", "content": response.text},)
    is_text = response.prompt_text is not None
    return {
        **{name: [value] for name, value in _columns(response).items()},
        "prompts": [response.prompt_text if is_text else list(response.prompt)],
        "completions": [response.text if is_text else list(said)],
        "completion_ids": [list(response.completion_ids)],
        "trainer_state": response.trainer_state,
    }


@dataclass(frozen=True, slots=True)
class _StropArguments:
    """Arguments of Strop's signature; the first parameter, whatever its name, gets the completion."""

    first: str

    def __call__(self, response: RewardInput) -> Arguments:
        return {
            "conversation": response.conversation,
            **_columns(response),
            "prompt": response.prompt,
            self.first: response.text,
        }
