"""What sft and dpo need before their first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from strop.config.schema import Run
from strop.config.schema.algorithm import Dpo
from strop.data.answers import AnswerSet, has_answers, load_answers
from strop.errors import ConfigError
from strop.run.folder import RunFolder
from strop.run.length import length_of
from strop.run.offline_driver import Answers, OfflineDriver, Pupil
from strop.run.policy import make_policy, open_rewards, restore
from strop.run.policy_updates import PolicyUpdates
from strop.run.prepared import Prepared
from strop.run.reference import reference_logprobs
from strop.run.resume import Start
from strop.run.stopping import StopSignal
from strop.run.tasks import load_eval_tasks
from strop.training.table import open_engines

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@contextmanager
def open_offline(
    run: Run,
    tokenizer: PreTrainedTokenizerBase,
    reward: Callable[..., Any] | None,
    start: Start,
    folder: RunFolder,
) -> Iterator[Prepared]:
    """Read and check all answers, load the model and, for dpo, what the reference says of them.

    Inside, SIGINT and SIGTERM raise `Interrupted` between two steps.
    """
    answers = _load(run, tokenizer, scored=not run.reward.is_empty or reward is not None)
    length = length_of(run, answers.train.steps_per_epoch(run.trainer.tasks_per_step))
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignal())
        engine = stack.enter_context(open_engines(run)).policy()
        updates = PolicyUpdates(engine, run, length)
        reference = None
        if isinstance(run.algorithm, Dpo):
            # Before any checkpoint is loaded: now the model is the reference.
            sets = (answers.train, *answers.eval)
            reference = reference_logprobs(sets, updates, run.model, folder.path / "reference", stop.check)
        state = restore(engine, start.checkpoint)
        policy = None
        if answers.sampled:
            scorer = stack.enter_context(open_rewards(run, reward))
            policy = make_policy(run, engine, state, tokenizer, scorer, stop)
        pupil = Pupil(engine, updates, state, reference, policy)
        yield Prepared(
            engine,
            length,
            (*map(str, (answers.train, *answers.eval)), *(policy.notes if policy else ())),
            lambda recorder: OfflineDriver(run, pupil, answers, stop, length, folder, recorder),
        )


def require_measures(run: Run, reward: Callable[..., Any] | None) -> None:
    """Raises `ConfigError` for an eval taskset that has neither answers, for a loss, nor a reward."""
    for taskset in run.data.eval:
        if not (has_answers(taskset) or reward or not run.reward.is_empty):
            raise ConfigError(
                f"data.eval ({taskset.name}): there is nothing to measure it by. Name its answers, as in "
                "data.train, for a held-out loss, or write a `reward`, by which sampled answers are scored."
            )


def _load(run: Run, tokenizer: PreTrainedTokenizerBase, *, scored: bool) -> Answers:
    data = run.data
    train = load_answers(data.train, data, tokenizer, name="train", seed=run.seed, shuffle=data.shuffle)
    held_out: list[AnswerSet] = [
        load_answers(section, data, tokenizer, name=section.name, seed=run.seed, shuffle=False)
        for section in data.eval
        if has_answers(section)
    ]
    return Answers(train, tuple(held_out), load_eval_tasks(run, tokenizer) if scored else ())
