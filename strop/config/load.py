"""A run file, overrides or plain Python values -> a checked `Run`, each value with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strop.config.compare import differences
from strop.config.draft import Draft, Keys, Source, plain, split, walk
from strop.config.overrides import apply_override, parse_overrides
from strop.config.placement import SetAside, cuda_devices, refuse, wants_here
from strop.config.resolve import resolve
from strop.config.save import save_resolved
from strop.config.schema import Run
from strop.config.schema.cluster import RayCluster
from strop.config.schema.reward import spell_out_reward
from strop.config.schema.scoring import devices
from strop.config.schema.walk import field_at, leaves, sections
from strop.config.stages import KEY as STAGES
from strop.config.stages import begin_with, split_stages
from strop.config.validate import unknown_key, validate
from strop.config.yaml_file import read_yaml
from strop.errors import ConfigError

__all__ = [
    "Loaded",
    "SetAside",
    "Source",
    "differences",
    "load_run",
    "load_values",
    "run_sources",
    "save_resolved",
]

_Instead = dict[Keys, tuple[SetAside, Any]]
"""What a run asks for and does not get on this machine, and the value that stands in its place."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run, with where each of its values was said and what a reader should know of them."""

    run: Run
    sources: Mapping[str, Source]
    """Dotted field -> where it was said, for every value of the run, defaults too."""
    set_aside: tuple[SetAside, ...] = ()
    """What `--here` put aside."""
    notes: tuple[str, ...] = ()
    """What was written and has no effect, and why."""
    stages: tuple[Loaded, ...] = ()
    """Where the file has stages, each of them; `run` is then the last one's."""

    @property
    def each(self) -> tuple[Loaded, ...]:
        """The stages, or the run itself where there are none."""
        return self.stages or (self,)


def load_run(path: str | Path, overrides: Sequence[str] = (), *, here: bool = False) -> Loaded:
    """Load a run file. Interpolations are resolved after the overrides and before the checks.

    Raises ConfigError (PlacementError for hardware that is not here) with file, line and key.
    """
    draft = read_yaml(Path(path))
    _hint_dialect(draft)
    _override(draft, overrides)
    return _finish(draft, str(path), here=wants_here(here))


def load_values(
    values: Mapping[str, Any], overrides: Sequence[str] = (), *, origin: str = "python", here: bool = False
) -> Loaded:
    """The same for values that a Python program holds; errors call them by `origin`."""
    draft = Draft(plain(values))
    draft.said = {keys: Source("python", origin) for keys, _ in walk(draft.values)}
    _override(draft, overrides)
    return _finish(draft, origin, here=wants_here(here))


def run_sources(run: Run, source: Callable[[Keys], Source | None]) -> Mapping[str, Source]:
    """`source(keys)` for every value of the run, by dotted name; None there means Strop's default."""
    default = Source("default", "")
    return MappingProxyType({".".join(leaf.keys): source(leaf.keys) or default for leaf in leaves(run)})


def _override(draft: Draft, overrides: Sequence[str]) -> None:
    _spell_out(draft)
    for override in parse_overrides(overrides):
        apply_override(
            draft,
            override,
            known=lambda keys: field_at(*_of_run(keys, draft)) is not None,
            suggest=lambda dotted: unknown_key(*_of_run(split(dotted), draft)),
        )
        _spell_out(draft)


def _of_run(keys: Keys, draft: Draft) -> tuple[Keys, Any]:
    """The keys in a run, and that run's values: a stage has the sections of the whole file."""
    inside = keys[:1] == (STAGES,) and len(keys) > 3
    return (keys[2:], draft.get(keys[:2])) if inside else (keys, draft.values)


def _finish(draft: Draft, origin: str, *, here: bool) -> Loaded:
    stages: list[Loaded] = []
    before: tuple[str, Path] | None = None
    for stage in split_stages(draft):
        if before is not None:
            begin_with(stage, *before)
        _spell_out(stage.draft)
        stages.append(_finish_one(stage.draft, origin, here=here))
        if stages[-1].run.mode in ("both", "train"):
            before = (stage.name, stages[-1].run.folder_path / "model")
    return replace(stages[-1], stages=tuple(stages)) if stages else _finish_one(draft, origin, here=here)


def _finish_one(draft: Draft, origin: str, *, here: bool) -> Loaded:
    locate = draft.locator(origin)
    run = validate(resolve(draft.values, locate), draft, origin)
    instead = _instead_of_a_cluster(run) if here else {}
    instead |= _instead_of_cuda(run) if here or not isinstance(run.cluster, RayCluster) else {}
    set_aside = tuple(aside for aside, _ in instead.values())
    if set_aside and not here:
        raise refuse(set_aside)
    for keys, (_, value) in instead.items():
        draft.set(keys, value, Source("here", "--here"))
    if set_aside:
        run = validate(resolve(draft.values, locate), draft, origin)
    return Loaded(run, run_sources(run, draft.source), set_aside)


def _instead_of_a_cluster(run: Run) -> _Instead:
    if not isinstance(run.cluster, RayCluster):
        return {}
    return {("cluster",): (SetAside("cluster", "ray", "this machine"), {"type": "local"})}


def _instead_of_cuda(run: Run) -> _Instead:
    """What the CPU does where there is no GPU; on a cluster its nodes will see."""
    if cuda_devices() > 0:
        return {}
    wanted = [field for field, device in devices(run).items() if device == "cuda"]
    return {split(field): (SetAside(field, "cuda", "the CPU"), "cpu") for field in wanted}


def _spell_out(draft: Draft) -> None:
    """Write the short forms whole, so that overrides can go on inside: `reward: gsm8k`, `engine: native`."""
    for keys in _rewards(draft):
        reward = draft.get(keys)
        if "${" not in str(reward) and spell_out_reward(reward) is not reward:
            draft.set(keys, spell_out_reward(reward), draft.source(keys) or Source("default", ""))
    for keys, value in list(walk(draft.values)):
        source = draft.source(keys)
        if isinstance(value, str) and "${" not in value and source and _names_a_kind(keys, draft):
            draft.set(keys, {"type": value}, source)


def _rewards(draft: Draft) -> list[Keys]:
    measured = draft.get(("data", "eval"))
    count = len(measured) if isinstance(measured, list) else 0
    places = [("reward",), *(("data", "eval", str(index), "reward") for index in range(count))]
    return [keys for keys in places if draft.get(keys) is not None]


def _names_a_kind(keys: Keys, draft: Draft) -> bool:
    field = field_at(keys, draft.values)
    return field is not None and any("type" in kind.model_fields for kind in sections(field.annotation))


def _hint_dialect(draft: Draft) -> None:
    if "actor_rollout_ref" in draft.values:
        where = draft.said[("actor_rollout_ref",)]
        raise ConfigError(
            f"{where}: `actor_rollout_ref` is verl's: this is a verl configuration, not a run file. "
            f"Run it with: strop verl ppo --config {where.where.rsplit(':', 1)[0]}"
        )
