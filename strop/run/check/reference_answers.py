"""Rewards of reference answers: the functions of a run score the right and a wrong answer of the first rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from strop.config.model_files import folder_takes_images
from strop.config.paths import existing_path
from strop.config.schema.run import Run
from strop.data.prompt_check import to_prompt
from strop.data.sources.columns import value_at
from strop.data.sources.reader import read_rows
from strop.data.taskset import to_task
from strop.printable import counted
from strop.python_rewards import PythonRewards
from strop.rewards.registry import builtin_reward, default_reward_name
from strop.rewards.scorable_tasks import ScoredTaskset, reward_sections, scored_tasksets
from strop.rewards.scorer import Scorer
from strop.run.check.refusals import Findings, is_probability, missing_component, missing_part, no_probability
from strop.types import Rollout, RolloutGroup, SamplingParams, Task

_ROWS = 3
"""Rows of a taskset whose reference answers are scored."""
_OTHER_ROWS = 20
"""First rows among which another answer is looked for, which is the wrong one."""
_ANSWER_COLUMNS = ("answer", "solution", "ground_truth", "target", "label")
"""Columns of the reference answer where the taskset names none, as functions in TRL's form read them."""
_UNKNOWN = "I do not know."
_PATIENCE_SECONDS = 30.0
"""Time after which no further form is tried, for functions that take long."""
_FORMS = {
    "": "{}",
    r"\boxed{...}": r"\boxed{{{}}}",
    "<answer>...</answer>": "<answer>{}</answer>",
    "#### ...": "#### {}",
    "Answer: ...": "Answer: {}",
    "<think>...</think><answer>...</answer>": "<think>\nI know it.\n</think>\n<answer>\n{}\n</answer>",
}
"""Forms of a response by their names in messages; the answer alone has none."""
_WITHOUT_REFERENCE = {
    **dict.fromkeys(("code", "verl_code"), "the column of answers has tests, not responses"),
    **dict.fromkeys(("countdown", "trinity_countdown"), "the column of answers has numbers, not responses"),
    **dict.fromkeys(("format", "trinity_format"), "it reads no answer"),
    "reasoning_gym": "the column of answers has entries, not responses",
}
"""Built-in rewards whose answers are no responses, and why."""


def score_reference_answers(run: Run, extra: PythonRewards | None = None) -> Findings:
    """Score the reference answer and a wrong one of the first rows with every function, in worker processes.

    A function that fails on all of them is a fault, as it is in the first step of a training; `extra` are functions
    from Python. Raises what `Scorer` raises.
    """
    found, done = Findings(), set()
    sections = reward_sections(run, extra)
    for key, (section, _) in sections.items():
        found.unchecked += [f"{key}: the judge {judge.name}: not asked" for judge in section.judges]
        found.unchecked += [f"{key}: the reward model {model.name}: not loaded" for model in section.models]
    for scored in scored_tasksets(run):
        section, functions = sections[scored.reward_key]
        if scored.reward_key in done or not (section.functions or functions):
            continue
        # A built-in reward reads no value of a workflow.
        is_builtin = functions is None and all(builtin_reward(part.function) for part in section.functions)
        if (obstacle := _obstacle(run, scored, is_builtin=is_builtin)) is not None:
            found.unchecked.append(f"{scored.field}: rewards of its reference answers: {obstacle}")
            continue
        done.add(scored.reward_key)
        column, answered = _answered_rows(scored)
        builtin = {
            part.name or default_reward_name(part.function): _WITHOUT_REFERENCE.get(part.function)
            for part in section.functions
        }
        with Scorer(section, functions) as scorer:
            calls = _Calls(scorer)
            if column is None:
                found.add(_call(run, scored, calls, answered))
            else:
                found.add(_score(run, scored, calls, answered, builtin))
        if scored.reward_key == "reward" and not (section.judges or section.models):
            found.faults += list(_unusable_rewards(run, calls.rollouts))
    return found


def _unusable_rewards(run: Run, rollouts: Sequence[Rollout]) -> Iterator[str]:
    """Yield an error for rewards without a component that the algorithm reads, and outside of its range."""
    algorithm = run.algorithm
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    if not scored or algorithm.is_offline:
        return
    first, names = scored[0], {name for rollout in scored for name in rollout.reward_parts}
    dynamic = algorithm.dynamic_sampling
    if dynamic is not None and dynamic.metric is not None and dynamic.metric not in names:
        yield missing_component(dynamic.metric, first.task_id, first.reward_parts)
    lacking = [name for name in algorithm.compared_parts or () if name not in names]
    yield from (missing_part(name, first.task_id, first.reward_parts) for name in lacking)
    if algorithm.reward_is_probability:
        rewards = [
            each.reward for each in scored if each.reward is not None and not is_probability(each.reward)
        ]
        yield from (no_probability(first.task_id, reward) for reward in rewards[:1])


def _obstacle(run: Run, scored: ScoredTaskset, *, is_builtin: bool) -> str | None:
    taskset = scored.taskset
    paths = (taskset.path,) if isinstance(taskset.path, str) else taskset.path
    if not all(map(existing_path, paths)):
        return "the rows are no files of this machine"
    if taskset.dataset is not None:
        return "a dataset class reads the rows"
    if not (scored.has_own_columns or is_builtin):
        return f"the reward may read values of the workflow {scored.workflow.name}, which was not run"
    if taskset.images is not None or folder_takes_images(run.model.path):
        return "images were not placed in the prompts"
    return None


@dataclass(frozen=True, slots=True)
class _AnsweredTask:
    """A task, its reference answer as text, and the answer of another row."""

    task: Task
    right: str
    wrong: str


def _answered_rows(scored: ScoredTaskset) -> tuple[str | None, list[_AnsweredTask]]:
    """The column of the reference answers, None where the first rows have none as text, and the first rows."""
    section = scored.taskset
    rows = read_rows(section)
    first = rows[0]
    column = section.answer or next((name for name in _ANSWER_COLUMNS if name in first), None)
    answers: list[str | None] = [None] * min(len(rows), _OTHER_ROWS)
    if column is not None:
        values = islice(rows.scan([column]), _OTHER_ROWS)
        answers = [_text(value_at(row, column, rows.where(n))) for n, row in enumerate(values)]
    found = []
    for number, right in enumerate(answers[:_ROWS]):
        row, where = rows[number], rows.where(number)
        prompt = to_prompt(row, where, section)
        task = to_task(f"{scored.field}:{number}", row, prompt, section, np.array([], np.int32))
        others = (each for each in answers if each is not None and right and each.strip() != right.strip())
        found.append(_AnsweredTask(task, right or "", next(others, _UNKNOWN)))
    return (None if None in answers[:_ROWS] else column), found


def _text(answer: Any) -> str | None:
    """A reference answer as the text of a response; None for what is none."""
    if isinstance(answer, list | tuple) and answer:
        answer = answer[0]
    return str(answer) if isinstance(answer, str | int | float) else None


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of all functions on answers, with their results."""

    scorer: Scorer
    rollouts: list[Rollout] = field(default_factory=list)

    def values(self, task: Task, form: str, answers: Sequence[str]) -> list[dict[str, float]]:
        """The value of each function for each answer in a form, by the function's name."""
        texts = [_FORMS[form].format(answer) for answer in answers]
        rollouts = tuple(
            Rollout(f"{task.id}:{index}", task.id, task.id, index, (), text, "ok", SamplingParams())
            for index, text in enumerate(texts)
        )
        (group,) = self.scorer.score([RolloutGroup(task.id, task, rollouts)])
        self.rollouts.extend(group.rollouts)
        parts = [rollout.reward_parts for rollout in group.rollouts]
        return [{name: each[name] for name in self.scorer.names if name in each} for each in parts]

    @property
    def failed(self) -> list[str]:
        """The errors of the failed calls."""
        return [rollout.error for rollout in self.rollouts if rollout.error is not None]

    @property
    def have_all_failed(self) -> bool:
        return len(self.failed) == len(self.rollouts)


@dataclass(frozen=True, slots=True)
class _Told:
    """Answers that a function distinguishes, with its values for the rows."""

    form: str
    is_other: bool
    """Whether the wrong answer is that of another row; else it is `_UNKNOWN`."""
    right: list[float] = field(default_factory=list)
    wrong: list[float] = field(default_factory=list)


def _call(run: Run, scored: ScoredTaskset, calls: _Calls, answered: Sequence[_AnsweredTask]) -> Findings:
    """Call the functions on rows without reference answers."""
    values = [calls.values(each.task, "", (_UNKNOWN,))[0] for each in answered]
    if calls.have_all_failed:
        return _all_failed(run, scored, calls)
    text = (
        f"{scored.field}: rewards of reference answers: the first rows have none as text. {_UNKNOWN!r} gets"
    )
    return Findings(
        advice=_some_failed(run, scored, calls),
        unchecked=[
            f"{text} {_shares(found)} from {name}" if found else f"{text} nothing from {name}"
            for name in calls.scorer.names
            for found in ([each[name] for each in values if name in each],)
        ],
    )


def _all_failed(run: Run, scored: ScoredTaskset, calls: _Calls) -> Findings:
    """The finding about functions that failed on every answer, which ends a training in its first step."""
    text = calls.failed[0].partition(f"task {calls.rollouts[0].task_id!r}: ")[2] or calls.failed[0]
    message = f"{scored.field}: on each of the {len(calls.rollouts)} answers that were tried, {text}"
    is_refused = run.rollout.max_error_fraction < 1
    return Findings(faults=[message]) if is_refused else Findings(advice=[f"warning: {message}"])


def _some_failed(run: Run, scored: ScoredTaskset, calls: _Calls) -> list[str]:
    if not calls.failed:
        return []
    return [
        f"warning: {scored.field}: {len(calls.failed)} of {len(calls.rollouts)} answers failed: {calls.failed[0]}. "
        f"Such a rollout counts as failed; more than {run.rollout.max_error_fraction:g} of them "
        "(rollout.max_error_fraction) end the run."
    ]


def _score(
    run: Run,
    scored: ScoredTaskset,
    calls: _Calls,
    answered: Sequence[_AnsweredTask],
    builtin: Mapping[str, str | None],
) -> Findings:
    """Score the first row in one form after the other until each function has distinguished its answers, then all rows
    in those forms."""
    found, names = Findings(), calls.scorer.names
    told: dict[str, _Told] = {}
    untold: dict[str, tuple[float, float]] = {}
    first, started = answered[0], time.monotonic()
    for form in _FORMS:
        answers = (first.right, first.wrong, _UNKNOWN)
        right, other, unknown = calls.values(first.task, form, answers)
        for name in right.keys() - told.keys():
            wrong = [each[name] for each in (other, unknown) if name in each]
            if wrong and right[name] > min(wrong):
                told[name] = _Told(form, is_other=name in other and right[name] > other[name])
            elif wrong:
                untold.setdefault(name, (right[name], wrong[0]))
        is_done = all(name in told or builtin.get(name) for name in names)
        if is_done or calls.have_all_failed or time.monotonic() - started > _PATIENCE_SECONDS:
            break
    if calls.have_all_failed:
        return _all_failed(run, scored, calls)
    for name, one in told.items():
        for each in answered:
            pair = (each.right, each.wrong if one.is_other else _UNKNOWN)
            right, unlike = calls.values(each.task, one.form, pair)
            one.right.extend([right[name]] if name in right else [])
            one.wrong.extend([unlike[name]] if name in unlike else [])
    found.checked += [f"{scored.field}: {_distinguished(name, one)}" for name, one in told.items()]
    found.unchecked += [
        f"{scored.field}: {_not_distinguished(name, untold.get(name), builtin.get(name))}"
        for name in names
        if name not in told
    ]
    found.advice += _some_failed(run, scored, calls)
    return found


def _distinguished(name: str, one: _Told) -> str:
    written = f", written as {one.form}" if one.form else ""
    wrong = ", ".join(f"{value:.4g}" for value in dict.fromkeys(one.wrong))
    return f"{name}: reward of the reference answer{written}: {_shares(one.right)}; reward of a wrong answer: {wrong}"


def _shares(values: Sequence[float]) -> str:
    """`1 (2 of 3 rows), 0 (1 of 3 rows)`"""
    counts = Counter(values)
    return ", ".join(
        f"{value:.4g} ({count} of {counted(len(values), 'row')})" for value, count in counts.items()
    )


def _not_distinguished(name: str, values: tuple[float, float] | None, reason: str | None) -> str:
    if reason is not None:
        return f"{name}: rewards of reference answers: {reason}"
    if values is None:
        return f"{name}: rewards of reference answers: it left them out"
    reference, wrong = values
    return (
        f"{name}: whether it finds right answers: it gives the reference answer {reference:.4g} and a wrong one "
        f"{wrong:.4g}, alone and in forms such as \\boxed{{...}}"
    )
