"""Explorer and trainer apart: what a run file means that says little, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from strop.config.explain import summary
from strop.config.load import Loaded, load_values
from strop.config.save import said
from strop.errors import ConfigError

BASE: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}}
SFT = ["algorithm=sft", "data.train.response=answer"]


def load(*overrides: str) -> Loaded:
    return load_values(BASE, overrides)


@pytest.mark.parametrize(
    ("overrides", "synchronizer", "buffer"),
    [
        ([], "memory", "queue"),
        (["mode=train"], "checkpoint", "sql"),
        (["mode=explore"], "checkpoint", "sql"),
        (["synchronizer=checkpoint"], "checkpoint", "sql"),
        (["synchronizer.style.ahead=1 steps"], "checkpoint", "sql"),
        (["synchronizer=checkpoint", "buffer=file"], "checkpoint", "file"),
        (["synchronizer=collective"], "collective", "sql"),
        ([*SFT, "mode=train"], "memory", "queue"),
    ],
)
def test_what_is_left_out_fits_what_is_said(overrides: list[str], synchronizer: str, buffer: str) -> None:
    run = load(*overrides).run
    assert (run.synchronizer.type, run.buffer.type) == (synchronizer, buffer)
    assert load_values(said(run)).run == run


def test_a_style_may_be_said_by_its_name() -> None:
    run = load("synchronizer.style=free").run
    assert run.synchronizer.type == "checkpoint"
    assert run.synchronizer.style.type == "free"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["mode=train", "synchronizer=memory"], r"one half of a run.*write checkpoint here, or mode: both"),
        (["mode=train", "buffer=queue"], r"buffer.type: queue .* write `buffer: sql`, or mode: both"),
        (["buffer={type: priority, reuse_cooldown_seconds: 1}"], r"memory each step learns from what it has"),
        (["synchronizer=checkpoint", "buffer={type: priority, reuse_cooldown_seconds: 1}"], r"or some again"),
        (["synchronizer.style.ahead=1 steps", "buffer=priority"], r"gives the newest groups first.* free`"),
        (["mode=explore", "buffer=priority"], r"mode explore is one of these alone"),
        (["synchronizer.style={type: free, every: 4 steps}"], r"would wait for each other.*3 steps or more"),
        (
            ["synchronizer.style.ahead=100 steps"],
            r"\(4096\) holds fewer than the 101 steps .*write 6464 or",
        ),
        (
            ["synchronizer.style={type: free, max_staleness: 64 steps}"],
            r"65 steps .*write 4160 or more, or a smaller max_staleness",
        ),
        (
            ["mode=train", "synchronizer=collective"],
            r"mode train is one of them alone; write checkpoint here",
        ),
        (
            ["synchronizer={type: collective, backend: nccl}", "trainer.engine.device=cpu"],
            r"nccl joins GPUs, and trainer.engine.device is cpu; write gloo, or auto",
        ),
        (
            [
                "synchronizer={type: collective, backend: nccl}",
                "cluster={type: ray, nodes: 2, gpus_per_node: 1}",
                "trainer.engine={type: fsdp2, ranks: 2}",
            ],
            r"wants 3 GPUs, one of them for the explorer, .* 2 nodes of 1",
        ),
        (
            ["synchronizer={type: collective, backend: nccl}", "rollout.pool.engines=2"],
            r"take them from host memory; write gloo",
        ),
        (["synchronizer={type: collective, folder: x}"], r"means nothing under `type: collective`"),
        (["mode=explore", *SFT], r"sft learns from given answers; write train"),
        ([*SFT, "synchronizer=checkpoint"], r"under algorithm sft there is none; take the section out"),
        (["mode=train", "resume=never"], r"for a new run another `name`"),
        (["synchronizer=checkpoint", "resume=runs/a/b"], r"says nothing of where an explorer stood"),
        (
            [
                "synchronizer=checkpoint",
                "trainer.schedule=reduce_lr_on_plateau",
                "evaluate.every=2 steps",
                "data.eval=[{path: e.jsonl}]",
            ],
            r"follows the evaluations, which the explorer makes",
        ),
        (["synchronizer=checkpoint", "checkpoint.copy_to=/b"], r"keeps the trainer's half"),
        (["synchronizer={type: memory, style: free}"], r"unknown key"),
        (["synchronizer.style={type: trainer, ahead: 1 steps}"], r"means nothing under `type: trainer`"),
    ],
)
def test_what_would_deadlock_or_mean_nothing_is_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(*overrides)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["synchronizer=checkpoint"], "two processes of this machine, side by side. They take turns."),
        (["synchronizer=collective"], "two processes of this machine, side by side. They take turns."),
        (["mode=explore"], "This is the explorer alone"),
        (
            ["mode=train", "synchronizer.style.ahead=1 steps"],
            "1 step ahead, with new weights every 1 step",
        ),
        (["synchronizer.style={type: free, max_staleness: 3 steps}"], "by weights at most 3 steps old"),
        (
            ["mode=bench", "data.eval=[{path: e, name: test}]"],
            "Measures the held-out tasks (test) with m as",
        ),
    ],
)
def test_the_paragraph_says_who_does_what(overrides: list[str], says: str) -> None:
    assert says in summary(load(*overrides))


def test_in_one_process_it_says_nothing_of_it() -> None:
    assert "explorer" not in summary(load()).lower()
