"""Effects of experience operators, as metrics: rollouts that were removed, and rewards that were changed."""

from __future__ import annotations

from dataclasses import dataclass, field

from strop.types import RolloutGroup


@dataclass(slots=True)
class OperatorEffect:
    """Counts of one operator over the groups that it has seen; failed rollouts are not counted."""

    seen: int = 0
    """Rollouts in the operator's input."""
    left: int = 0
    """Rollouts that it left."""
    changed: int = 0
    """Rollouts that it left with another reward."""
    change: float = 0.0
    """Sum of the changes of these rewards."""

    def add(self, before: RolloutGroup, after: RolloutGroup | None) -> None:
        """Count a group."""
        given = {r.index: r.reward for r in before.rollouts if r.reward is not None}
        rollouts = () if after is None else after.rollouts
        left = [(r.reward, given[r.index]) for r in rollouts if r.reward is not None and r.index in given]
        self.seen += len(given)
        self.left += len(left)
        self.changed += sum(new != old for new, old in left)
        self.change += sum(new - old for new, old in left)


@dataclass(slots=True)
class PipelineEffects:
    """Effects of the operators of a pipeline since the metrics were taken last."""

    names: tuple[str, ...]
    """Name of each operator in metrics, such as `2_reward_shaping`."""
    effects: list[OperatorEffect] = field(init=False)

    def __post_init__(self) -> None:
        self._reset()

    def take_metrics(self) -> dict[str, float]:
        """Metrics of each operator that has seen a rollout; the counts begin again."""
        metrics: dict[str, float] = {}
        for name, effect in zip(self.names, self.effects, strict=True):
            if not effect.seen:
                continue
            metrics[f"pipeline/{name}/removed_fraction"] = 1 - effect.left / effect.seen
            if effect.left:
                metrics[f"pipeline/{name}/changed_fraction"] = effect.changed / effect.left
                metrics[f"pipeline/{name}/reward_change"] = effect.change / effect.left
        self._reset()
        return metrics

    def _reset(self) -> None:
        self.effects = [OperatorEffect() for _ in self.names]
