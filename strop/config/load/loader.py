"""Loading of a run file, overrides or Python values to a validated `Run`, each value with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strop.config.load.config_tree import (
    ConfigTree,
    KeyPath,
    Locate,
    Source,
    iter_values,
    split_key,
    to_plain,
)
from strop.config.load.deprecated_names import (
    replace_deprecated,
    replace_in_override,
    replace_resolved_types,
)
from strop.config.load.interpolation import UnresolvedError, environment_texts, resolve_interpolations
from strop.config.load.overrides import apply_override, override_source, parse_valid_overrides
from strop.config.load.placement import (
    OverriddenKey,
    configured_devices,
    count_cuda_devices,
    here_requested,
    placement_error,
)
from strop.config.load.run_folder import is_run_folder, read_run_folder
from strop.config.load.schema_faults import KeyOwner, similar_key, unknown_key, unknown_owner
from strop.config.load.stages import STAGES_KEY, set_initial_model, split_stages
from strop.config.load.validation import validate
from strop.config.load.value_limits import references, value_at
from strop.config.load.yaml_file import read_yaml
from strop.config.paths import expand_user
from strop.config.schema import Run
from strop.config.schema.cluster import RayClusterConfig
from strop.config.schema.data import expand_train_list
from strop.config.schema.reward import expand_reward
from strop.config.schema.walk import field_at, leaves, section_types
from strop.errors import ConfigError, Fault, config_error
from strop.python_rewards import PythonReward

_Replacements = dict[KeyPath, tuple[OverriddenKey, Any]]
"""Overridden placement keys, with the values that replace them."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """Run with the sources of its values and notes for the user."""

    run: Run
    sources: Mapping[str, Source]
    """Source of every value of the run by its dotted key, including defaults."""
    overridden: tuple[OverriddenKey, ...] = ()
    """Placement keys that `--here` overrides."""
    notes: tuple[str, ...] = ()
    """Deprecated names that were written, and values without effect, each with its source and the reason."""
    rewards: tuple[PythonReward, ...] = ()
    """Reward functions of the Python program that configures the run, besides those that the run names."""
    callbacks: tuple[Any, ...] = ()
    """Objects with methods of `strop.Callback` of that program, called during training."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables that the configuration sets for the run, such as the API key of a tracking service; no file
    of the run has them."""
    stages: tuple[LoadedRun, ...] = ()
    """Stages of the file; `run` is then the run of the last stage. Empty for a file without stages."""

    @property
    def runs(self) -> tuple[LoadedRun, ...]:
        """The stages, or the run itself if there are none."""
        return self.stages or (self,)


def load_run(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    here: bool = False,
    key_owner: KeyOwner = unknown_owner,
) -> LoadedRun:
    """Load a run file, or the configuration of a run's folder. Interpolations are resolved after the overrides and
    before the checks.

    Raises ConfigError (PlacementError for missing hardware) with file, line and key.
    """
    path = expand_user(path)
    tree = read_run_folder(path) if is_run_folder(path) else read_yaml(path)
    _hint_dialect(tree)
    return _load_draft(tree, overrides, str(path), here=here, key_owner=key_owner)


def load_values(
    values: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    origin: str = "python",
    here: bool = False,
    key_owner: KeyOwner = unknown_owner,
) -> LoadedRun:
    """Load values from Python, like `load_run`; `origin` is their name in errors."""
    tree = ConfigTree(to_plain(values))
    tree.sources = {keys: Source("python", origin) for keys, _ in iter_values(tree.values)}
    return _load_draft(tree, overrides, origin, here=here, key_owner=key_owner)


def _load_draft(
    tree: ConfigTree, overrides: Sequence[str], origin: str, *, here: bool, key_owner: KeyOwner
) -> LoadedRun:
    notices = tuple(dict.fromkeys((*replace_deprecated(tree), *_apply_overrides(tree, overrides, key_owner))))
    try:
        loaded = _load_tree(tree, origin, here=here_requested(here), key_owner=key_owner)
    except ConfigError as error:
        error.notices = notices
        raise
    return _with_notes(loaded, notices)


def _with_notes(loaded: LoadedRun, notes: tuple[str, ...]) -> LoadedRun:
    """The run with notes; if it has stages, the first one shows them."""
    if not loaded.stages:
        return replace(loaded, notes=notes)
    first, *others = loaded.stages
    return replace(loaded, stages=(replace(first, notes=notes), *others))


def run_sources(run: Run, source: Callable[[KeyPath], Source | None]) -> Mapping[str, Source]:
    """Return the source of every value of the run by its dotted key; `source` returns None for a default."""
    default = Source("default", "")
    return MappingProxyType({".".join(leaf.keys): source(leaf.keys) or default for leaf in leaves(run)})


def _apply_overrides(tree: ConfigTree, overrides: Sequence[str], key_owner: KeyOwner) -> list[str]:
    """Apply the overrides in order; returns the notices for the deprecated names in them. Overrides that
    cannot be applied are faults of the tree."""
    notices: list[str] = []
    _expand_shorthands(tree)
    for written in parse_valid_overrides(overrides, tree.faults):
        try:
            override, found = replace_in_override(written, override_source(written))
            apply_override(
                tree,
                override,
                known=lambda keys: field_at(*_within_run(keys, tree)) is not None,
                suggest=partial(_suggestion, override.value(), tree, key_owner),
            )
        except ConfigError as error:
            keys = split_key(written.key_or_group)
            tree.faults += error.faults
            tree.faulty |= {keys, similar_key(*_within_run(keys, tree)) or keys}
            continue
        notices += found
        _expand_shorthands(tree)
    return notices


def _suggestion(value: Any, tree: ConfigTree, key_owner: KeyOwner, dotted: str) -> str:
    keys, values = _within_run(split_key(dotted), tree)
    return unknown_key(keys, value, values, key_owner)


def _within_run(keys: KeyPath, tree: ConfigTree) -> tuple[KeyPath, Any]:
    """Return the keys and values relative to a run; a stage has the same sections as the file."""
    inside = keys[:1] == (STAGES_KEY,) and len(keys) > 3
    return (keys[2:], tree.get(keys[:2])) if inside else (keys, tree.values)


def _load_tree(tree: ConfigTree, origin: str, *, here: bool, key_owner: KeyOwner) -> LoadedRun:
    stages: list[LoadedRun] = []
    before: tuple[str, Path] | None = None
    faults: list[Fault] = []
    for stage in split_stages(tree):
        if before is not None:
            set_initial_model(stage, *before)
        _expand_shorthands(stage.tree)
        try:
            stages.append(_load_single(stage.tree, origin, here=here, key_owner=key_owner))
        except ConfigError as error:
            faults += error.faults
            continue
        if stages[-1].run.mode in ("both", "train"):
            before = (stage.name, stages[-1].run.folder_path / "model")
    if faults:
        raise config_error(faults)
    if not stages:
        return _load_single(tree, origin, here=here, key_owner=key_owner)
    return replace(stages[-1], stages=tuple(stages))


def _load_single(tree: ConfigTree, origin: str, *, here: bool, key_owner: KeyOwner) -> LoadedRun:
    locate = tree.locator(origin)

    def lacking(run: Run) -> Sequence[Fault]:
        overridden = [aside for aside, _ in _replacements(run, here=here).values()]
        return placement_error(overridden).faults if overridden and not here else ()

    run = validate(_resolved(tree, locate), tree, origin, key_owner, lacking)
    instead = _replacements(run, here=here)
    overridden = tuple(aside for aside, _ in instead.values())
    for keys, (_, value) in instead.items():
        tree.set(keys, value, Source("here", "--here"))
    if overridden:
        run = validate(_resolved(tree, locate), tree, origin, key_owner)
    run = run.with_interpolations(_saved_texts(tree, run))
    return LoadedRun(run, run_sources(run, tree.source), overridden)


def _saved_texts(tree: ConfigTree, run: Run) -> dict[str, str]:
    """The interpolations of environment variables that give a text; numbers are saved as they are."""
    texts = environment_texts(tree.values)
    values = run.model_dump(mode="json") if texts else {}
    return {".".join(keys): text for keys, text in texts.items() if isinstance(value_at(values, keys), str)}


def _resolved(tree: ConfigTree, locate: Locate) -> dict[str, Any]:
    """The resolved values. One that cannot be resolved is left out, and is a fault of the tree."""
    values = tree.values
    while True:
        try:
            resolved: dict[str, Any] = replace_resolved_types(resolve_interpolations(values, locate))
            return resolved
        except UnresolvedError as error:
            written = ConfigTree(values)
            if not error.keys or not written.has(error.keys):
                raise config_error([*tree.faults, *error.faults]) from None
            if tree.faulty.isdisjoint(references(str(written.get(error.keys)), error.keys)):
                tree.faults += error.faults
            tree.faulty.add(error.keys)
            written = ConfigTree(to_plain(values))
            written.delete(error.keys)
            values = written.values


def _replacements(run: Run, *, here: bool) -> _Replacements:
    """The placement of the run that this machine does not have, with what replaces it."""
    instead = _cluster_replacements(run) if here else {}
    uses_cuda_here = here or not isinstance(run.cluster, RayClusterConfig)
    return instead | (_cuda_replacements(run) if uses_cuda_here else {})


def _cluster_replacements(run: Run) -> _Replacements:
    if not isinstance(run.cluster, RayClusterConfig):
        return {}
    return {("cluster",): (OverriddenKey("cluster", "ray", "this machine"), {"type": "local"})}


def _cuda_replacements(run: Run) -> _Replacements:
    """Return the keys that name a GPU, with `cpu` as a replacement, if this machine has no GPU."""
    if count_cuda_devices() > 0:
        return {}
    wanted = [field for field, device in configured_devices(run).items() if device == "cuda"]
    return {split_key(field): (OverriddenKey(field, "cuda", "the CPU"), "cpu") for field in wanted}


def _expand_shorthands(tree: ConfigTree) -> None:
    """Expand shorthands such as `reward: gsm8k` and `engine: native`, so that overrides can set keys in
    them."""
    _expand_train_list(tree)
    for keys in _rewards(tree):
        reward = tree.get(keys)
        if "${" not in str(reward) and expand_reward(reward) is not reward:
            tree.set(keys, expand_reward(reward), tree.source(keys) or Source("default", ""))
    for keys, value in list(iter_values(tree.values)):
        source = tree.source(keys)
        if isinstance(value, str) and "${" not in value and source and _is_type_shorthand(keys, tree):
            tree.set(keys, {"type": value}, source)


def _expand_train_list(tree: ConfigTree) -> None:
    """Move the items of a list `data.train` to the keys of a mixture, with their sources."""
    data = tree.get(("data",))
    expanded = expand_train_list(data)
    if expanded is data:
        return
    above, sources = ("data", "train"), {}
    for keys, source in tree.sources.items():
        if keys[:2] != above or len(keys) == 2:
            sources[keys] = source
        elif keys[2] == "0":
            sources[(*above, *keys[3:])] = source
        else:
            sources[("data", "mixture", str(int(keys[2]) - 1), *keys[3:])] = source
    if above in tree.sources:
        sources.setdefault(("data", "mixture"), tree.sources[above])
    data.clear()
    data.update(expanded)
    tree.sources = sources


def _rewards(tree: ConfigTree) -> list[KeyPath]:
    measured = tree.get(("data", "eval"))
    count = len(measured) if isinstance(measured, list) else 0
    places = [("reward",), *(("data", "eval", str(index), "reward") for index in range(count))]
    return [keys for keys in places if tree.get(keys) is not None]


def _is_type_shorthand(keys: KeyPath, tree: ConfigTree) -> bool:
    field = field_at(keys, tree.values)
    return field is not None and any("type" in kind.model_fields for kind in section_types(field.annotation))


def _hint_dialect(tree: ConfigTree) -> None:
    if "actor_rollout_ref" in tree.values:
        where = tree.sources[("actor_rollout_ref",)]
        raise ConfigError(
            f"{where}: `actor_rollout_ref` is a key of verl: this is a verl configuration, not a run file. "
            f"Run it with: strop verl ppo --config {where.location.rsplit(':', 1)[0]}"
        )
