"""`tools/upstream_keys.py`: the keys of a release on which nobody has decided."""

from __future__ import annotations

import pytest

from tools.upstream_keys import Key, undecided

_LR = ("verl", "actor_rollout_ref.actor.optim.lr", 1e-6)


@pytest.mark.parametrize(
    ("key", "heading"),
    [
        (_LR, None),
        (("verl", "actor_rollout_ref.actor.optim.lr", 2e-6), "another default"),
        (("verl", "trainer.no_such_key", 1), "new"),
        (("verl", "critic.ppo_epochs", "${oc.select:actor_rollout_ref.actor.ppo_epochs,1}"), None),
        (("verl", "trainer.test_freq", -1), None),
        (("verl", "trainer.test_freq", 3), "another default"),
        (("verl", "reward_model.reward_manager", None), None),
    ],
)
def test_keys_of_a_release(key: Key, heading: str | None) -> None:
    assert [name for name, lines in undecided([key]).items() if lines] == ([heading] if heading else [])


def test_keys_that_are_gone() -> None:
    """A key whose row has a last version is decided."""
    earlier = [_LR, ("verl", "critic.load_weight", True), ("verl", "trainer.no_such_key", 1)]
    assert undecided([], earlier)["gone"] == ["verl: actor_rollout_ref.actor.optim.lr"]
