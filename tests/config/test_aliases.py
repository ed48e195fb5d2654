"""Deprecated keys, values and metrics: each loads, gives the run of its current name, and a notice."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.models import OptionInfo

import strop
from strop.cli.arguments import HereOption
from strop.compat.convert import convert
from strop.compat.registry import LEDGERS
from strop.config.aliases import (
    FLAG_ALIASES,
    KEY_ALIASES,
    METRIC_ALIASES,
    METRIC_KEYS,
    TYPE_ALIASES,
    current_keys,
    current_metric,
)
from strop.config.load.config_tree import split_key
from strop.config.load.loader import LoadedRun, load_run, load_values
from strop.config.save import save_resolved
from strop.config.schema.run import all_keys
from strop.errors import ConfigError
from strop.reading import read_any
from strop.runs.metrics import METRICS
from strop.runs.metrics_file import read_metrics

EXAMPLES = """
algorithm.critic.passes: 3 | algorithm: ppo
algorithm.critic.schedule.counts: updates | algorithm: {type: ppo, critic: {schedule: {type: linear}}}
algorithm.expert_share: 0.25 | algorithm: mix, data: {auxiliary: [{name: worked, path: a.jsonl, response: answer}]}
bench.model: false | mode: bench
buffer.outage_seconds: 7.0 | synchronizer: {type: checkpoint}, buffer: {type: sql}
checkpoint.beside: true
checkpoint.copy_to: /elsewhere
checkpoint.optimizer: false
checkpoint.writers: thread
cluster.explorer: scout | cluster: {type: ray}, rollout: {pool: null}
cluster.trainer: teacher | cluster: {type: ray}, rollout: {pool: null}
data.auxiliary: [{name: worked, path: a.jsonl, response: answer}] | algorithm: mix
data.eval.reward.calls: {retries: 2}
data.eval.reward.judges.best: 5.0
data.eval.reward.judges.key_variable: KEY
data.eval.reward.judges.worst: 1.0
data.eval.reward.models.batch: 4 sequences
data.overlong_workers: 3
reward.calls: {retries: 2} | reward: {judges: [{url: 'http://localhost:1/v1', model: m}]}
reward.judges.best: 5.0 | reward: {judges: [{url: 'http://localhost:1/v1', model: m}]}
reward.judges.key_variable: KEY | reward: {judges: [{url: 'http://localhost:1/v1', model: m}]}
reward.judges.worst: 1.0 | reward: {judges: [{url: 'http://localhost:1/v1', model: m}]}
reward.models.batch: 4 sequences | reward: {models: [{path: r}]}
rollout.experience_per: turn
rollout.max_concurrent_tasks: 5
rollout.max_error_share: 0.5
rollout.runners: 5
synchronizer.style.ahead: 1 steps | synchronizer: {type: checkpoint}
trainer.passes: 2
trainer.sample: {type: staleness}
trainer.sample.answers: worked | data: {auxiliary: [{name: worked, path: a.jsonl, response: answer}]}, \
trainer: {sample: {type: warmup, steps: 2 steps}}
trainer.sample.answers_per_update: 8 | data: {auxiliary: [{name: worked, path: a.jsonl, response: answer}]}, \
trainer: {sample: {type: warmup, steps: 2 steps}}
trainer.schedule.counts: updates | trainer: {schedule: {type: linear}}
trainer.shuffle_passes: true
"""
"""A value that is not the default for every deprecated key, and what the rest of the file must have."""
ROWS = [row.partition(": ")[::2] for row in EXAMPLES.strip().splitlines()]
VALUES = {key: yaml.safe_load(text.partition(" | ")[0]) for key, text in ROWS}
REST = {key: yaml.safe_load(f"{{{text.partition(' | ')[2]}}}") for key, text in ROWS}
HELD_OUT = {
    "name": "h",
    "path": "t",
    "reward": {"judges": [{"url": "http://localhost:1/v1", "model": "m"}], "models": [{"path": "r"}]},
}


def with_position(key: str) -> tuple[str, ...]:
    """The key with the position of the first item after each list."""
    lists = {"judges", "models", "eval"}
    return tuple(part for name in key.split(".") for part in ((name, "0") if name in lists else (name,)))


def base(rest: dict[str, Any]) -> dict[str, Any]:
    data = {"train": {"path": "t"}, "eval": [HELD_OUT], **rest.get("data", {})}
    return copy.deepcopy({"model": {"path": "m"}, "reward": "exact", **rest, "data": data})


def put(values: Any, keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Write a value into the values, a shorthand becomes a section; returns the values."""
    section = values
    for key in keys[:-1]:
        if isinstance(section, dict) and isinstance(section.get(key), str):
            section[key] = {"type": section[key]}
        section = section[int(key)] if isinstance(section, list) else section.setdefault(key, {})
    section[keys[-1]] = copy.deepcopy(value)
    return values


def renamed(values: Any, at: tuple[str, ...] = ()) -> Any:
    """The values with current names."""
    if isinstance(values, dict):
        return {current_keys((*at, key))[-1]: renamed(item, (*at, key)) for key, item in values.items()}
    if isinstance(values, list):
        return [renamed(item, (*at, str(index))) for index, item in enumerate(values)]
    return values


def load_yaml(folder: Path, values: dict[str, Any], *overrides: str) -> LoadedRun:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return load_run(path, overrides)


def test_the_tables_name_existing_keys_and_metrics() -> None:
    keys = set(all_keys())
    assert set(KEY_ALIASES.values()) <= keys and not set(KEY_ALIASES) & keys
    assert set(METRIC_ALIASES.values()) <= METRICS.keys() and not METRIC_ALIASES.keys() & METRICS.keys()
    assert keys >= METRIC_KEYS and keys >= TYPE_ALIASES.keys()
    assert VALUES.keys() == KEY_ALIASES.keys()
    fields = {field for ledger in LEDGERS.values() for row in ledger.rows for field in row.fields}
    assert {field for field in fields if ".".join(current_keys(split_key(field))) != field} == set()


@pytest.mark.parametrize("old", KEY_ALIASES)
def test_a_deprecated_key_is_its_current_one(old: str, tmp_path: Path) -> None:
    keys = with_position(old)
    values = put(base(REST[old]), keys, VALUES[old])
    loaded, current = load_yaml(tmp_path, values), load_values(renamed(values))
    assert loaded.run == current.run and current.notes == ()
    new, name = ".".join(current_keys(keys)), old.rpartition(".")[2]
    lines = (tmp_path / "run.yaml").read_text().splitlines()
    line = max(number for number, text in enumerate(lines, 1) if f" {name}:" in text)
    assert any(note.startswith(f"{tmp_path / 'run.yaml'}:{line}: ") and new in note for note in loaded.notes)
    if old == "data.auxiliary" or "eval" in old:
        return
    text = yaml.safe_dump(VALUES[old], default_flow_style=True).replace("...", "").strip().replace("'", "")
    overridden = load_yaml(tmp_path, base(REST[old]), f"++{'.'.join(keys)}={text}")
    assert overridden.run == loaded.run
    assert any(note.startswith("override ") for note in overridden.notes)


@pytest.mark.parametrize(
    ("section", "old", "new"),
    [(s, old, new) for s, kinds in TYPE_ALIASES.items() for old, new in kinds.items()],
)
def test_a_deprecated_type_is_its_current_one(section: str, old: str, new: str, tmp_path: Path) -> None:
    keys = tuple(section.split("."))
    rest = {"synchronizer": {"type": "checkpoint"}} if keys[0] == "synchronizer" else {}
    wanted = load_values(put(base(rest), keys, {"type": new})).run
    for written in (old, {"type": old}):
        assert load_yaml(tmp_path, put(base(rest), keys, written)).run == wanted
    for override in (f"{section}={old}", f"{section}={{type: {old}}}", f"++{section}.type={old}"):
        loaded = load_yaml(tmp_path, base(rest), override)
        assert loaded.run == wanted
        assert [note for note in loaded.notes if note.endswith(f"{old} is deprecated; write {new}.")]


def test_interpolations_of_deprecated_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STYLE", "free")
    values = base({"synchronizer": {"type": "checkpoint", "style": "${oc.env:STYLE}"}})
    values["trainer"] = {
        "passes": 3,
        "tasks_per_step": "${trainer.passes}",
        "microbatch": "${.passes} tokens",
    }
    loaded = load_yaml(tmp_path, values)
    trainer = loaded.run.trainer
    assert (trainer.epochs_per_step, trainer.tasks_per_step, str(trainer.microbatch)) == (3, 3, "3 tokens")
    assert loaded.run.synchronizer.style.type == "bounded"
    note = "${trainer.passes} is deprecated; write ${trainer.epochs_per_step}."
    assert any(note in each for each in loaded.notes)
    values["output"] = "a\\${trainer.passes}"
    assert load_yaml(tmp_path, values).run.output == "a${trainer.passes}"


def test_stages_and_anchors(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {path: m}\ndata: {train: {path: t}}\nreward: exact\nstages:\n"
        "- name: a\n  trainer: &t {passes: 2}\n- name: b\n  trainer: *t\n  checkpoint: {beside: true}\n"
    )
    loaded = load_run(path, ["stages.1.trainer.passes=3"])
    assert [stage.run.trainer.epochs_per_step for stage in loaded.stages] == [2, 3]
    assert loaded.stages[1].run.checkpoint.async_save
    note = f"{path}:9: stages.1.checkpoint.beside is deprecated; write stages.1.checkpoint.async_save."
    assert note in loaded.stages[0].notes


def test_a_deprecated_key_is_removed_refused_beside_its_current_one_and_a_warning_in_python(
    tmp_path: Path,
) -> None:
    values = base({"trainer": {"passes": 2}})
    assert load_yaml(tmp_path, values, "~trainer.passes").run.trainer == load_values(base({})).run.trainer
    with pytest.warns(FutureWarning, match="trainer.passes is deprecated; write trainer.epochs_per_step"):
        strop.load(values)
    values["trainer"]["epochs_per_step"] = 2
    with pytest.raises(ConfigError, match=r"name of trainer.epochs_per_step, which is written too"):
        load_yaml(tmp_path, values)


@given(
    chosen=st.sets(st.sampled_from([key for key in KEY_ALIASES if not REST[key]]), min_size=1),
    style=st.sampled_from([None, *TYPE_ALIASES["synchronizer.style"]]),
)
@settings(max_examples=12)
def test_any_mixture_of_names_is_one_run(
    chosen: set[str], style: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if {"rollout.runners", "rollout.max_concurrent_tasks"} <= chosen:
        chosen = chosen - {"rollout.runners"}
    if style is not None:
        chosen = chosen - {"checkpoint.copy_to"}
    values = base({} if style is None else {"synchronizer": {"type": "checkpoint", "style": style}})
    for key in sorted(chosen):
        put(values, with_position(key), VALUES[key])
    old, current = load_values(values).run, renamed(values)
    if style is not None:
        current["synchronizer"]["style"] = TYPE_ALIASES["synchronizer.style"][style]
    assert old == load_values(current).run
    path = tmp_path_factory.mktemp("saved") / "run.yaml"
    save_resolved(old, path)
    again = load_run(path)
    assert again.run == old and again.notes == ()


def test_metrics_of_an_older_version(tmp_path: Path) -> None:
    old = '"kl/old": 0.5, "eval/a/b/late_share": 0.1, "groups/again": 2, "reward/part/late_share": 1'
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1, {old}}}\n')
    current = {"approx_kl": 0.5, "eval/a/b/timeout_fraction": 0.1, "groups/reused": 2}
    expected = {"step": 1, **current, "reward/part/late_share": 1}
    assert read_metrics(tmp_path / "metrics.jsonl") == [expected]
    assert current_metric("eval/test/reward") == "eval/test/reward"
    values = base({"checkpoint": {"best": {"metric": "eval/h/truncated_share", "mode": "min"}}})
    best = load_yaml(tmp_path, values).run.checkpoint.best
    assert best is not None and best.metric == "eval/h/truncated_fraction"


def test_convert_writes_current_names(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(base({"trainer": {"passes": 2, "sample": {"type": "staleness"}}})))
    job = read_any(path)
    converted = load_values(convert(job, "strop").values)
    assert job.loaded.notes and converted.notes == ()
    assert converted.run == job.loaded.run


def test_local_is_an_alias_of_here() -> None:
    assert FLAG_ALIASES == {"--local": "--here"}
    (option,) = [info for info in get_args(HereOption) if isinstance(info, OptionInfo)]
    names = {option.default, *(option.param_decls or ())}  # Typer keeps the first name as the default.
    assert {"--local", "--here"} <= names
