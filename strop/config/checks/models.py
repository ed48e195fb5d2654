"""Checks of the auxiliary models' names and of the judges that use them."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.effective_reward import configured_rewards
from strop.config.schema.run import Run


def model_faults(run: Run) -> Iterator[str]:
    """Faults in `rollout.auxiliary_models`: a name given twice, or a judge whose model is not listed."""
    names = [model.name for model in run.rollout.auxiliary_models]
    called = [*names, run.rollout.endpoint.model]
    for name in sorted({name for name in called if called.count(name) > 1}):
        yield f"rollout.auxiliary_models: two models have the name {name!r}; write two different names"
    for where, reward in configured_rewards(run).items():
        for judge in reward.judges:
            if judge.url == "auxiliary" and judge.model not in names:
                yield (
                    f"{where}.judges ({judge.name}).model: there is no {judge.model!r} in "
                    f"rollout.auxiliary_models; the names are {', '.join(names) or 'none'}"
                )
