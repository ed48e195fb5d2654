"""Tests of Hydra's composition: defaults lists, packages, groups and search paths equal hydra-core's own
result for the same files."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from strop.compat.hydra import ConfigSelection, ShippedConfig, ShippedConfigs, compose
from strop.compat.ledger.key_mapping import Ledger, mapped
from strop.compat.ledger.reader import apply_overrides
from strop.compat.verl.ppo_trainer import read_verl
from strop.errors import ConfigError, config_error

FILES = {
    "main.yaml": """
        defaults:
          - base
          - engine: dp
          - optim@worker.optim: ${engine}
          - optional missing: nothing
          - _self_
        worker: {size: 4, name: main}
        kept: {a: 1}
    """,
    "base.yaml": "{worker: {size: 1, depth: 2}, kept: {b: 2}}",
    "first.yaml": "{defaults: [_self_, base], worker: {size: 9}}",
    "child.yaml": "{defaults: [main, override engine: big, _self_], worker: {name: child}}",
    "engine/dp.yaml": "# @package _global_\nengine: dp\n",
    "engine/big.yaml": "# @package _global_\nengine: big\nworker: {strategy: big}\n",
    "optim/dp.yaml": "{defaults: [common, _self_], lr: 1}",
    "optim/big.yaml": "{defaults: [common, ../extra@extra: one, _self_], lr: 2}",
    "optim/common.yaml": "{lr: 0, decay: 0.1, betas: [1, 2]}",
    "extra/one.yaml": "{x: 1}",
}
NOTHING = ShippedConfigs("tool", {})
LEDGER = Ledger("tool", (mapped("new", None, "name"), mapped("worker.size", 1, "seed")))


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "folder with spaces" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip())
    return tmp_path / "folder with spaces"


def ours(configs: Path, name: str, *overrides: str) -> dict[str, Any]:
    selection = ConfigSelection(name=name, path=str(configs))
    tree, left = compose(selection, "main", overrides, NOTHING)
    apply_overrides(LEDGER, tree, left)
    if tree.faults:
        raise config_error(tree.faults)
    return tree.values


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("main", []),
        ("first", []),
        ("child", []),
        ("main", ["engine=big"]),
        ("main", ["optim@worker.optim=big"]),
        ("main", ["~optim@worker.optim"]),
        ("main", ["+extra=one"]),
        ("main", ["+extra@worker.more=one", "worker.size=7"]),
        ("main", ["+new=3", "++worker.depth=5", "~kept.b"]),
        ("main", ["worker.optim.betas=[3]", "++kept={c: 3}"]),
    ],
)
def test_composition_equals_that_of_hydra(configs: Path, name: str, overrides: list[str]) -> None:
    with initialize_config_dir(str(configs), version_base="1.3"):
        expected = OmegaConf.to_container(hydra_compose(name, overrides))
    assert ours(configs, name, *overrides) == expected


def test_every_value_keeps_its_file_and_line(configs: Path) -> None:
    tree, _ = compose(ConfigSelection(name="main", path=str(configs)), "main", ["engine=big"], NOTHING)
    assert str(tree.source(("worker", "optim", "decay"))) == f"{configs / 'optim/common.yaml'}:1"
    assert str(tree.source(("worker", "name"))) == f"{configs / 'main.yaml'}:7"


def test_own_file_on_top_of_a_shipped_configuration(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        yaml.safe_dump(
            {
                "hydra": {"searchpath": ["pkg://tool.config"]},
                "defaults": ["shipped", {"override engine": "big"}, "_self_"],
                "worker": {"size": 2},
            }
        )
    )
    shipped = ShippedConfigs(
        "tool",
        {
            "shipped": ShippedConfig(
                {"worker.size": 1, "worker.depth": 3}, ({"engine@worker": "dp"}, "_self_")
            ),
            "engine/dp": ShippedConfig({"strategy": "dp"}),
            "engine/big": ShippedConfig({"strategy": "big"}),
        },
        ("pkg://tool.config",),
    )
    own.write_text(own.read_text().replace("override engine:", "override engine@worker:"))
    tree, _ = compose(ConfigSelection(file=own), "shipped", [], shipped)
    assert tree.values["worker"] == {"strategy": "big", "size": 2, "depth": 3}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine=[1,2]"], "has a value that is not text"),
        (["engine=huge"], "the options of 'engine' are .*big.*dp"),
        (["optin@worker.optim=big"], "there is no config group optin; write a dotted key"),
        (["+new=1", "~old"], "old is not written"),
    ],
)
def test_what_hydra_rejects_is_one_line(configs: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ours(configs, "main", *overrides)
    assert len(str(caught.value).splitlines()) == 1


def test_unknown_option_of_a_group_names_the_options() -> None:
    with pytest.raises(ConfigError) as caught:
        read_verl(["model_engine=tpu"], here=True)
    assert str(caught.value) == (
        "configuration ppo_trainer: In 'ppo_trainer': Could not find 'model_engine/tpu'; the options of 'model_engine' "
        "are dp, megatron, mindspeed, mlite, torchtitan, veomni."
    )


def test_groups_of_hydra_itself_have_no_effect() -> None:
    assert read_verl(["hydra/job_logging=disabled"], here=True).run == read_verl([], here=True).run


def test_unknown_configuration_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--config-name ppo_trianer: .* has no file.*ppo_megatron_trainer"):
        read_verl(["actor_rollout_ref.rollout.n=2"], selection=ConfigSelection(name="ppo_trianer"))


BASE = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4", "data.val_files=null")


@pytest.mark.parametrize(
    ("selection", "overrides"),
    [
        (ConfigSelection(name="ppo_megatron_trainer.yaml", path="config"), ()),
        (ConfigSelection(), ("model_engine=megatron",)),
        (ConfigSelection(name="dapo_megatron_trainer"), ()),
        (ConfigSelection(), ("actor@actor_rollout_ref.actor=megatron_actor",)),
    ],
)
def test_shipped_megatron_configurations(selection: ConfigSelection, overrides: tuple[str, ...]) -> None:
    optim = "actor_rollout_ref.actor.optim"
    loaded = read_verl(
        [*BASE, f"{optim}.lr_decay_style=cosine", f"{optim}.min_lr=1e-7", *overrides],
        selection=selection,
        here=True,
    )
    assert loaded.run.trainer.schedule.type == "cosine"
    assert "actor_rollout_ref.actor.strategy" in [key.key for key in loaded.overridden]


def test_placeholders_of_launch_scripts_are_text() -> None:
    loaded = read_verl([*BASE, "actor_rollout_ref.model.path=<path_to_model>"], here=True)
    assert loaded.run.model.path == "<path_to_model>"


def test_deleting_a_default_sets_it_to_null() -> None:
    loaded = read_verl([*BASE[:2], "~data.val_files"], here=True)
    assert loaded.run.data.eval == ()
    with pytest.raises(ConfigError, match=r"override ~data\.prompt_key: verl needs the key data\.prompt_key"):
        read_verl([*BASE, "~data.prompt_key"], here=True)


@pytest.mark.parametrize("prefix", ["+", "++"])
def test_a_name_of_the_users_own_is_for_interpolations(prefix: str) -> None:
    base = ("data.train_files=a.parquet", "actor_rollout_ref.model.path=m", "data.train_batch_size=256")
    loaded = read_verl([*base, f"{prefix}mine=7", "trainer.total_epochs=${mine}"], here=True)
    assert str(loaded.run.trainer.duration) == "7 epochs"
    assert any(f"override {prefix}mine=7: verl has no key mine" in note for note in loaded.notes)
    for refused in ("mine=7", f"{prefix}trainer.mine=7", f"{prefix}mine.a=7", f"{prefix}total_epochs=7"):
        with pytest.raises(ConfigError, match="no key"):
            read_verl([*base, refused], here=True)


def test_a_file_may_have_names_of_its_own_to_which_its_values_refer(tmp_path: Path) -> None:
    words = ("data.train_files=a.parquet", "actor_rollout_ref.model.path=m", "data.train_batch_size=256")
    text = "defaults: [ppo_trainer, _self_]\nmine: {epochs: 7}\ntrainer: {total_epochs: '${mine.epochs}'}\n"
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    selection = ConfigSelection(name="own", path=str(tmp_path))
    loaded = read_verl(words, selection=selection, here=True)
    assert str(loaded.run.trainer.duration) == "7 epochs"
    assert any("own.yaml:2: verl has no key mine, so it counts only" in note for note in loaded.notes)
    overridden = read_verl([*words, "trainer.total_epochs=2"], selection=selection, here=True)
    assert str(overridden.run.trainer.duration) == "2 epochs"
    (tmp_path / "own.yaml").write_text(text.replace("mine:", "other:"), encoding="utf-8")
    with pytest.raises(ConfigError, match="no key other"):
        read_verl([*words, "trainer.total_epochs=2"], selection=selection, here=True)
