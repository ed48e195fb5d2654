"""verl's command lines as a whole: defaults, placement, files, images, and keys as verl's own files have them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from strop.compat.hydra import ConfigSelection
from strop.compat.ledger.writer import write_dialect
from strop.compat.verl.ppo_trainer import LEDGER, NULL_IS_UNSET, read_verl
from strop.compat.verl.sft_engine import read_verl_sft
from strop.config.load.config_tree import ConfigTree, Source, split_key
from strop.config.load.loader import LoadedRun
from strop.config.schema import Run
from strop.config.schema.algorithm import OnlineDpoConfig
from strop.config.schema.buffer import CollectiveSyncConfig, FixedStyleConfig
from strop.config.units import Amount
from strop.errors import ConfigError, PlacementError

from .pages import page_copy

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
TRUSTED = ("data.trust_remote_code=True",)
"""The documented default, which takes effect only where it is set."""
BASE = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=4")


def read(*overrides: str, here: bool = False) -> LoadedRun:
    return read_verl([*BASE, *overrides], here=here)


def test_page_defaults() -> None:
    loaded = read()
    run = loaded.run
    assert (run.data.max_prompt_tokens, run.data.max_response_tokens) == (512, 512)
    assert (run.trainer.tasks_per_step, run.trainer.tasks_per_update) == (1024, 256)
    assert (run.trainer.microbatch, run.trainer.duration) == (Amount(8, "sequences"), Amount(30, "epochs"))
    assert (run.trainer.optimizer.lr, run.trainer.optimizer.weight_decay) == (1e-6, 0.01)
    assert (run.evaluate.every, run.evaluate.at_start) == (Amount(2, "steps"), True)
    assert (run.checkpoint.every, run.checkpoint.keep) == (None, None)
    assert (run.data.train.answer, run.data.train.source) == ("reward_model.ground_truth", "data_source")
    assert run.reward.functions[0].function == "verl_by_source"
    assert run.algorithm.kl_loss is None
    assert run.record.monitors == ("console",)
    assert (run.model.dtype, run.model.compute_dtype) == ("float32", "bfloat16")
    assert run.rollout.engine.dtype == "bfloat16"
    assert run.folder_path == Path("checkpoints/verl_examples/gsm8k")
    assert loaded.overridden == () and loaded.notes == ()
    assert loaded.sources["trainer.tasks_per_step"].location == "data.train_batch_size (documented default)"
    assert loaded.sources["trainer.optimizer.betas"].location == f"{ACTOR}.optim.betas (unstated default)"


@pytest.mark.parametrize(
    "override",
    [
        "trainer.n_gpus_per_node=8",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=2",
        f"{ROLLOUT}.name=hf",
        f"{ROLLOUT}.tensor_model_parallel_size=2",
        f"{ROLLOUT}.gpu_memory_utilization=0.6",
        f"{ROLLOUT}.dtype=float16",
        f"{ROLLOUT}.mode=async",
        f"{ROLLOUT}.max_model_len=100",
        f"+{ROLLOUT}.engine_kwargs.vllm.disable_mm_preprocessor_cache=True",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=9",
        f"{ACTOR}.fsdp_config.param_offload=True",
        f"{ACTOR}.ulysses_sequence_parallel_size=2",
        f"{ACTOR}.strategy=megatron",
        f"{ACTOR}.use_torch_compile=True",
        "actor_rollout_ref.model.use_remove_padding=False",
    ],
)
def test_placement_is_refused_or_overridden(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _, said = override.removeprefix("+").partition("=")
    with pytest.raises(PlacementError, match="--here") as caught:
        read(override)
    assert f"{key}={said}" in str(caught.value)
    loaded = read(override, here=True)
    assert [(item.key, str(item.value)) for item in loaded.overridden] == [(key, said)]
    plain = read().run
    if key not in (f"{ROLLOUT}.dtype", f"{ACTOR}.strategy"):  # Megatron's optimizer has keys of its own
        assert loaded.run == plain
    monkeypatch.setenv("STROP_HERE", "1")
    assert read(override).overridden == loaded.overridden


@pytest.mark.parametrize(
    "override",
    [
        "trainer.nnodes=1",
        f"{ROLLOUT}.tensor_model_parallel_size=1",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
        f"{ROLLOUT}.max_model_len=4096",
        f"{ACTOR}.fsdp_config.param_offload=False",
        f"{ACTOR}.strategy=fsdp2",
        "actor_rollout_ref.model.use_remove_padding=True",
        "algorithm.use_kl_in_reward=False",
        "reward_model.enable=False",
        "reward_model.reward_manager=prime",
    ],
)
def test_available_placement_is_accepted(override: str) -> None:
    assert read(override).overridden == ()


def test_one_gpu_is_accepted_if_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.compat.verl.engine.count_cuda_devices", lambda: 1)
    assert read("trainer.n_gpus_per_node=1").overridden == ()
    with pytest.raises(PlacementError):
        read("trainer.n_gpus_per_node=8")


def test_file_with_overrides(tmp_path: Path) -> None:
    path = tmp_path / "ppo.yaml"
    path.write_text(
        "data:\n  train_batch_size: 64\n  train_files: ${oc.env:STROP_TEST_DATA,d}/train.parquet\n"
        "algorithm:\n  adv_estimator: grpo\n"
        "actor_rollout_ref:\n  rollout: {n: 4}\n  actor: {ppo_mini_batch_size: 64}\n"
    )
    loaded = read_verl(["actor_rollout_ref.rollout.n=8", "~data.train_batch_size"], config=path)
    assert (loaded.run.algorithm.rollouts_per_task, loaded.run.trainer.tasks_per_step) == (8, 1024)
    assert loaded.run.data.train.path == "d/train.parquet"
    assert str(loaded.sources["data.train.path"]) == f"{path}:3 (data.train_files)"
    path.write_text("data: {train_batch: 3}\n")
    with pytest.raises(ConfigError, match=r"ppo\.yaml:1: verl has no key data\.train_batch; did you mean"):
        read_verl(BASE, config=path)


def test_page_as_a_file(tmp_path: Path) -> None:
    tree = ConfigTree()
    for key, default in page_copy("verl").items():
        tree.set(split_key(key), default, Source("python", "the page"))
    path = tmp_path / "ppo_trainer.yaml"
    path.write_text(yaml.safe_dump(tree.values))
    changes = ["trainer.default_hdfs_dir=null", "trainer.logger=[console,clearml]"]
    loaded = read_verl([*BASE, *changes], config=path, here=True)
    written = {item.key for item in loaded.overridden}
    assert {"trainer.n_gpus_per_node", f"{ROLLOUT}.name", f"{ACTOR}.use_torch_compile"} <= written
    assert any("without clearml, which Strop does not have yet" in note for note in loaded.notes)
    written_too = ("trainer.default_local_dir=checkpoints/verl_examples/gsm8k", "data.image_key=images")
    assert loaded.run == read(*written_too, *TRUSTED).run


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_the_column_of_images_is_read_if_rows_have_it(tmp_path: Path, name: str) -> None:
    path, table = tmp_path / name, pa.Table.from_pylist([{"prompt": "?", "images": [1], "videos": [1]}])
    if name == "t.parquet":
        pq.write_table(table, path)
    else:
        path.write_text('{"prompt": "?", "images": [1], "videos": [1]}\n')

    def columns(*words: str) -> tuple[str | None, tuple[str, ...]]:
        run = read(f"data.train_files={path}", "data.video_key=null", *words).run
        assert run.data.eval[0].images == run.data.train.images
        return run.data.train.images, run.data.train.optional_columns

    assert columns() == columns("data.image_key=images") == ("images", ("images",))
    assert columns("data.image_key=pictures") == columns("data.image_key=null") == (None, ())
    with pytest.raises(
        ConfigError, match=r"data\.video_key='videos' is not supported: Strop trains on text and images"
    ):
        read(f"data.train_files={path}")


# -- keys as verl's own files have them ---------------------------------------------------------------------

SPIN_KEYS = ("trainer.ref_update_freq", "actor_rollout_ref.rollout.n")


def run_of(*overrides: str) -> Run:
    return read_verl(overrides, here=True).run


def test_an_interpolated_null_leaves_a_key_at_its_default(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text(
        "critic:\n  ppo_micro_batch_size: null\n"
        "  ppo_micro_batch_size_per_gpu: ${oc.select:.ppo_micro_batch_size,null}\n"
    )
    assert read_verl([], config=file, here=True).run.algorithm == run_of().algorithm


def test_a_missing_value_matters_only_where_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yaml"
    file.write_text("actor_rollout_ref:\n  actor: {strategy: '???'}\n  rollout: {name: '???'}\n")
    assert read_verl([], config=file, here=True).run == run_of()
    file.write_text("data: {train_batch_size: '???'}\n")
    with pytest.raises(ConfigError, match=r"data\.train_batch_size: '\?\?\?' marks a value"):
        read_verl([], config=file, here=True)


def test_defaults_of_verls_files_change_nothing() -> None:
    settings = (
        *("critic.enable=True", "critic.optim.total_training_steps=-1", "critic.optim.optimizer=AdamW"),
        *("critic.optim.override_optimizer_config=null", "critic.model.lora_alpha=16"),
        *("critic.checkpoint.load_contents=[model,optimizer,extra]",),
        *("actor_rollout_ref.rollout.agent.custom_async_server={path:null,name:null}",),
        *("actor_rollout_ref.rollout.skip.enable=False",),
        *("actor_rollout_ref.actor.optim.muon_momentum=0.95", "data.continuous_token.enable=False"),
    )
    written, unwritten = run_of(*settings), run_of()
    assert (written.algorithm, written.trainer) == (unwritten.algorithm, unwritten.trainer)
    assert run_of("critic.enable=null").algorithm == unwritten.algorithm


def test_null_leaves_a_key_at_its_default() -> None:
    assert run_of(*(f"{key}=null" for key in NULL_IS_UNSET)) == run_of()


def test_a_default_is_that_of_the_keys_own_name() -> None:
    """`trainer.val_generations_to_log_to_wandb` is the name of `trainer.log_val_generations` in 0.3."""
    loaded = read_verl((), here=True)
    assert loaded.sources["record.eval_answers"].foreign_key.startswith("trainer.log_val_generations=")


def test_betas_may_be_quoted() -> None:
    for section in ("actor_rollout_ref.actor", "critic"):
        assert run_of(f"{section}.optim.betas='[0.9, 0.95]'") == run_of(f"{section}.optim.betas=[0.9,0.95]")
    sft = read_verl_sft(["optim.betas='[0.8, 0.9]'"], here=True).run
    assert sft.trainer.optimizer.betas == (0.8, 0.9)  # type: ignore[union-attr]


def test_the_length_of_responses_is_the_scale_of_a_summed_loss() -> None:
    mode = f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"
    scaled = run_of(mode, f"{ACTOR}.loss_scale_factor=512", "data.max_response_length=512")
    assert scaled.algorithm == run_of(mode).algorithm


def test_one_step_off_policy_has_an_explorer_one_step_ahead() -> None:
    selected = ConfigSelection(name="one_step_off_ppo_trainer")
    run = read_verl(["rollout.nnodes=1", "rollout.n_gpus_per_node=2"], selection=selected, here=True).run
    assert isinstance(run.synchronizer, CollectiveSyncConfig)
    assert isinstance(run.synchronizer.style, FixedStyleConfig)
    assert run.synchronizer.style.max_lead.count == 1
    assert write_dialect(LEDGER, run).values["actor_rollout_ref.hybrid_engine"] is False
    assert run_of("actor_rollout_ref.hybrid_engine=False").synchronizer == run.synchronizer
    assert run_of().synchronizer.type == "memory"


def test_the_recipe_spin_makes_one_update_on_pairs() -> None:
    read = read_verl([], selection=ConfigSelection(name="spin_trainer"), here=True)
    run = read.run
    assert isinstance(run.algorithm, OnlineDpoConfig)
    assert run.algorithm.rollouts_per_task == 2
    assert run.trainer.tasks_per_update == run.trainer.tasks_per_step == 1024
    assert any("responses to different prompts" in note for note in read.notes)
    written = write_dialect(LEDGER, run).values
    assert written["trainer.ref_update_freq"] == 1
    assert run_of(*(f"{key}={written[key]}" for key in SPIN_KEYS)).algorithm == run.algorithm
    stronger = run_of("trainer.ref_update_freq=1", "actor_rollout_ref.actor.dpo_beta=0.3").algorithm
    assert stronger == run.algorithm.model_copy(update={"beta": 0.3})
    with pytest.raises(ConfigError, match="compares responses two by two"):
        run_of(
            "actor_rollout_ref.actor.dpo_beta=0.1",
            "trainer.ref_update_freq=1",
            "actor_rollout_ref.rollout.n=4",
        )


# -- supervised fine-tuning ---------------------------------------------------------------------------------


def test_placement_of_sft() -> None:
    with pytest.raises(PlacementError, match=r"trainer\.nnodes=2"):
        read_verl_sft(["trainer.nnodes=2"])
    loaded = read_verl_sft(["trainer.nnodes=2"], here=True)
    assert [item.key for item in loaded.overridden] == ["trainer.nnodes"]
    assert loaded.run == read_verl_sft([]).run


def test_a_section_of_the_critic_that_is_a_value_is_refused():
    lines = [
        "algorithm.adv_estimator=gae",
        "critic.optim=2",
        "data.train_files=a.parquet",
        "actor_rollout_ref.model.path=m",
    ]
    with pytest.raises(ConfigError, match=r"critic\.optim is a section and needs keys inside it; got 2"):
        read_verl(lines, here=True)
