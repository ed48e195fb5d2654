"""What each part of a run does, in plain words, where that is not all in one process."""

from __future__ import annotations

from typing import assert_never

from strop.config.schema import Run
from strop.config.schema.parts import is_apart
from strop.config.schema.synchronizer import ApartSync, ByExplorer, ByTrainer, Fixed, Free, Style
from strop.config.units import Amount


def parts(run: Run) -> str:
    """Which half this is, or that there are two, and which weights a step is sampled with."""
    if not isinstance(run.synchronizer, ApartSync) or not is_apart(run):
        return ""
    match run.mode:
        case "explore":
            who = "This is the explorer alone: it samples and scores, and the trainer is another process."
        case "train":
            who = "This is the trainer alone: it learns from what an explorer elsewhere samples and scores."
        case _:
            who = "Explorer and trainer are two processes of this machine, side by side."
    return f"{who} {_style(run.synchronizer.style)}"


def bench(run: Run) -> str:
    """What mode bench will do."""
    names = ", ".join(taskset.name for taskset in run.data.eval)
    which = ", ".join(run.bench.checkpoints) or f"each checkpoint in {run.folder_path}"
    model = f"{run.model.path} as it is, and with " if run.bench.model else ""
    return f"Measures the held-out tasks ({names}) with {model}{which}. The tables go to {run.folder_path}."


def _style(style: Style) -> str:
    match style:
        case Fixed(every=every, ahead=ahead):
            older = int(ahead.count + every.count) - 1
            return (
                "They take turns."
                if older == 0
                else f"The explorer is {ahead} ahead, with new weights every {every}: what is trained on was "
                f"sampled by weights up to {Amount(older, 'steps')} old."
            )
        case Free(max_staleness=oldest):
            return f"What is trained on was sampled by weights at most {oldest} old."
        case ByTrainer(every=every):
            return f"The trainer gives new weights every {every}; the explorer takes the newest there are."
        case ByExplorer(every=every):
            return f"The explorer asks for new weights every {every} of its own."
        case _:
            assert_never(style)
