"""Trinity's ledger is its page, and what its keys mean here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strop.config.dialects.row import UNSET
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity import LEDGER
from strop.config.dialects.trinity.explorer import write_engines
from strop.config.draft import Draft, Source, split
from strop.config.schema.algorithm import KlLoss, Opmd, OpmdLoss
from strop.config.schema.rollout import Pool
from strop.config.schema.walk import all_keys
from strop.config.units import Amount
from strop.errors import ConfigError, PlacementError, StropError

from .trinity_file import ACTOR, BASE, TASKSET, read, value
from .trinity_page import PAGE, page_copy, page_names

FIELDS = set(all_keys())
pytestmark = pytest.mark.usefixtures("trinity_file")


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not beside the repository")
def test_the_copy_is_the_page() -> None:
    assert page_copy() == page_names(PAGE.read_text())


def test_every_name_of_the_page_is_in_a_row_and_no_row_is_invented() -> None:
    on_page = [row for row in LEDGER.rows if row.on_page]
    inside = {name for row in on_page for name in split(row.theirs)}
    assert [name for name in page_copy() if name not in inside] == []
    known = {*page_copy(), "*"}
    assert [row.theirs for row in on_page if split(row.theirs)[-1] not in known] == []


def test_no_key_has_two_rows() -> None:
    assert [key for key, count in Counter(row.theirs for row in LEDGER.rows).items() if count > 1] == []


def test_every_row_says_what_becomes_of_its_key() -> None:
    for row in LEDGER.rows:
        match row.fate:
            case "mapped":
                assert row.ours or row.note, row.theirs
                assert len(row.ours) < 2 or row.read, row.theirs
            case "placement" | "refused":
                assert row.note and row.can, row.theirs
            case "accepted without effect":
                assert row.note and not row.ours, row.theirs
        for field in row.ours:
            assert ".".join(part for part in field.split(".") if not part.isdigit()) in FIELDS, (
                row.theirs,
                field,
            )


def test_few_keys_are_without_effect() -> None:
    fates = Counter(row.fate for row in LEDGER.rows if row.on_page)
    assert fates["accepted without effect"] * 20 <= fates.total()


def test_every_default_is_of_its_own_kind() -> None:
    draft = Draft()
    draft.set(split("model.model_path"), "m", Source("python", "test"))
    theirs = Theirs(LEDGER, draft)
    for row in LEDGER.rows:
        if row.default is not UNSET and not row.in_list:
            assert row.kind.fits(theirs[row.theirs]), row.theirs


@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        ([], "folder_path", Path("checkpoints/Trinity-RFT/rft")),
        (["checkpoint_root_dir=c", "name=n"], "folder_path", Path("c/Trinity-RFT/n")),
        ([], "algorithm.rollouts_per_task", 8),
        (["~algorithm.repeat_times"], "algorithm.rollouts_per_task", 2),
        ([], "algorithm.kl_loss", KlLoss(estimator="k2", coef=0.001)),
        (["algorithm.kl_loss_fn=none"], "algorithm.kl_loss", None),
        (["algorithm.kl_penalty_fn=k1"], "algorithm.kl_reward.coef", 0.001),
        (["algorithm.algorithm_type=opmd"], "algorithm.policy_loss", OpmdLoss(tau=1.0)),
        (["algorithm.algorithm_type=opmd"], "algorithm.type", Opmd().type),
        (["algorithm.advantage_fn=rloo"], "algorithm.type", "rloo"),
        (["algorithm.policy_loss_fn_args.clip_range=0.3"], "algorithm.policy_loss.clip_high", 0.3),
        ([], "trainer.tasks_per_step", 4),
        (["buffer.train_batch_size=32"], "trainer.tasks_per_step", 4),
        ([], "trainer.duration", Amount(3, "epochs")),
        (["buffer.total_steps=7"], "trainer.duration", Amount(7, "steps")),
        (["buffer.total_steps=7", "trainer.total_steps=9"], "trainer.duration", Amount(9, "steps")),
        ([], "data.train.split", None),
        ([], "data.eval.0.split", "test"),
        ([], "data.eval.0.name", "test"),
        ([], "data.eval.0.sampling.temperature", 0.1),
        ([], "data.eval.0.rollouts_per_task", 1),
        ([], "reward.functions.0.function", "countdown"),
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
        ([], "checkpoint.copy_to", None),
        (["trainer.trainer_config.trainer.default_hdfs_dir=/x"], "checkpoint.copy_to", "/x"),
        ([], "trainer.microbatch", Amount(16384, "tokens")),
        (
            [f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"],
            "trainer.microbatch",
            Amount(2, "sequences"),
        ),
        ([f"{ACTOR}.optim.lr=1e-5"], "trainer.optimizer.lr", 1e-5),
        ([f"{ACTOR}.optim.warmup_style=cosine"], "trainer.schedule.type", "cosine"),
        ([f"{ACTOR}.ppo_epochs=2"], "trainer.passes", 2),
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
        (["buffer.train_batch_size=33"], r"\(33\) is not batch_size x repeat_times \(4 x 8 = 32\)"),
        (["model.max_model_len=60"], "leaves no room"),
        (["~model.max_prompt_tokens"], r"write model\.max_prompt_tokens"),
        (["monitor.monitor_type=wandb"], "write monitor_type: tensorboard"),
        (
            [f"{TASKSET}.storage_type=queue"],
            "a queue of tasks has no epochs; write buffer.total_steps",
        ),
        (["+buffer.explorer_input.eval_tasksets.0.storage_type=queue"], "write file, or sql"),
        ([f"{TASKSET}.default_workflow_type=mine"], "simple_workflow, math_workflow, math_boxed_workflow"),
        ([f"{TASKSET}.repeat_times=3"], "differs from algorithm.repeat_times"),
        (["~buffer.default_reward_fn_type"], "write default_reward_fn_type"),
        (["+explorer.auxiliary_models=[{tensor_parallel_size: 1}]"], r"auxiliary_models\.0\.model_path"),
        (["model.lora_configs=True"], "lora_configs is a list of mappings"),
        (["data_processor.task_pipeline.operators=[{name: x}]"], "prepare the data before the run"),
        ([f"{ACTOR}.checkpoint.save_contents=[optimizer]"], "without 'model'"),
        (["trainer.trainer_config.trainer.resume_mode=disable"], "continue_from_checkpoint"),
        (["model.model_path=${oc.env:STROP_TEST_NONE}"], "'STROP_TEST_NONE' is not set"),
        (["data.train_batch_size=3"], r"there is no key data\.train_batch_size"),
    ],
)
def test_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read(*overrides)
    assert "\n\n" not in str(caught.value)


def test_lines_of_a_file_are_named() -> None:
    Path("t.yaml").write_text(BASE.replace("name: test", "nam: test"))
    with pytest.raises(ConfigError, match=r"t\.yaml:9: trinity has no key .*eval_tasksets\.0\.nam; did you"):
        read()
    Path("t.yaml").write_text(BASE)
    assert str(read().sources["trainer.tasks_per_step"]) == "t.yaml:4 (buffer.batch_size)"


def test_placement() -> None:
    with pytest.raises(PlacementError, match=r"engine_type=vllm_async"):
        read("explorer.rollout_model.engine_type=vllm_async", here=False)
    loaded = read(
        "explorer.rollout_model.engine_num=2",
        "cluster.node_num=2",
        f"{ACTOR}.ulysses_sequence_parallel_size=2",
    )
    assert len(loaded.set_aside) == 3 and loaded.run == read().run
    assert read("explorer.runner_per_model=32", "synchronizer.sync_method=nccl").set_aside == ()


def test_engines_and_their_runners() -> None:
    several = (
        "explorer.rollout_model.engine_num=3",
        "explorer.runner_per_model=2",
        "algorithm.repeat_times=4",
    )
    run = read(*several, here=False).run
    assert run.rollout.pool == Pool(engines=3) and run.rollout.runners == 3 * 2 * 4
    assert write_engines(run) == {"explorer.rollout_model.engine_num": 3, "explorer.runner_per_model": 2}
    here = read(*several)
    assert here.run.rollout.pool is None and here.run.rollout.runners == 2 * 4
    assert [aside.key for aside in here.set_aside] == ["explorer.rollout_model.engine_num"]
    assert read().run.rollout.runners is None


def test_a_config_in_a_file_of_its_own() -> None:
    inner = {"actor_rollout_ref": {"actor": {"optim": {"lr": 3e-5}, "grad_clip": 0.5}}}
    Path("inner.yaml").write_text(yaml.safe_dump(inner))
    loaded = read("trainer.trainer_config_path=inner.yaml")
    assert (loaded.run.trainer.optimizer.lr, loaded.run.trainer.max_grad_norm) == (3e-5, 0.5)
    with pytest.raises(ConfigError, match=r"both .* are written"):
        read("trainer.trainer_config_path=inner.yaml", f"{ACTOR}.grad_clip=1.0")


def test_starting_anew_takes_a_name_of_its_own() -> None:
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


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from([row.theirs for row in LEDGER.rows]), st.sampled_from(VALUES)), max_size=3
    )
)
def test_any_line_is_read_or_refused_in_words(line: list[tuple[str, str]]) -> None:
    try:
        read(*(f"++{key.replace('*', 'x')}={said}" for key, said in line))
    except StropError as error:
        assert "\n\n" not in str(error)
