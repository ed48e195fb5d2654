"""Tests that Trinity's ledger equals its seed page, and of the conversion of its keys."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strop.config.load.config_tree import ConfigTree, Source, split_key
from strop.config.schema.group_baselines import OpmdConfig
from strop.config.schema.inference_engine import VllmEngineConfig
from strop.config.schema.policy_gradient import KlLossConfig
from strop.config.schema.policy_loss import OpmdLossConfig
from strop.config.schema.rollout import EnginePoolConfig
from strop.config.schema.walk import all_keys
from strop.config.units import Amount
from strop.dialects.ledger.foreign import ForeignConfig
from strop.dialects.ledger.key_mapping import UNSET
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.trinity.explorer import write_engines
from strop.dialects.trinity.reader import LEDGER
from strop.errors import ConfigError, PlacementError, StropError

from .trinity_file import ACTOR, BASE, TASKSET, read, value
from .trinity_page import PAGE, page_copy, page_names

FIELDS = set(all_keys())
pytestmark = pytest.mark.usefixtures("trinity_file")


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not in ../shared")
def test_copy_equals_page() -> None:
    assert page_copy() == page_names(PAGE.read_text())


def test_rows_equal_the_names_of_the_page() -> None:
    on_page = [row for row in LEDGER.rows if row.on_page]
    inside = {name for row in on_page for name in split_key(row.key)}
    assert [name for name in page_copy() if name not in inside] == []
    known = {*page_copy(), "*"}
    assert [row.key for row in on_page if split_key(row.key)[-1] not in known] == []


def test_no_key_has_two_rows() -> None:
    assert [key for key, count in Counter(row.key for row in LEDGER.rows).items() if count > 1] == []


def test_every_row_explains_its_disposition() -> None:
    for row in LEDGER.rows:
        match row.disposition:
            case "mapped":
                assert row.fields or row.note, row.key
                assert len(row.fields) < 2 or row.read, row.key
            case "placement" | "refused":
                assert row.note and row.supported, row.key
            case "accepted without effect":
                assert row.note and not row.fields, row.key
        for field in row.fields:
            assert ".".join(part for part in field.split(".") if not part.isdigit()) in FIELDS, (
                row.key,
                field,
            )


def test_few_keys_have_no_effect() -> None:
    dispositions = Counter(row.disposition for row in LEDGER.rows if row.on_page)
    assert dispositions["accepted without effect"] * 20 <= dispositions.total()


def test_every_default_has_the_key_type() -> None:
    tree = ConfigTree()
    tree.set(split_key("model.model_path"), "m", Source("python", "test"))
    foreign = ForeignConfig(LEDGER, tree)
    for row in LEDGER.rows:
        if row.default is not UNSET and not row.is_repeated:
            assert row.value_type.accepts(foreign[row.key]), row.key


@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        ([], "folder_path", Path("checkpoints/Trinity-RFT/rft")),
        (["checkpoint_root_dir=c", "name=n"], "folder_path", Path("c/Trinity-RFT/n")),
        ([], "algorithm.rollouts_per_task", 8),
        (["~algorithm.repeat_times"], "algorithm.rollouts_per_task", 2),
        ([], "algorithm.kl_loss", KlLossConfig(estimator="k2", coef=0.001)),
        (["algorithm.kl_loss_fn=none"], "algorithm.kl_loss", None),
        (["algorithm.kl_penalty_fn=k1"], "algorithm.kl_reward.coef", 0.001),
        (["algorithm.algorithm_type=opmd"], "algorithm.policy_loss", OpmdLossConfig(tau=1.0)),
        (["algorithm.algorithm_type=opmd"], "algorithm.type", OpmdConfig().type),
        (["algorithm.advantage_fn=rloo"], "algorithm.type", "rloo"),
        (["algorithm.policy_loss_fn_args.clip_range=0.3"], "algorithm.policy_loss.clip_high", 0.3),
        ([], "trainer.tasks_per_step", 4),
        (["buffer.train_batch_size=96"], "trainer.tasks_per_step", 12),
        (["buffer.train_batch_size=16"], "trainer.tasks_per_update", 2),
        (["buffer.train_batch_size=16"], "trainer.tasks_per_step", 4),
        ([], "data.shuffle", False),
        ([f"+{TASKSET}.task_selector.selector_type=shuffle"], "data.shuffle", True),
        (["+buffer.explorer_input.system_prompt=Think"], "data.train.system", "Think"),
        (["+model.temperature=0.5"], "rollout.sampling.temperature", 0.5),
        (["monitor.monitor_type=wandb", "monitor.monitor_args.base_url=u"], "record.wandb.base_url", "u"),
        (["monitor.monitor_type=wandb"], "record.monitors", ("console", "wandb")),
        (["+group=g"], "folder_path", Path("checkpoints/Trinity-RFT/g/rft")),
        ([f"{ACTOR}.optim.lr=3e-6", "+algorithm.optimizer.lr=2e-6"], "trainer.optimizer.lr", 2e-6),
        (
            ["+algorithm.optimizer={lr_scheduler_type: cosine, min_lr_ratio: 0.1}"],
            "trainer.schedule.min_ratio",
            0.1,
        ),
        (["+algorithm.optimizer.betas=[0.9,0.95]"], "trainer.optimizer.betas", (0.9, 0.95)),
        (["+algorithm.optimizer.lr_warmup_steps=20"], "trainer.schedule.warmup", Amount(20, "steps")),
        (["+trainer.grad_clip=0.5"], "trainer.max_grad_norm", 0.5),
        (["+trainer.max_token_len_per_gpu=9000"], "trainer.microbatch", Amount(9000, "tokens")),
        (["+trainer.max_checkpoints_to_keep=2"], "checkpoint.keep", 2),
        (["+algorithm.policy_loss_fn_args={}", "+algorithm.advantage_fn_args={}"], "algorithm.type", "grpo"),
        (["buffer.train_batch_size=32"], "trainer.tasks_per_step", 4),
        ([], "trainer.duration", Amount(3, "epochs")),
        (["buffer.total_steps=7"], "trainer.duration", Amount(7, "steps")),
        (["buffer.total_steps=7", "trainer.total_steps=9"], "trainer.duration", Amount(9, "steps")),
        ([], "data.train.split", None),
        ([], "data.eval.0.split", "test"),
        ([], "data.eval.0.name", "test"),
        ([], "data.eval.0.sampling.temperature", 0.1),
        ([], "data.eval.0.rollouts_per_task", 1),
        ([], "reward.functions.0.function", "trinity_countdown"),
        (["buffer.default_reward_fn_type=r.py:f"], "reward.functions.0.function", "r.py:f"),
        ([f"{TASKSET}.rollout_args.temperature=0.7"], "rollout.sampling.temperature", 0.7),
        ([f"{TASKSET}.format.system_prompt=Think"], "data.train.system", "Think"),
        ([f"{TASKSET}.format.prompt_type=messages"], "data.train.prompt", "message"),
        ([], "rollout.sampling.min_response_tokens", 1),
        (["~model.max_prompt_tokens", "model.max_model_len=100"], "data.max_prompt_tokens", 68),
        (["~model.max_response_tokens", "model.max_model_len=100"], "data.max_response_tokens", 36),
        (["explorer.eval_interval=5"], "evaluate.every", Amount(5, "steps")),
        ([], "evaluate.at_start", True),
        ([], "checkpoint.every", None),
        (["trainer.save_interval=20"], "checkpoint.every", Amount(20, "steps")),
        ([], "checkpoint.keep", 5),
        ([], "checkpoint.mirror", None),
        (["trainer.trainer_config.trainer.default_hdfs_dir=/x"], "checkpoint.mirror", "/x"),
        ([], "trainer.microbatch", Amount(16384, "tokens")),
        (
            [f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"],
            "trainer.microbatch",
            Amount(2, "sequences"),
        ),
        ([f"{ACTOR}.optim.lr=1e-5"], "trainer.optimizer.lr", 1e-5),
        ([f"{ACTOR}.optim.warmup_style=cosine"], "trainer.schedule.type", "cosine"),
        ([f"{ACTOR}.ppo_epochs=2"], "trainer.epochs_per_step", 2),
        ([f"{ACTOR}.ppo_mini_batch_size=32"], "trainer.tasks_per_update", None),
        ([f"{ACTOR}.optim.betas=[0.8,0.99]"], "trainer.optimizer.betas", (0.8, 0.99)),
        (
            ["trainer.trainer_config.actor_rollout_ref.model.override_config={attention_dropout: 0.1}"],
            "model.override",
            {"attention_dropout": 0.1},
        ),
        ([], "model.gradient_checkpointing", True),
        (["model.lora_configs=[{lora_rank: 4, lora_alpha: 8}]"], "model.lora.rank", 4),
    ],
)
def test_mapped(overrides: list[str], field: str, expected: object) -> None:
    assert value(read(*overrides), field) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["buffer.batchsize=3"], "did you mean 'buffer.batch_size'"),
        (["algorithm.algorithm_type=a2c"], "ppo or grpo or"),
        (["algorithm.algorithm_type=sft"], "Write mode: train"),
        (["buffer.train_batch_size=33"], r"\(33\) does not match batch_size x repeat_times \(4 x 8 = 32\)"),
        (["model.max_model_len=60"], "leaves no tokens"),
        (["~model.max_prompt_tokens"], r"write model\.max_prompt_tokens"),
        (["monitor.monitor_args.api_key=k"], "set the environment variable WANDB_API_KEY"),
        (
            [f"{TASKSET}.storage_type=queue"],
            "a queue of tasks has no epochs; write buffer.total_steps",
        ),
        (["+buffer.explorer_input.eval_tasksets.0.storage_type=queue"], "write file or sql"),
        ([f"{TASKSET}.default_workflow_type=simple_workflw"], "did you mean simple_workflow"),
        (["~buffer.default_reward_fn_type"], "write default_reward_fn_type"),
        (["+explorer.auxiliary_models=[{tensor_parallel_size: 1}]"], r"auxiliary_models\.0\.model_path"),
        (["model.lora_configs=True"], "lora_configs must be a list of mappings"),
        (
            ["data_processor.experience_pipeline.operators=[{name: x}]"],
            "an operator that Strop does not have",
        ),
        ([f"{ACTOR}.checkpoint.save_contents=[optimizer]"], "requires 'model'"),
        (["model.model_path=${oc.env:STROP_TEST_NONE}"], "'STROP_TEST_NONE' is not set"),
        (["data.train_batch_size=3"], r"there is no key data\.train_batch_size"),
    ],
)
def test_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read(*overrides)
    assert "\n\n" not in str(caught.value)


def test_errors_name_file_and_line() -> None:
    Path("t.yaml").write_text(BASE.replace("name: test", "nam: test"))
    with pytest.raises(ConfigError, match=r"t\.yaml:9: trinity has no key .*eval_tasksets\.0\.nam; did you"):
        read()
    Path("t.yaml").write_text(BASE)
    assert str(read().sources["trainer.tasks_per_step"]) == "t.yaml:4 (buffer.batch_size)"


def test_placement() -> None:
    with pytest.raises(PlacementError, match=r"engine_type=tgi"):
        read("explorer.rollout_model.engine_type=tgi", here=False)
    loaded = read(
        "explorer.rollout_model.engine_num=2",
        "cluster.node_num=2",
        f"{ACTOR}.ulysses_sequence_parallel_size=2",
    )
    assert len(loaded.overridden) == 3 and loaded.run == read().run
    assert read("explorer.runner_per_model=32", "synchronizer.sync_method=nccl").overridden == ()


def test_further_arguments_of_an_engine_reach_it() -> None:
    arguments = (
        "explorer.rollout_model.engine_type=vllm",
        "+explorer.rollout_model.extra_engine_args.max_num_seqs=64",
    )
    run = read(*arguments, here=False).run
    assert isinstance(run.rollout.engine, VllmEngineConfig)
    assert run.rollout.engine.engine_kwargs == {"max_num_seqs": 64}
    written = write_dialect(LEDGER, run).values
    assert written["explorer.rollout_model.extra_engine_args.max_num_seqs"] == 64
    here = read(*arguments)
    assert "explorer.rollout_model.extra_engine_args.max_num_seqs" in {aside.key for aside in here.overridden}


def test_engines_and_concurrent_rollouts() -> None:
    several = (
        "explorer.rollout_model.engine_num=3",
        "explorer.runner_per_model=2",
        "algorithm.repeat_times=4",
    )
    run = read(*several, here=False).run
    assert (
        run.rollout.pool == EnginePoolConfig(engines=3) and run.rollout.max_concurrent_rollouts == 3 * 2 * 4
    )
    assert write_engines(run) == {"explorer.rollout_model.engine_num": 3, "explorer.runner_per_model": 2}
    here = read(*several)
    assert here.run.rollout.pool is None and here.run.rollout.max_concurrent_rollouts == 2 * 4
    assert [aside.key for aside in here.overridden] == ["explorer.rollout_model.engine_num"]
    assert read().run.rollout.max_concurrent_rollouts is None


@pytest.mark.parametrize("empty", ["{}", "null"])
def test_an_empty_trainer_config_keeps_all_defaults(empty: str) -> None:
    assert read(f"trainer.trainer_config={empty}").run == read().run


def test_trainer_config_path() -> None:
    inner = {"actor_rollout_ref": {"actor": {"optim": {"lr": 3e-5}, "grad_clip": 0.5}}}
    Path("inner.yaml").write_text(yaml.safe_dump(inner))
    loaded = read("trainer.trainer_config_path=inner.yaml")
    assert (loaded.run.trainer.optimizer.lr, loaded.run.trainer.max_grad_norm) == (3e-5, 0.5)
    with pytest.raises(ConfigError, match=r"both .* are set"):
        read("trainer.trainer_config_path=inner.yaml", f"{ACTOR}.grad_clip=1.0")


def test_new_run_gets_a_timestamped_name() -> None:
    assert read("continue_from_checkpoint=false").run.name == "rft"
    there = Path("checkpoints/Trinity-RFT/rft")
    there.mkdir(parents=True)
    (there / "run.yaml").touch()
    assert read("continue_from_checkpoint=false").run.name.startswith("rft_2")
    assert read().run.name == "rft"


VALUES = [
    "null",
    "True",
    "-1",
    "0",
    "3",
    "0.5",
    "abc",
    "[]",
    "[a]",
    "{a: 1}",
    "[{a: 1}]",
    "''",
    "${x}",
    "???",
]


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from([row.key for row in LEDGER.rows]), st.sampled_from(VALUES)), max_size=3
    )
)
def test_any_configuration_is_read_or_refused(line: list[tuple[str, str]]) -> None:
    try:
        read(*(f"++{key.replace('*', 'x')}={said}" for key, said in line))
    except StropError as error:
        assert "\n\n" not in str(error)
