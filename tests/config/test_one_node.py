"""Keys for the loss of a node where all ranks are on one node: refused, because they would have no effect."""

from __future__ import annotations

import pytest

import strop
from strop.config.checks.nodes import one_node_fault
from strop.errors import ConfigError, PlacementError


def run_of(engine: dict | None = None, elastic: dict | None = None, **more):
    trainer = {"engine": {"type": "fsdp2", "ranks": 4, **(engine or {})}, "elastic": elastic}
    model, data = {"path": "model"}, {"train": {"path": "tasks.jsonl"}}
    return strop.load(
        {"project": "p", "name": "n", "model": model, "data": data, "reward": "gsm8k"}
        | more
        | {"trainer": trainer}
    )


@pytest.mark.parametrize(
    ("engine", "elastic", "named"),
    [
        (None, {"min_ranks": 2}, "trainer.elastic.min_ranks: all ranks"),
        (None, {"min_ranks": 2, "wait_seconds": 5}, "min_ranks and trainer.elastic.wait_seconds"),
        ({"network": {"node_timeout_seconds": 5}}, None, "trainer.engine.network.node_timeout_seconds"),
        (None, {}, None),
        (None, {"max_restarts": 1}, None),
        ({"network": {"interface": "eth0"}}, None, None),
    ],
)
def test_keys_without_an_effect_on_one_node_are_named(engine, elastic, named):
    run = run_of(engine, elastic).run
    fault = one_node_fault(run, is_launched=False)
    assert fault is None if named is None else named in fault
    assert one_node_fault(run, is_launched=True) is None
    on_ray = run_of(
        engine, elastic and elastic | {"max_restarts": 3}, cluster="ray", synchronizer="checkpoint"
    ).run
    assert one_node_fault(on_ray, is_launched=False) is None


def test_such_a_run_is_refused_at_its_start():
    with pytest.raises(
        PlacementError, match=r"min_ranks: all ranks are processes of this machine.*torchrun or with"
    ):
        strop.train(run_of(elastic={"min_ranks": 2}))


def test_restarts_of_a_separate_trainer_are_counted_by_the_synchronizer():
    with pytest.raises(
        ConfigError, match=r"elastic\.max_restarts counts .*write synchronizer\.max_restarts instead"
    ):
        run_of(elastic={"max_restarts": 1}, synchronizer="checkpoint")
