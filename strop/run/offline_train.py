"""What sft and dpo need before their first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from strop.config.schema import Run
from strop.data.answers import load_answers
from strop.run.folder import RunFolder
from strop.run.length import length_of
from strop.run.offline_driver import OfflineDriver
from strop.run.prepared import Prepared
from strop.run.pupil import load_held_out, open_pupil
from strop.run.resume import Start

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
    """Read and check all answers, and load the model that learns from them."""
    data = run.data
    train = load_answers(data.train, data, tokenizer, name="train", seed=run.seed, shuffle=data.shuffle)
    held_out = load_held_out(run, tokenizer, reward)
    length = length_of(run, train.steps_per_epoch(run.trainer.tasks_per_step))
    with open_pupil(run, tokenizer, reward, start.checkpoint, held_out, train) as pupil:
        notes = (*map(str, (train, *held_out.answers)), *(pupil.policy.notes if pupil.policy else ()))
        yield Prepared(
            pupil.engine,
            length,
            notes,
            lambda recorder: OfflineDriver(run, pupil, train, held_out, length, folder, recorder),
        )
