"""Defaults and checks of runs whose explorer and trainer are separate processes."""

from __future__ import annotations

from typing import Any

import pytest

from strop.config.explain.summary import summarize
from strop.config.load.loader import LoadedRun, load_values
from strop.config.save import minimal_values
from strop.errors import ConfigError

BASE: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}}
SFT = ["algorithm=sft", "data.train.response=answer"]


def load(*overrides: str) -> LoadedRun:
    return load_values(BASE, overrides)


@pytest.mark.parametrize(
    ("overrides", "synchronizer", "buffer"),
    [
        ([], "memory", "queue"),
        (["mode=train"], "checkpoint", "sql"),
        (["mode=explore"], "checkpoint", "sql"),
        (["synchronizer=checkpoint"], "checkpoint", "sql"),
        (["synchronizer.style.max_lead=1 steps"], "checkpoint", "sql"),
        (["synchronizer=checkpoint", "buffer=file"], "checkpoint", "file"),
        (["synchronizer=collective"], "collective", "sql"),
        ([*SFT, "mode=train"], "memory", "queue"),
    ],
)
def test_default_synchronizer_and_buffer(overrides: list[str], synchronizer: str, buffer: str) -> None:
    run = load(*overrides).run
    assert (run.synchronizer.type, run.buffer.type) == (synchronizer, buffer)
    assert load_values(minimal_values(run)).run == run


def test_a_style_may_be_written_as_its_name() -> None:
    run = load("synchronizer.style=bounded").run
    assert run.synchronizer.type == "checkpoint"
    assert run.synchronizer.style.type == "bounded"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ["mode=train", "synchronizer=memory"],
            r"mode train runs one of them; write checkpoint, or mode: both",
        ),
        (["mode=train", "buffer=queue"], r"buffer.type: queue .* write `buffer: sql`, or mode: both"),
        (
            ["buffer={type: priority, reuse_cooldown_seconds: 1}"],
            r"memory each step trains on the groups that it has",
        ),
        (
            ["synchronizer=checkpoint", "buffer={type: priority, reuse_cooldown_seconds: 1}"],
            r"or groups that were used before",
        ),
        (
            ["synchronizer.style.max_lead=1 steps", "buffer=priority"],
            r"returns the newest groups first.* bounded`",
        ),
        (["mode=explore", "buffer=priority"], r"mode explore runs one role"),
        (
            ["synchronizer.style={type: bounded, every: 4 steps}"],
            r"would wait for each other.*3 steps or more",
        ),
        (
            ["synchronizer.style.max_lead=100 steps"],
            r"\(4096\) is less than the 101 steps .*write 6464 or",
        ),
        (
            ["synchronizer.style={type: bounded, max_staleness: 64 steps}"],
            r"65 steps .*write 4160 or more, or a smaller max_staleness",
        ),
        (
            ["mode=train", "synchronizer=collective"],
            r"mode train runs one of them; write checkpoint",
        ),
        (
            ["synchronizer={type: collective, backend: nccl}", "trainer.engine.device=cpu"],
            r"nccl transfers between GPUs, and trainer.engine.device is cpu; write gloo, or auto",
        ),
        (
            [
                "synchronizer={type: collective, backend: nccl}",
                "cluster={type: ray, nodes: 2, gpus_per_node: 1}",
                "trainer.engine={type: fsdp2, ranks: 2}",
            ],
            r"requires 3 GPUs, one of them for the explorer, .* 2 nodes with 1 GPUs each",
        ),
        (
            ["synchronizer={type: collective, backend: cuda_ipc}", "trainer.engine.device=cpu"],
            r"cuda_ipc transfers between GPUs, and trainer.engine.device is cpu; write gloo, or auto",
        ),
        (
            ["synchronizer={type: collective, backend: nccl}", "rollout.pool.engines=2"],
            r"load them from host memory; write gloo",
        ),
        (["synchronizer={type: collective, folder: x}"], r"has no effect under `type: collective`"),
        (["mode=explore", *SFT], r"algorithm sft has no explorer; write train"),
        ([*SFT, "synchronizer=checkpoint"], r"algorithm sft has no explorer; remove the section"),
        (["mode=train", "resume=never"], r"for a new run another `name`"),
        (["synchronizer=checkpoint", "resume=runs/a/b"], r"without the explorer's state"),
        (
            [
                "synchronizer=checkpoint",
                "trainer.schedule=reduce_lr_on_plateau",
                "evaluate.every=2 steps",
                "data.eval=[{path: e.jsonl}]",
            ],
            r"needs the evaluations in the trainer",
        ),
        (["synchronizer=checkpoint", "checkpoint.mirror=/b"], r"copies the trainer's state only"),
        (["synchronizer={type: memory, style: bounded}"], r"unknown key"),
        (["synchronizer.style={type: latest, max_lead: 1 steps}"], r"has no effect under `type: latest`"),
    ],
)
def test_a_topology_that_deadlocks_or_has_no_effect_is_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(*overrides)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["synchronizer=checkpoint"], "two processes of this machine. They take turns."),
        (["synchronizer=collective"], "two processes of this machine. They take turns."),
        (["mode=explore"], "This is the explorer: it samples"),
        (
            ["mode=train", "synchronizer.style.max_lead=1 steps"],
            "at most 1 step ahead, with new weights every 1 step",
        ),
        (["synchronizer.style={type: bounded, max_staleness: 3 steps}"], "weights at most 3 steps old"),
        (
            ["mode=bench", "data.eval=[{path: e, name: test}]"],
            "initial model m and of each checkpoint",
        ),
    ],
)
def test_the_summary_names_the_processes(overrides: list[str], says: str) -> None:
    assert says in summarize(load(*overrides))


def test_the_summary_of_a_single_process_names_no_processes() -> None:
    assert "explorer" not in summarize(load()).lower()
