"""Loading of files, overrides and Python values; every value of the run has its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.load.loader import load_run, load_values
from strop.config.save import minimal_values
from strop.config.schema.run import leaves
from strop.config.units import Amount
from strop.errors import ConfigError, PlacementError


def test_every_value_has_its_source(run_file: Path) -> None:
    loaded = load_run(run_file, ["trainer.tasks_per_step=32", "data.eval.0.path=other.jsonl"])
    said = {field: str(source) for field, source in loaded.sources.items()}
    assert set(said) == {".".join(leaf.keys) for leaf in leaves(loaded.run)}
    assert said["project"] == f"{run_file}:1"
    assert said["data.eval.0.sampling.temperature"] == f"{run_file}:7"
    assert said["data.eval.0.path"] == "override data.eval.0.path=other.jsonl"
    assert said["trainer.tasks_per_step"] == "override trainer.tasks_per_step=32"
    assert said["reward.functions.0.function"] == f"{run_file}:8"
    assert said["rollout.engine.type"] == f"{run_file}:9"
    assert said["trainer.schedule.min_ratio"] == "default"
    run = loaded.run
    assert (run.trainer.tasks_per_step, run.data.eval[0].path) == (32, "other.jsonl")
    assert (run.trainer.optimizer.lr, run.checkpoint.every) == (3e-6, Amount(20, "steps"))


@pytest.mark.parametrize(
    ("override", "field", "value"),
    [
        ("name='a, b=c'", "name", "a, b=c"),
        ("checkpoint.every=5 epochs", "checkpoint.every", Amount(5, "epochs")),
        ("trainer.schedule.warmup=10 %", "trainer.schedule.warmup", Amount(10, "%")),
        ("rollout.sampling.stop=['###','\\n']", "rollout.sampling.stop", ("###", "\\n")),
        ("model.lora={alpha: 4}", "model.lora.rank", 8),
        ("++trainer.epochs_per_step=2", "trainer.epochs_per_step", 2),
        ("+trainer.epochs_per_step=2", "trainer.epochs_per_step", 2),
        ("~model.lora", "model.lora", None),
        ("~trainer.tasks_per_step=64", "trainer.tasks_per_step", 64),
        ("reward.timeout_seconds=3", "reward.timeout_seconds", 3),
        ("rollout.engine.dtype=bfloat16", "rollout.engine.dtype", "bfloat16"),
        ("trainer.schedule={type: linear, min_ratio: 0.5}", "trainer.schedule.min_ratio", 0.5),
        ("+reward.functions.0.args.strict=true", "reward.functions.0.args", {"strict": True}),
        ("model.lora=null", "model.lora", None),
        ("name=${project}", "name", "sums"),
    ],
)
def test_hydra_overrides(run_file: Path, override: str, field: str, value: object) -> None:
    run = load_run(run_file, [override]).run
    assert {".".join(leaf.keys): leaf.value for leaf in leaves(run)}[field] == value


@pytest.mark.parametrize(
    ("overrides", "synchronizer", "buffer"),
    [
        ([], "memory", "queue"),
        (["mode=train"], "checkpoint", "sql"),
        (["mode=explore"], "checkpoint", "sql"),
        (["synchronizer=checkpoint"], "checkpoint", "sql"),
        (["synchronizer.style=bounded"], "checkpoint", "sql"),
        (["synchronizer.style.max_lead=1 steps"], "checkpoint", "sql"),
        (["synchronizer=checkpoint", "buffer=file"], "checkpoint", "file"),
        (["synchronizer=collective"], "collective", "sql"),
        (["algorithm=sft", "data.train.response=answer", "mode=train"], "memory", "queue"),
    ],
)
def test_defaults_of_explorer_and_trainer(overrides: list[str], synchronizer: str, buffer: str) -> None:
    run = load_values({"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}}, overrides).run
    assert (run.synchronizer.type, run.buffer.type) == (synchronizer, buffer)
    assert load_values(minimal_values(run)).run == run
    assert "bounded" not in str(overrides) or run.synchronizer.style.type == "bounded"


def test_overrides_apply_in_order_and_interpolations_see_them_and_the_environment(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_run(run_file, ["seed=2", "seed=3"]).run.seed == 3
    monkeypatch.setenv("STROP_TEST_NAME", "from-env")
    overrides = ["name=${oc.env:STROP_TEST_NAME}", "output=${oc.env:STROP_TEST_NONE,elsewhere}/${project}"]
    run = load_run(run_file, [*overrides, "project=p"]).run
    assert (run.name, run.output) == ("from-env", "elsewhere/p")


def test_the_run_folder(run_file: Path) -> None:
    assert load_run(run_file).run.folder_path == Path("runs/sums/first")
    assert load_run(run_file, ["folder=a/b"]).run.folder_path == Path("a/b")


def test_values_from_python() -> None:
    values = {"model": {"path": "m"}, "data": {"train": {"path": ["a", "b"]}}, "reward": ["exact", "format"]}
    loaded = load_values(values, ["reward.functions.1.weight=0.5"])
    assert loaded.run.data.train.path == ("a", "b")
    assert [part.weight for part in loaded.run.reward.functions] == [1.0, 0.5]
    assert loaded.sources["model.path"].kind == "python"
    assert loaded.sources["seed"].kind == "default"
    assert values["reward"] == ["exact", "format"]
    with pytest.raises(ConfigError, match=r"notebook: model\.path: expected a string, got 3"):
        load_values({**values, "model": {"path": 3}}, origin="notebook")


def test_a_missing_gpu_is_refused_or_overridden(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STROP_HERE", raising=False)
    monkeypatch.setattr("strop.config.load.loader.count_cuda_devices", lambda: 0)
    override = ["trainer.engine.device=cuda"]
    with pytest.raises(PlacementError, match=r"--here.*trainer\.engine\.device=cuda"):
        load_run(run_file, override)
    loaded = load_run(run_file, override, here=True)
    assert loaded.run.trainer.engine.device == "cpu"
    assert [item.key for item in loaded.overridden] == ["trainer.engine.device"]
    assert loaded.sources["trainer.engine.device"].kind == "here"
    on_ray = ["cluster=ray", *override]
    assert load_run(run_file, on_ray).run.cluster.type == "ray"
    loaded = load_run(run_file, on_ray, here=True)
    assert loaded.run == load_run(run_file, ["trainer.engine.device=cpu"]).run
    assert [item.key for item in loaded.overridden] == ["cluster", "trainer.engine.device"]
    monkeypatch.setenv("STROP_HERE", "1")
    assert load_run(run_file, override).overridden
    monkeypatch.setenv("STROP_HERE", "perhaps")
    with pytest.raises(ConfigError, match="STROP_HERE"):
        load_run(run_file, override)


def test_yaml_merges_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {path: m}\nreward: exact\ndata:\n"
        "  train: &rows\n    path: a.jsonl\n    prompt: question\n"
        "  eval:\n    - <<: *rows\n      path: b.jsonl\n"
    )
    loaded = load_run(path)
    assert (loaded.run.data.eval[0].prompt, loaded.run.data.eval[0].path) == ("question", "b.jsonl")
    assert str(loaded.sources["data.eval.0.prompt"]) == f"{path}:6"
    assert str(loaded.sources["data.eval.0.path"]) == f"{path}:9"


def test_aliases_and_tags_within_the_limits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {path: !!str 7}\nseed: !!int '3'\ndata: {train: &t {path: a}, eval: [{<<: *t, name: x}, *t]}\n"
        "trainer: {optimizer: {lr: !!float 1}}\nreward: exact\n"
    )
    run = load_run(path).run
    assert (run.model.path, run.seed, run.trainer.optimizer.lr) == ("7", 3, 1.0)
    assert [taskset.path for taskset in run.data.eval] == ["a", "a"]


def test_a_gpu_of_a_reward_model_is_overridden_and_an_existing_gpu_used(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.config.load.loader.count_cuda_devices", lambda: 0)
    bare = {"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}}
    models = [{"path": "one"}, {"path": "two", "name": "other", "device": "cuda"}]
    loaded = load_values({**bare, "reward": {"models": models}}, here=True)
    assert [item.key for item in loaded.overridden] == ["reward.models.1.device"]
    assert [model.device for model in loaded.run.reward.models] == ["auto", "cpu"]
    monkeypatch.setattr("strop.config.load.loader.count_cuda_devices", lambda: 1)
    loaded = load_run(run_file, ["trainer.engine.device=cuda"], here=True)
    assert (loaded.run.trainer.engine.device, loaded.overridden) == ("cuda", ())
