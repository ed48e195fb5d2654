"""The model that learns from given answers, and how it is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo
from strop.config.schema.data import EvalTaskset
from strop.data.answers import AnswerSet, has_answers, load_answers
from strop.errors import ConfigError
from strop.protocols import TrainingEngine
from strop.run.evaluate import Evaluation, evaluate
from strop.run.folder import RunFolder, RunState
from strop.run.helpers import open_helpers
from strop.run.passes import Passes
from strop.run.policy import Policy, make_policy, restore
from strop.run.reference import Reference, reference_logprobs
from strop.run.sampler import open_shared_sampler
from strop.run.stopping import StopSignal
from strop.run.tasks import EvalTasks, load_eval_tasks
from strop.training.table import open_engines
from strop.types import Experience, Floats, Group

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What an offline run is measured on."""

    answers: tuple[AnswerSet, ...]
    """By their loss."""
    sampled: EvalTasks
    """By the reward of sampled answers; none without a reward."""


@dataclass(frozen=True, slots=True)
class Pupil:
    """The model that learns, and where it stands."""

    engine: TrainingEngine
    passes: Passes
    state: RunState
    reference: Reference | None
    """The reference's log-probs of all answers, where the algorithm wants them."""
    policy: Policy | None
    """What samples from it, where something is measured that way."""
    stop: StopSignal
    """Asks it to stop."""

    def reference_of(self, experiences: Sequence[Experience]) -> list[Floats] | None:
        """[L] of each, where the algorithm wants them."""
        if self.reference is None:
            return None
        return [self.reference[experience.id] for experience in experiences]

    def measure(self, run: Run, held_out: HeldOut, *, step: int) -> Evaluation:
        """The loss and its like on held-out answers, and the reward of sampled ones."""
        started = time.perf_counter()
        metrics: dict[str, float] = {}
        groups: Mapping[str, list[Group]] = {}
        for answers in held_out.answers:
            experiences = [experience for group in answers.all() for experience in group.experiences]
            measured = self.passes.measure(experiences, self.reference_of(experiences))
            metrics |= {f"eval/{answers.name}/{name}": measured[name] for name in _KEPT if name in measured}
        if self.policy is not None:
            self.policy.synchronizer.publish(step)
            sampled = evaluate(run, self.policy.explorer, held_out.sampled, step=step)
            metrics, groups = metrics | sampled.metrics, sampled.groups
        if metrics:
            metrics["time/evaluate_seconds"] = time.perf_counter() - started
        return Evaluation(metrics, groups)


_KEPT = ("loss", "dpo/margin", "dpo/accuracy")
"""What is measured on held-out answers."""


def require_measures(run: Run, reward: Callable[..., Any] | None) -> None:
    """Raises `ConfigError` for an eval taskset that has neither answers, for a loss, nor a reward."""
    for taskset in run.data.eval:
        if not (has_answers(taskset) or _is_scored(run, taskset, reward)):
            raise ConfigError(
                f"data.eval ({taskset.name}): there is nothing to measure it by. Name its answers, as in "
                "data.train, for a held-out loss, or write a `reward`, by which sampled answers are scored."
            )


def load_held_out(run: Run, tokenizer: PreTrainedTokenizerBase, reward: Callable[..., Any] | None) -> HeldOut:
    """Read and check the eval tasksets: their answers, and where there is a reward, their tasks."""
    answers = tuple(
        load_answers(section, run.data, tokenizer, name=section.name, seed=run.seed, shuffle=False)
        for section in run.data.eval
        if has_answers(section)
    )
    sampled = [taskset for taskset in run.data.eval if _is_scored(run, taskset, reward)]
    return HeldOut(answers, load_eval_tasks(run, tokenizer, sampled))


def _is_scored(run: Run, taskset: EvalTaskset, reward: Callable[..., Any] | None) -> bool:
    section = run.reward if taskset.reward is None else taskset.reward
    return not section.is_empty or (reward is not None and taskset.reward is None)


@contextmanager
def open_pupil(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    reward: Callable[..., Any] | None,
    checkpoint: Path | None,
    held_out: HeldOut,
    train: AnswerSet | None = None,
) -> Iterator[Pupil]:
    """Load the model, for dpo what the reference says of all answers, and then a checkpoint's weights.

    Inside, SIGINT and SIGTERM raise `Interrupted` at the next good moment.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        engine = stack.enter_context(open_engines(run)).policy()
        passes = Passes(engine, run)
        reference = None
        if isinstance(run.algorithm, Dpo):
            # Before any checkpoint is loaded: now the model is the reference.
            sets = held_out.answers if train is None else (train, *held_out.answers)
            kept = RunFolder.of(run).path / "reference"
            reference = reference_logprobs(sets, passes, run.model, kept, stop.check)
        state = restore(engine, checkpoint)
        policy = None
        if held_out.sampled:
            helpers = stack.enter_context(open_helpers(run, reward))
            sampler = stack.enter_context(open_shared_sampler(run, engine, tokenizer))
            policy = make_policy(run, engine, state, sampler, tokenizer, helpers, stop)
        yield Pupil(engine, passes, state, reference, policy, stop)
