"""Every key of the five pages, set to another value, changes the run, has a notice, or is refused."""

from __future__ import annotations

import pytest

from benchmarks.key_effects import BASES, DIALECTS, effect_of, rows_on_page, try_values, write_files


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_key_is_silent(dialect: str) -> None:
    write_files()
    tried = [each for row in rows_on_page(dialect) for each in try_values(dialect, row)]
    assert [each for each in tried if each.effect == "silent"] == []


@pytest.mark.parametrize(
    ("dialect", "key", "value", "effect"),
    [
        ("verl", "actor_rollout_ref.rollout.dtype", "bf16", "silent"),  # another name of the default
        ("verl", "data.train_batch_size", 2048, "effect"),
        ("verl", "actor_rollout_ref.actor.use_torch_compile", False, "notice"),
        ("verl", "trainer.n_gpus_per_node", 4, "placement"),
        ("verl", "data.train_batch_size", "many", "refused"),
        ("trinity", "buffer.explorer_input.taskset.split", "test", "notice"),
    ],
)
def test_effects(dialect: str, key: str, value: object, effect: str) -> None:
    write_files()
    assert effect_of(dialect, key, value) == effect


def test_every_dialect_has_a_configuration() -> None:
    assert set(BASES) == set(DIALECTS)
