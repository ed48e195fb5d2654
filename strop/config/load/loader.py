"""Loading of a run file, a run's folder, stages, overrides or Python values to a validated `Run`, each value with its
source."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ValidationError

from strop.config.aliases import replace_deprecated, replace_in_override, replace_resolved_types
from strop.config.checks.run import run_faults
from strop.config.load.config_tree import (
    ConfigTree,
    KeyPath,
    Locate,
    Source,
    UnresolvedError,
    environment_texts,
    iter_values,
    references,
    resolve_interpolations,
    split_key,
    to_plain,
    value_at,
)
from strop.config.load.overrides import apply_override, override_source, parse_valid_overrides
from strop.config.load.schema_faults import (
    KeyOwner,
    SchemaFault,
    schema_faults,
    sentence,
    similar_key,
    unknown_key,
    unknown_owner,
    users_words,
)
from strop.config.load.yaml_file import read_yaml
from strop.config.machine import (
    OverriddenKey,
    configured_devices,
    count_cuda_devices,
    here_requested,
    placement_error,
)
from strop.config.paths import check_file_name, existing_path, expand_user
from strop.config.schema import Run
from strop.config.schema.data import expand_train_list
from strop.config.schema.reward import expand_reward
from strop.config.schema.run import RayClusterConfig, StageConfig, field_at, leaves, section_types
from strop.errors import ConfigError, Fault, FaultKind, config_error
from strop.printable import closest, did_you_mean
from strop.python_rewards import PythonReward
from strop.workers.files import read_regular
from strop.workers.json_text import parse_json

STAGES_KEY = "stages"


@dataclass(frozen=True, slots=True)
class StageConfigTree:
    """Stage with the configuration tree of its run."""

    name: str
    tree: ConfigTree
    sets_model: bool
    """Whether the stage has its own `model.path`."""


def split_stages(tree: ConfigTree) -> list[StageConfigTree]:
    """Return the stages in order; none for a file without stages. An unknown key of a stage is a fault of its
    tree. Raises ConfigError for a stage without a valid name."""
    return [_stage(tree, index, written) for index, written in enumerate(_written(tree))]


def set_initial_model(stage: StageConfigTree, before: str, model: Path) -> None:
    """Set the stage's model to that of the previous stage, unless the stage has its own."""
    if not stage.sets_model:
        stage.tree.set(("model", "path"), str(model), Source("stage", f"the model of stage {before}"))


def _written(tree: ConfigTree) -> list[Any]:
    stages = tree.values.get(STAGES_KEY) or []
    where = tree.source((STAGES_KEY,)) or tree.sources.get((STAGES_KEY,))
    if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
        raise ConfigError(f"{where}: {STAGES_KEY}: expected a list of stages, each with a `name`.")
    names = [stage.get("name") for stage in stages]
    for index, (stage, name) in enumerate(zip(stages, names, strict=True)):
        here = f"{tree.sources[(STAGES_KEY, str(index))]}: {STAGES_KEY}.{index}"
        try:
            check_file_name(name)
        except ValueError as error:
            raise config_error([*tree.faults, *ConfigError(f"{here}.name: {error}.").faults]) from None
        if name in names[:index]:
            tree.add_fault(
                FaultKind.UNSUPPORTED,
                f"{here}.name: {name!r} is the name of another stage too; write another name.",
            )
        for key in stage:
            if key not in StageConfig.model_fields:
                where = tree.sources[(STAGES_KEY, str(index), key)]
                message = f"{where}: {STAGES_KEY}.{index}.{key}: {_unknown(key)}"
                tree.add_fault(FaultKind.UNKNOWN_KEY, message)
    return [{key: stage[key] for key in stage if key in StageConfig.model_fields} for stage in stages]


def _unknown(key: str) -> str:
    if key in Run.model_fields:
        return "a stage cannot set this key, which applies to the whole file; write it outside of `stages`."
    near = closest(key, list(StageConfig.model_fields))
    return f"unknown key{did_you_mean(key, [near])}" if near else "unknown key."


def _stage(tree: ConfigTree, index: int, written: dict[str, Any]) -> StageConfigTree:
    above = (STAGES_KEY, str(index))
    rest = {key: value for key, value in tree.values.items() if key != STAGES_KEY}
    own = ConfigTree(
        to_plain(rest),
        {keys: source for keys, source in tree.sources.items() if keys[:1] != (STAGES_KEY,)},
        list(tree.faults),
        set(tree.faulty),
    )
    for key, value in written.items():
        if value is None and own.has((key,)):
            own.delete((key,))
        elif key != "name" and value is not None:
            own.merge((key,), to_plain(value), tree.sources[(*above, key)])
    for keys, source in _inside(tree, above):
        if keys != ("name",) and own.has(keys):
            own.sources[keys] = source
    name, source = str(written["name"]), tree.sources[(*above, "name")]
    own.set(("name",), f"{own.get(('name',)) or Run.model_fields['name'].default}-{name}", source)
    if own.get(("folder",)) is not None:
        own.set(("folder",), f"{own.get(('folder',))}/{name}", source)
    return StageConfigTree(name, own, sets_model=_sets_model(written))


def _inside(tree: ConfigTree, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Source]]:
    for keys, source in tree.sources.items():
        if keys[:2] == above and len(keys) > 2:
            yield keys[2:], source


def _sets_model(written: dict[str, Any]) -> bool:
    model = written.get("model")
    return isinstance(model, dict) and "path" in model


_MAX_ROUNDS = 10
"""Maximum number of times that the rest of a configuration with faults is checked."""
_PLACEHOLDER = "value"


def no_faults(run: Run) -> Sequence[Fault]:
    """The further checks of a run that has none."""
    return ()


def validate(
    values: dict[str, Any],
    tree: ConfigTree,
    origin: str,
    key_owner: KeyOwner = unknown_owner,
    further: Callable[[Run], Sequence[Fault]] = no_faults,
) -> Run:
    """Check resolved values; `tree` has the source of each, and the faults that are known already. `further`
    returns the faults that only the caller knows.

    Raises ConfigError with all faults. The rest of a configuration is checked without the values that have
    a fault; what may only follow from their absence is left out.
    """
    faults, faulty = list(tree.faults), set(tree.faulty)
    run: Run | None = None
    for _ in range(_MAX_ROUNDS):
        try:
            run = Run.model_validate(values)
            break
        except ValidationError as error:
            found = schema_faults(error, values, tree, origin, key_owner)
        meant = {each.meant for each in found if each.meant is not None}
        faults += [each.fault for each in found if not _may_follow(each, faulty | meant)]
        places = list(dict.fromkeys(place for each in found for place in _places(each, values)))
        faulty |= meant | set(places)
        values = copy.deepcopy(values)
        # The last item of a list is replaced first.
        if not all(_replace(values, keys) for keys in reversed(places)):
            break
    if run is not None:
        faults += _faults_between_sections(run, tree, origin, faulty)
        faults += further(run)
    if faults:
        raise config_error(faults)
    assert run is not None
    return run


def _faults_between_sections(run: Run, tree: ConfigTree, origin: str, faulty: set[KeyPath]) -> list[Fault]:
    file = tree.locator(origin)(())
    return [
        Fault(
            FaultKind.UNSUPPORTED,
            f"{tree.source_named_in(reason) or file}: {sentence(users_words(reason, tree))}",
        )
        for reason in run_faults(run)
        if not _names_one(reason, faulty)
    ]


def _may_follow(found: SchemaFault, faulty: set[KeyPath]) -> bool:
    """Whether a fault may follow from another one, at the same place or named in its reason."""
    if found.between_fields:
        return _names_one(found.reason, faulty)
    return any(keys[: len(found.keys)] == found.keys or found.keys[: len(keys)] == keys for keys in faulty)


def _names_one(reason: str, faulty: set[KeyPath]) -> bool:
    """Whether a sentence names one of the keys, by its last name."""
    words = set(re.findall(r"\w+", reason))
    names = ([name for name in keys if not name.isdigit()] for keys in faulty)
    return any(named[-1] in words for named in names if named)


def _places(found: SchemaFault, values: Any) -> list[KeyPath]:
    """The values to replace: those that a fault between fields names, or else the section or the value."""
    section = value_at(values, found.keys)
    if not found.between_fields or not isinstance(section, dict):
        return [found.keys]
    named = [(*found.keys, name) for name in re.findall(r"\w+", found.reason) if name in section]
    return list(dict.fromkeys(named)) or [found.keys]


def _replace(values: Any, keys: KeyPath) -> bool:
    """Delete a value, so that its default counts; one that is missing becomes a placeholder. Returns whether
    the path is one of a value."""
    container = value_at(values, keys[:-1])
    if isinstance(container, list):
        if not isinstance(value_at(values, keys), dict):
            return _replace(values, keys[:-1])
        container.pop(int(keys[-1]))
    elif not keys or not isinstance(container, dict):
        return False
    elif keys[-1] in container:
        del container[keys[-1]]
    else:
        field = field_at(keys, values)
        is_section = field is not None and section_types(field.annotation)
        container[keys[-1]] = {} if is_section else _PLACEHOLDER
    return True


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


CompleteTree = Callable[[ConfigTree], None]
"""Adds values to those of a run file."""


def unchanged(tree: ConfigTree) -> None:
    """Add nothing."""


def load_run(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    here: bool = False,
    key_owner: KeyOwner = unknown_owner,
    complete: CompleteTree = unchanged,
) -> LoadedRun:
    """Load a run file, or the configuration of a run's folder. Interpolations are resolved after the overrides and
    before the checks. `complete` adds values from Python after the overrides.

    Raises ConfigError (PlacementError for missing hardware) with file, line and key.
    """
    path = expand_user(path)
    tree = read_run_folder(path) if is_run_folder(path) else read_yaml(path)
    _hint_dialect(tree)
    return _load_draft(tree, overrides, str(path), here=here, key_owner=key_owner, complete=complete)


def load_values(
    values: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    origin: str = "python",
    here: bool = False,
    key_owner: KeyOwner = unknown_owner,
    complete: CompleteTree = unchanged,
) -> LoadedRun:
    """Load values from Python, like `load_run`; `origin` is their name in errors."""
    tree = ConfigTree(to_plain(values))
    tree.sources = {keys: Source("python", origin) for keys, _ in iter_values(tree.values)}
    return _load_draft(tree, overrides, origin, here=here, key_owner=key_owner, complete=complete)


def _load_draft(
    tree: ConfigTree,
    overrides: Sequence[str],
    origin: str,
    *,
    here: bool,
    key_owner: KeyOwner,
    complete: CompleteTree,
) -> LoadedRun:
    notices = tuple(dict.fromkeys((*replace_deprecated(tree), *_apply_overrides(tree, overrides, key_owner))))
    complete(tree)
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


OutputContent = Literal["run", "model", "mlflow"]
"""Content of an output folder: `run` is the run folder itself with its checkpoints; `model` receives the
trained model at the end; `mlflow` receives the trained model as an MLflow model and the checkpoints."""

_OUTPUT_DESCRIPTIONS: Mapping[OutputContent, str] = {
    "run": "the run folder with the report and the checkpoints from which the same command resumes",
    "model": "the trained model, with a LoRA adapter merged into it",
    "mlflow": "the trained model as an MLflow model, with a LoRA adapter merged into it, and the checkpoints",
}


@dataclass(frozen=True, slots=True)
class ComponentOutput:
    """An output folder that an AzureML component declares."""

    name: str
    type: Literal["uri_folder", "mlflow_model"]
    content: OutputContent


@dataclass(frozen=True, slots=True)
class Job:
    """A run, and what a component's command line requests before and after it."""

    loaded: LoadedRun
    packages: tuple[str, ...] = ()
    """Packages that pip installs before heavy libraries are imported."""
    outputs: tuple[tuple[ComponentOutput, Path], ...] = ()
    """Declared outputs that the command line names, each with its folder."""

    def output_folders(self, content: OutputContent) -> tuple[Path, ...]:
        """Folders of the outputs with this content."""
        return tuple(folder for output, folder in self.outputs if output.content == content)

    @property
    def output_descriptions(self) -> tuple[str, ...]:
        """One line per output that describes its content at the end of the run."""
        return tuple(
            f"output {output.name}, in {folder.resolve()}: {_OUTPUT_DESCRIPTIONS[output.content]}"
            for output, folder in self.outputs
        )


RUN_FILE = "run.yaml"
"""Name of the resolved run file in a run's folder."""
_MARKERS = ("run.json", "metrics.jsonl", "checkpoints")
"""Entries of a folder in which a run has started."""
_PATH_KEYS = ("path", "tokenizer", "adapter", "chat_template")
"""Keys whose values may be names of files without a slash and a suffix."""


def is_run_folder(path: Path) -> bool:
    """Whether a run has started in a folder, and has written its configuration."""
    return (path / RUN_FILE).is_file() and any((path / name).exists() for name in _MARKERS)


def read_run_folder(folder: Path) -> ConfigTree:
    """The configuration of the run in a folder. Its `folder` is this folder, also if it was moved; a relative path that
    names nothing from the working directory names what it names from the directory that the run was started in, or in
    the folder itself. Raises ConfigError for a damaged run file."""
    tree = read_yaml(folder / RUN_FILE)
    places = [*_start_directories(tree, folder), folder]
    if _written_folder(tree).resolve() != folder.resolve():
        tree.set(("folder",), str(folder), Source("file", str(folder)))
    for keys, value in list(iter_values(tree.values)):
        if isinstance(value, str) and _may_be_path(keys[-1], value):
            name, colon, function = value.partition(":") if ".py:" in value else (value, "", "")
            if existing_path(name) is None:
                found = next((each / name for each in places if existing_path(each / name)), None)
                if found is not None:
                    tree.replace_value(keys, f"{found}{colon}{function}")
    return tree


def start_directory(folder: Path) -> Path | None:
    """The directory that the run in a folder was started in, if it is known and another than the working directory."""
    tree = read_yaml(folder / RUN_FILE)
    if _written_folder(tree).resolve() == folder.resolve():
        return None
    return next((each for each in _start_directories(tree, folder) if not each.samefile(Path.cwd())), None)


def _written_folder(tree: ConfigTree) -> Path:
    """The folder that the run file names."""
    values = tree.values
    default = Path(str(values.get("output"))) / str(values.get("project")) / str(values.get("name"))
    return expand_user(values.get("folder") or default)


def _start_directories(tree: ConfigTree, folder: Path) -> Iterator[Path]:
    """The directory from which the run's relative folder leads to `folder`, and that of its last session."""
    written, parts = _written_folder(tree), folder.resolve().parts
    length = len(written.parts)
    if not written.is_absolute() and parts[-length:] == written.parts:
        yield Path(*parts[:-length])
    try:
        directory = parse_json(read_regular(folder / "run.json"))["sessions"][-1].get("directory")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return  # a folder without sessions; what needs them names the damage
    if isinstance(directory, str) and existing_path(directory):
        yield Path(directory)


def _may_be_path(key: str, value: str) -> bool:
    """Whether a value may be a relative path: a name such as that of a column has neither a slash nor a suffix."""
    if value.startswith("~") or "://" in value or "\n" in value or PurePath(value).is_absolute():
        return False
    return key in _PATH_KEYS or "/" in value or "." in value
