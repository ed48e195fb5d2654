"""Signatures of reward functions: which arguments a function takes, and what it returns.

Three signatures are supported, recognized by the names of the parameters, and each function may be `async`:

    verl    f(data_source, solution_str, ground_truth, extra_info=None, ...), or of its batch reward manager
            f(data_sources, solution_strs, ground_truths, extra_infos, ...) -> list
    TRL     f(prompts, completions, **columns) -> list of one reward per completion; both are texts where the
            prompt column holds text, and otherwise messages; further parameters are `completion_ids`,
            `trainer_state`, `log_metric` and `log_extra`
    Strop   f(completion, answer, ...), f(completion): further parameters are columns, by name, and
            `conversation`, all messages from the prompt to the last reply

A function returns a number, or named parts of one.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any

from strop.errors import RewardError
from strop.rewards.graders import LimitExceeded, StatedAnswer

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
class TrainerState:
    """Progress of the weights that sampled a response: TRL's argument `trainer_state`, as far as transformers'
    `TrainerState` is about progress."""

    global_step: int = 0
    """Optimizer updates that the weights have had."""
    max_steps: int = 0
    """Optimizer updates of the whole training; 0 outside of a training."""
    epoch: float = 0.0
    """Epochs of the training tasks that the weights have been trained on."""
    num_train_epochs: float = 0.0
    """Epochs of the whole training; 0 outside of a training."""

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(field.name for field in fields(self))
        raise AttributeError(f"trainer_state has no {name!r} here; it has {known}")


@dataclass(frozen=True, slots=True)
class TrainingLength:
    """Length of a training, by which the version of a rollout's weights becomes a `TrainerState`."""

    updates: int
    """Optimizer updates of the policy."""
    updates_per_step: int
    steps: int
    steps_per_epoch: int
    untrained_steps: int = 0
    """Steps at the start without updates of the policy."""

    def state(self, version: int) -> TrainerState:
        """State of the weights of a version, which is a number of steps."""
        done = max(0, version - self.untrained_steps) * self.updates_per_step
        return TrainerState(
            min(done, self.updates),
            self.updates,
            version / self.steps_per_epoch,
            self.steps / self.steps_per_epoch,
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
        if (number := _finite_number(value)) is not None:
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


class RewardParts(dict[str, float]):
    """Named parts of the reward of one function, and the answer that it found in the response."""

    prediction: str | None = None
    """verl's `pred`, by which majority votes are counted; None if the function names none."""


RewardValue = tuple[float | None, RewardParts]
"""Value of one function and its parts. The value is a `LimitExceeded` where the function exceeded a limit, and None
where the function does not apply to the response."""


class SignatureError(RewardError):
    """A task lacks a column that the function requires, or the function returned no valid reward."""


def parse_reward_result(result: Any, *, may_skip: bool = False) -> RewardValue:
    """Read a number, verl's mapping with `score` and parts, or TRL's list with one of these.

    NumPy's and tensors' scalars, and arrays of one element, are numbers. Parts that are None or no finite numbers are
    parts that this response does not have; verl's `pred` becomes the prediction. With `may_skip`, None in a list, as
    TRL's functions return it, is the value None. Raises SignatureError for anything else, including NaN and infinity.
    """
    single = _single(result)
    if may_skip and single is None and result is not None:
        return None, RewardParts()
    if isinstance(single, StatedAnswer):
        parts = RewardParts(acc=float(single.is_right))
        parts.prediction = single.prediction
        return float(single), parts
    if not isinstance(single, Mapping):
        return _number(single), RewardParts()
    if "score" not in single:
        raise SignatureError(f"returned a dict without 'score', with {', '.join(map(str, single))}")
    numbers = {str(key): _finite_number(value) for key, value in single.items() if key != "score"}
    parts = RewardParts({key: value for key, value in numbers.items() if value is not None})
    prediction = single.get("pred")
    parts.prediction = None if prediction is None else str(prediction)
    return _number(_scalar(single["score"])), parts


def _finite_number(value: Any) -> float | None:
    """The value as a number; None for text, NaN, infinity and whatever else is no finite number."""
    value = _scalar(value)
    return float(value) if isinstance(value, Real) and math.isfinite(value) else None


def _single(result: Any) -> Any:
    """The only element of a sequence or array, or of nested ones; any other result itself."""
    while isinstance(result, list | tuple) and len(result) == 1:
        result = result[0]
    return _scalar(result)


def _scalar(value: Any) -> Any:
    """The Python number of an array or tensor of one element, on any device; any other value itself."""
    shape = getattr(value, "shape", None)
    is_single = isinstance(shape, tuple) and math.prod(shape) == 1 and hasattr(value, "item")
    return value.item() if is_single else value


def _number(value: Any) -> float:
    if not isinstance(value, Real):
        what = "None" if value is None else f"a {type(value).__name__}, {_short(value)}"
        raise SignatureError(f"returned {what}; {_expected(value)}")
    if not math.isfinite(value):
        raise SignatureError(f"returned {float(value)}; a reward is a finite number")
    return value if isinstance(value, LimitExceeded) else float(value)


def _expected(value: Any) -> str:
    if isinstance(value, list | tuple) or getattr(value, "shape", None):
        return "a reward is one number for each response, and the function got one response"
    if value is None:
        return "a reward is a number; only a function in TRL's form leaves itself out, by None in its list"
    return "a reward is a number"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
