"""Tests of the components' inputs: conversion to run-file fields, argument parsing, refusals and
placement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.config.schema.checkpoint import BestCheckpointConfig
from strop.config.schema.deepspeed_engine import DeepSpeedEngineConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.optimizer import AdamWConfig
from strop.config.schema.policy_gradient import AdaptiveKlConfig, KlLossConfig, KlRewardConfig
from strop.config.schema.policy_loss import ClippedLossConfig
from strop.config.units import Amount
from strop.data.encoding.chat_template import PromptEncoder
from strop.dialects.azureml.components import COMPONENTS
from strop.dialects.azureml.grpo_converters import CHAT_TEMPLATE, SYSTEM_PROMPT
from strop.dialects.azureml.model_folder import find_model
from strop.dialects.azureml.reader import read_component
from strop.dialects.job import Job
from strop.errors import ConfigError, PlacementError, StropError
from strop.models.loading import load_tokenizer
from strop.models.tiny import make_model
from strop.rewards.scorer import Scorer
from tests.datasets import data_folder
from tests.rewards.builders import group

NEEDED = {
    "rft_trainer": ["--data_train_files=t.jsonl", "--data_val_files=v.jsonl", "--actor_model_path=m"],
    "verl_trainer": ["--data_train_files=t.jsonl", "--data_val_files=v.jsonl", "--actor_model_path=m"],
    "grpo": ["--dataset_train_split=t.jsonl", "--dataset_validation_split=v.jsonl", "--model_name_or_path=m"],
}


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("strop.dialects.verl.gpus.count_cuda_devices", lambda: 0)
    monkeypatch.delenv("STROP_HERE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 3}}')


def read(name: str, *words: str, here: bool = True) -> Job:
    deepspeed = ["--deepspeed_config=ds.json"] if name == "grpo" else []
    return read_component(name, [*NEEDED[name], *deepspeed, *words], here=here)


def value(job: Job, field: str) -> Any:
    found: Any = job.loaded.run
    for part in field.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


@pytest.mark.parametrize(
    ("component", "words", "field", "expected"),
    [
        ("rft_trainer", [], "algorithm.type", "grpo"),
        ("rft_trainer", ["--algorithm_adv_estimator", "reinforce_plus_plus"], "algorithm.gamma", 1.0),
        ("rft_trainer", [], "algorithm.kl_loss", KlLossConfig(coef=0.01)),
        ("rft_trainer", [], "algorithm.kl_reward", None),
        ("rft_trainer", ["--actor_use_kl_loss=false"], "algorithm.kl_loss", None),
        ("rft_trainer", ["--actor_use_kl_loss=false"], "algorithm.kl_reward", None),
        (
            "rft_trainer",
            ["--algorithm_use_kl_in_reward=True"],
            "algorithm.kl_reward",
            KlRewardConfig(coef=0.001, adaptive=AdaptiveKlConfig()),
        ),
        ("rft_trainer", ["--algorithm_use_kl_in_reward=True"], "algorithm.kl_loss.coef", 0.01),
        ("rft_trainer", [], "algorithm.rollouts_per_task", 5),
        ("rft_trainer", [], "checkpoint.every", Amount(20, "epochs")),
        ("rft_trainer", ["--trainer_save_freq=-1"], "checkpoint.every", None),
        ("rft_trainer", ["--trainer_test_freq", "2"], "evaluate.every", Amount(2, "epochs")),
        ("rft_trainer", [], "checkpoint.export", True),
        ("rft_trainer", [], "trainer.duration", Amount(7, "epochs")),
        ("rft_trainer", ["--total_training_steps", "9"], "trainer.duration", Amount(9, "steps")),
        ("rft_trainer", [], "trainer.tasks_per_step", 512),
        ("rft_trainer", [], "trainer.tasks_per_update", 128),
        ("rft_trainer", [], "trainer.microbatch", Amount(10, "sequences")),
        ("rft_trainer", [], "trainer.optimizer.lr", 3e-6),
        ("rft_trainer", ["--actor_optim_lr", "1e-5"], "trainer.optimizer.lr", 1e-5),
        ("rft_trainer", [], "data.overlong", "filter"),
        ("rft_trainer", ["--data_filter_overlong_prompts", "false"], "data.overlong", "error"),
        ("rft_trainer", [], "model.lora.rank", 64),
        ("rft_trainer", ["--actor_model_lora_rank", "0"], "model.lora", None),
        (
            "rft_trainer",
            ["--actor_model_target_modules=[q_proj,v_proj]"],
            "model.lora.targets",
            ("q_proj", "v_proj"),
        ),
        ("rft_trainer", ["--actor_model_target_modules=.*_proj"], "model.lora.targets", ".*_proj"),
        ("rft_trainer", [], "model.gradient_checkpointing", True),
        ("rft_trainer", [], "rollout.engine.dtype", "bfloat16"),
        ("rft_trainer", [], "data.eval.0.sampling.temperature", 0.7),
        ("rft_trainer", [], "data.eval.0.sampling.top_p", 0.7),
        ("rft_trainer", ["--rollout_val_temperature", "0"], "data.eval.0.sampling.temperature", 0.0),
        ("rft_trainer", [], "algorithm.entropy_coef", 0.0),
        ("rft_trainer", ["--intermediate_folder", "inter"], "folder", "inter"),
        ("verl_trainer", [], "checkpoint.every", Amount(20, "steps")),
        ("verl_trainer", [], "evaluate.every", Amount(5, "steps")),
        ("verl_trainer", [], "trainer.duration", Amount(15, "epochs")),
        ("verl_trainer", [], "data.eval.0.sampling.temperature", 0.0),
        ("verl_trainer", [], "model.lora.exclude", ".*visual.*"),
        ("verl_trainer", [], "checkpoint.export", False),
        ("verl_trainer", ["--algorithm_adv_estimator=grpo_passk"], "algorithm.type", "grpo_passk"),
        (
            "verl_trainer",
            ["--algorithm_use_kl_in_reward=True"],
            "algorithm.kl_reward",
            KlRewardConfig(coef=0.001),
        ),
        ("grpo", [], "algorithm.rollouts_per_task", 4),
        ("grpo", [], "trainer.tasks_per_step", 2),
        ("grpo", ["--gradient_accumulation_steps", "4"], "trainer.tasks_per_step", 8),
        ("grpo", [], "trainer.epochs_per_step", 3),
        ("grpo", [], "trainer.duration", Amount(4, "epochs")),
        ("grpo", ["--num_train_epochs", "0.5"], "trainer.duration", Amount(0.5, "epochs")),
        ("grpo", ["--max_steps", "-1"], "trainer.duration", Amount(4, "epochs")),
        ("grpo", ["--max_steps", "7"], "trainer.duration", Amount(7, "updates")),
        ("grpo", [], "trainer.schedule.type", "cosine"),
        ("grpo", [], "trainer.schedule.interval", "updates"),
        ("grpo", [], "trainer.schedule.warmup", Amount(10, "%")),
        ("grpo", ["--lr_scheduler_type=constant"], "trainer.schedule.warmup", Amount(0, "%")),
        ("grpo", ["--lr_scheduler_type=constant_with_warmup"], "trainer.schedule.warmup", Amount(10, "%")),
        ("grpo", [], "trainer.optimizer", AdamWConfig(lr=3e-6, weight_decay=0.0, fused=False)),
        ("grpo", ["--optim=adamw_torch_fused"], "trainer.optimizer.fused", True),
        ("grpo", ["--optim=lomo", "--max_grad_norm=0"], "trainer.max_grad_norm", None),
        ("grpo", ["--optim=schedule_free_sgd"], "trainer.optimizer.type", "schedule_free_sgd"),
        (
            "grpo",
            ["--lr_scheduler_type=polynomial", "--learning_rate=1e-6"],
            "trainer.schedule.min_ratio",
            0.1,
        ),
        ("grpo", ["--lr_scheduler_type=inverse_sqrt"], "trainer.schedule.type", "inverse_sqrt"),
        (
            "grpo",
            ["--lr_scheduler_type=reduce_lr_on_plateau", "--eval_strategy=steps"],
            "trainer.schedule.type",
            "reduce_lr_on_plateau",
        ),
        ("grpo", [], "checkpoint.every", Amount(100, "updates")),
        ("grpo", [], "checkpoint.keep", 20),
        ("grpo", [], "algorithm.kl_loss", None),
        ("grpo", ["--beta", "0.04"], "algorithm.kl_loss", KlLossConfig(coef=0.04)),
        (
            "grpo",
            [],
            "algorithm.policy_loss",
            ClippedLossConfig(clip_low=0.5, clip_high=0.5, dual_clip=None),
        ),
        ("grpo", [], "model.lora.targets", ("q_proj", "k_proj", "v_proj")),
        ("grpo", ["--apply_lora", "false"], "model.lora", None),
        ("grpo", [], "data.eval", ()),
        ("grpo", ["--do_eval=true"], "data.eval.0.path", "v.jsonl"),
        ("grpo", ["--do_eval=true"], "evaluate.every", None),
        ("grpo", ["--eval_strategy=steps", "--eval_steps=4"], "evaluate.every", Amount(4, "updates")),
        ("grpo", ["--eval_strategy=epoch"], "evaluate.every", Amount(1, "epochs")),
        ("grpo", ["--eval_strategy=disable"], "evaluate.every", None),
        ("grpo", ["--eval_strategy=disable"], "data.eval", ()),
        (
            "verl_trainer",
            ["--actor_loss_agg_mode=seq-mean-token-sum"],
            "algorithm.aggregation",
            "seq-mean-token-sum",
        ),
        ("rft_trainer", ["--algorithm_norm_adv_by_std_in_grpo=false"], "algorithm.divide_by_std", False),
        (
            "verl_trainer",
            ["--algorithm_adv_estimator=gae", "--critic_optim_lr=2e-5"],
            "algorithm.critic.optimizer.lr",
            2e-5,
        ),
        ("verl_trainer", ["--actor_strategy=megatron"], "trainer.engine.type", "local"),
        ("grpo", ["--eval_strategy=epoch"], "data.eval.0.rollouts_per_task", 4),
        (
            "grpo",
            ["--eval_strategy=epoch"],
            "checkpoint.best",
            BestCheckpointConfig(metric="eval/validation/reward"),
        ),
        ("grpo", [], "checkpoint.best", None),
        ("grpo", [], "data.overlong", "left"),
        ("grpo", [], "data.train.prompt", "problem"),
        ("grpo", [], "data.train.answer", "solution"),
        ("grpo", ["--output_model_path", "o"], "folder", "o"),
        ("grpo", ["--save_total_limit", "3"], "checkpoint.keep", 3),
        ("grpo", ["--save_steps", "7"], "checkpoint.every", Amount(7, "updates")),
        ("grpo", ["--do_eval=true"], "checkpoint.best.metric", "eval/validation/reward"),
        ("grpo", [], "data.train.system", SYSTEM_PROMPT),
        ("grpo", [], "reward.functions.0.args", {"method": "strict"}),
        ("grpo", [], "data.chat_template", str(CHAT_TEMPLATE)),
        ("grpo", ["--shuffle_dataset=False"], "data.shuffle", False),
        ("grpo", ["--dataset_prompt_column=q"], "data.train.prompt", "q"),
    ],
)
def test_mapped(component: str, words: list[str], field: str, expected: object) -> None:
    assert value(read(component, *words), field) == expected


@pytest.mark.parametrize(
    ("component", "words", "expected"),
    [
        ("rft_trainer", ["--rolout_n=5"], "rft_trainer has no input --rolout_n; did you mean 'rollout_n'"),
        ("rft_trainer", ["--rollout_n=many"], "--rollout_n must be an integer, got 'many'"),
        ("rft_trainer", ["--rollout_n=2.5"], "--rollout_n must be an integer, got '2.5'"),
        ("rft_trainer", ["--rollout_top_p=x"], "--rollout_top_p must be a number"),
        ("rft_trainer", ["--actor_use_kl_loss=yes"], "--actor_use_kl_loss must be true or false, got 'yes'"),
        (
            "rft_trainer",
            ["--data_truncation=up"],
            "--data_truncation must be error or left or right or middle",
        ),
        ("rft_trainer", ["--algorithm_adv_estimator=gae"], "must be grpo or reinforce_plus_plus"),
        ("rft_trainer", ["--rollout_do_sample=False"], "rollout_do_sample=False is not supported"),
        (
            "rft_trainer",
            ["--data_train_batch_size=100"],
            r"data_train_batch_size \(100\) is not a multiple of actor_rft_mini_batch_size \(128\); "
            "the nearest divisors are 50 and 100",
        ),
        ("rft_trainer", ["--rollout_n=5", "--rollout_n", "6"], "given twice: '5' and '6'"),
        ("rft_trainer", ["rollout_n=5"], "has no input name before it"),
        (
            "rft_trainer",
            ["--pypi_packages_override=a b"],
            "pypi_packages_override must be package names with versions",
        ),
        ("rft_trainer", ["--pypi_packages_override=--index-url=x"], "package names with versions"),
        ("rft_trainer", ["--pypi_packages_override=a @ git+x"], "package names with versions"),
        ("verl_trainer", ["--ENGINE=sglang", "--rollout_name=vllm"], "set the same option"),
        ("verl_trainer", ["--ENGINE=tgi"], "ENGINE must be vllm or sglang or hf"),
        ("verl_trainer", ["--data_train_files=i.jsonl", "--data_image_key=images"], "given twice"),
        ("verl_trainer", ["--actor_kl_loss_type=k4"], "actor_kl_loss_type must be kl or"),
        ("verl_trainer", ["--actor_rft_mini_batch_size=1"], "did you mean 'actor_ppo_mini_batch_size'"),
        ("grpo", ["--num_generations=3"], r"batch of 8 .* the nearest multiples are 6 and 9"),
        ("grpo", ["--num_generations=1"], "write 2 or more"),
        ("grpo", ["--optim=lomo"], "write max_grad_norm 0"),
        ("grpo", ["--optim=adam"], "--optim must be adamw_torch or"),
        ("grpo", ["--lr_scheduler_type=reduce_lr_on_plateau"], "requires evaluation, which is disabled"),
        ("grpo", ["--apply_lora=True"], "--apply_lora must be true or false"),
        ("grpo", ["--dataset_name=x/y"], "both are set"),
    ],
)
def test_refused(component: str, words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        read(component, *words)
    assert "\n" not in str(caught.value)


def test_required_inputs() -> None:
    with pytest.raises(ConfigError, match="rft_trainer requires --data_val_files, --actor_model_path; write"):
        read_component("rft_trainer", ["--data_train_files", "t.jsonl"])
    with pytest.raises(ConfigError, match="set without dataset_validation_split"):
        read_component(
            "grpo",
            ["--dataset_train_split=t", "--model_name_or_path=m", "--deepspeed_config=ds.json"],
            here=True,
        )
    with pytest.raises(ConfigError, match="did you mean 'grpo'"):
        read_component("grppo", [])
    with pytest.raises(ConfigError, match=r"^grpo requires"):
        read_component("group_relative_policy_optimization", [])


def test_grpo_reads_a_named_dataset_by_its_splits() -> None:
    words = ["--dataset_name=some/questions", "--model_name_or_path=m", "--deepspeed_config=ds.json"]
    data = read_component("grpo", [*words, "--do_eval=true"], here=True).loaded.run.data
    assert (data.train.path, data.train.split) == ("some/questions", "train")
    assert [(part.path, part.split) for part in data.eval] == [("some/questions", "validation")]
    assert read_component("grpo", words, here=True).loaded.run.data.eval == ()


def test_optional_inputs_may_be_absent_or_empty() -> None:
    plain = read("rft_trainer").loaded.run
    assert read("rft_trainer", "--total_training_steps", "", "--pypi_packages_override=").loaded.run == plain
    assert read("rft_trainer", "--total_training_steps", "--rollout_n", "5").loaded.run == plain


def test_packages_are_read() -> None:
    job = read("rft_trainer", "--pypi_packages_override", "transformers==5.19.0, torch>=2.3,peft")
    assert job.packages == ("transformers==5.19.0", "torch>=2.3", "peft")


def test_outputs() -> None:
    job = read("rft_trainer", "--intermediate_folder=a", "--model_output=b")
    assert (job.loaded.run.folder_path, job.output_folders("model")) == (Path("a"), (Path("b"),))
    job = read("grpo", "--output_model_path=a", "--mlflow_model_folder=b")
    assert (job.loaded.run.folder_path, job.output_folders("mlflow")) == (Path("a"), (Path("b"),))


def test_sources_and_notes_use_input_names() -> None:
    job = read("rft_trainer", "--rollout_n=6", "--actor_use_kl_loss=false", "--actor_kl_loss_coef=0.5")
    sources = {field: str(source) for field, source in job.loaded.sources.items()}
    assert sources["algorithm.rollouts_per_task"] == "override --rollout_n=6"
    assert sources["trainer.tasks_per_step"] == "data_train_batch_size (page default)"
    assert sources["trainer.optimizer.betas"].endswith("(unstated default)")
    (note,) = job.loaded.notes
    assert note == "override --actor_kl_loss_coef=0.5: inactive, because actor_use_kl_loss is False."


def test_placement_overrides_are_listed() -> None:
    with pytest.raises(PlacementError, match="trainer_nnodes=2: a single process"):
        read("rft_trainer", "--trainer_nnodes=2", here=False)
    job = read("rft_trainer", "--trainer_nnodes=2", "--actor_fsdp_param_offload=true")
    assert {item.key for item in job.loaded.overridden} == {"trainer_nnodes", "actor_fsdp_param_offload"}
    assert job.loaded.run == read("rft_trainer").loaded.run


@pytest.mark.parametrize(
    ("deepspeed", "expected"),
    [
        ({"train_micro_batch_size_per_gpu": 4}, "must equal --per_device_train_batch_size"),
        ({"gradient_clipping": 0.5}, "must equal --max_grad_norm"),
        ({"train_batch_size": 12}, "write 'auto'"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1}}}, "must equal --learning_rate"),
        ({"scheduler": {"type": "WarmupLR"}}, "lr_scheduler_type"),
        ({"train_micro_batchsize": 4}, "did you mean"),
        ([], "not a JSON object"),
    ],
)
def test_deepspeed_options_must_equal_the_inputs(deepspeed: Any, expected: str) -> None:
    Path("ds.json").write_text(json.dumps(deepspeed))
    with pytest.raises(ConfigError, match=expected):
        read("grpo")


def test_deepspeed_placement_overrides_are_listed() -> None:
    Path("ds.json").write_text(
        json.dumps(
            {
                "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
                "bf16": {"enabled": True},
                "train_micro_batch_size_per_gpu": 8,
                "gradient_clipping": "auto",
                "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
                "steps_per_print": 10,
            }
        )
    )
    keys = [item.key.removeprefix("deepspeed_config.") for item in read("grpo").loaded.overridden]
    assert keys == ["zero_optimization.stage", "zero_optimization.offload_param", "bf16.enabled"]
    Path("ds.json").write_text("{}")
    assert [item.key for item in read("grpo").loaded.overridden] == ["deepspeed_config"]
    Path("ds.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read("grpo")


def test_the_deepspeed_file_becomes_the_engine() -> None:
    sections = {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
        "train_batch_size": "auto",
    }
    Path("ds.json").write_text(json.dumps(sections))
    loaded = read("grpo", here=False).loaded
    engine = loaded.run.trainer.engine
    assert engine == DeepSpeedEngineConfig(ranks=1, config=sections) and loaded.overridden == ()
    assert "deepspeed_config" in str(loaded.sources["trainer.engine.config"])
    assert loaded.run.model.compute_dtype is None
    Path("ds.json").write_text(json.dumps({"train_batch_size": 16, "bf16": {"enabled": True}}))
    run = read("grpo", "--num_generations=4", here=False).loaded.run
    assert (run.trainer.engine.ranks, run.trainer.tasks_per_step) == (2, 4), (
        "16 completions, 8 of each process"
    )
    assert run.model.compute_dtype == "bfloat16"
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"offload_param": {"device": "nvme"}}}))
    with pytest.raises(ConfigError, match="offloads to `cpu`, or `none`"):
        read("grpo", here=False)


def test_model_input_formats(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text("{}")
    assert find_model(plain) == (plain, None)
    mlflow = tmp_path / "import" / "mlflow_model_folder"
    for name in ("model", "components/tokenizer"):
        (mlflow / name).mkdir(parents=True)
    (mlflow / "model" / "config.json").write_text("{}")
    (mlflow / "MLmodel").write_text("flavors: {transformers: {model_binary: model}}")
    assert find_model(mlflow.parent) == (mlflow / "model", mlflow / "components/tokenizer")
    assert find_model(tmp_path / "absent") == (tmp_path / "absent", None)
    run = read_component(
        "rft_trainer",
        ["--data_train_files=t", "--data_val_files=v", f"--actor_model_path={mlflow}"],
    ).loaded.run
    assert (run.model.path, run.model.tokenizer) == (
        str(mlflow / "model"),
        str(mlflow / "components/tokenizer"),
    )
    with pytest.raises(ConfigError, match="is not a model"):
        find_model(tmp_path / "import" / "mlflow_model_folder" / "components")


def test_grpo_prompt_and_rewards(tmp_path: Path) -> None:
    run = read("grpo").loaded.run
    tokenizer = load_tokenizer(ModelConfig(path=str(make_model(tmp_path / "tiny", ["a"]))))
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "Which?"}]
    text = PromptEncoder(tokenizer, run.data.chat_template).render("row 1", messages, (), prompt=True)
    end = tokenizer.eos_token
    assert text == f"<|system|>\n{SYSTEM_PROMPT}{end}\n<|user|>\nWhich?{end}\n<|assistant|>\n"
    answers = {
        "<think>\nso\n</think>\n<answer>\nFinal Answer: B\n</answer>": {"format": 1, "accuracy": 1},
        "<think>\nso\n</think>\n<answer>\nFinal Answer: C\n</answer>": {"format": 1, "accuracy": 0},
        "<think>so</think><answer>A? No: the answer is B</answer>": {"format": 0, "accuracy": 1},
        "no": {"format": 0, "accuracy": 0},
    }
    with Scorer(run.reward, None) as scorer:
        (scored,) = scorer.score([group(list(answers), "B")])
    for rollout, parts in zip(scored.rollouts, answers.values(), strict=True):
        assert rollout.reward_parts == parts and rollout.reward == sum(parts.values())


def test_images_are_read_if_rows_have_them() -> None:
    geometry = data_folder() / "geometry" / "train.parquet"
    words = [f"--data_train_files={geometry}", "--data_val_files=v", "--actor_model_path=m"]
    for given_, expected in (
        ([], "images"),
        (["--data_image_key=images"], "images"),
        (["--data_image_key=x"], None),
    ):
        job = read_component("verl_trainer", [*words, *given_], here=True)
        assert job.loaded.run.data.train.images == expected


TEXTS = [
    "true",
    "False",
    "-1",
    "0",
    "3",
    "1e-6",
    "0.5",
    "abc",
    "",
    "[a,b]",
    "x==1",
    "--x",
    "${data.y}",
    "???",
]


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(list(COMPONENTS)), st.data())
def test_any_configuration_is_read_or_refused(name: str, data: st.DataObject) -> None:
    inputs = [given_.name for given_ in COMPONENTS[name].inputs]
    said = data.draw(st.dictionaries(st.sampled_from(inputs), st.sampled_from(TEXTS), max_size=4))
    words = {word[2:].partition("=")[0]: word[2:].partition("=")[2] for word in NEEDED[name]} | said
    try:
        read_component(
            name, [word for pair in words.items() for word in (f"--{pair[0]}", pair[1])], here=True
        )
    except StropError as error:
        assert "\n\n" not in str(error)
