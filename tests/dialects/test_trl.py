"""TRL's configurations: the meaning of its keys, command lines, Python scripts, and conversion in both directions.

Expectations are TRL 1.16.0's: trl/trainer/{grpo,sft,dpo}_config.py, the losses of grpo_trainer.py, and
transformers/training_args.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strop.config.load.loader import LoadedRun
from strop.dialects.convert import convert
from strop.dialects.detect import read_any
from strop.dialects.job import Job
from strop.dialects.trl.reader import TrlProgram, read_trl_arguments
from strop.dialects.trl.script import read_trl_script
from strop.errors import ConfigError

BASE = ("--model_name_or_path", "m", "--dataset_name", "train.jsonl")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STROP_HERE", raising=False)


def read(text: str = "", program: TrlProgram = "grpo", here: bool = False) -> LoadedRun:
    return read_trl_arguments(program, [*BASE, *text.split()], here=here)


def value(loaded: LoadedRun, field: str) -> Any:
    found: Any = loaded.run
    for part in field.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


LOSS = "algorithm.policy_loss"
MEANINGS: list[tuple[TrlProgram, str, dict[str, Any]]] = [
    (
        "grpo",
        "",
        {
            "algorithm.kl_loss": None,
            "algorithm.aggregation": "token-mean",
            "algorithm.std_epsilon": 1e-4,
            "algorithm.divide_by_std": True,
            f"{LOSS}.clip_low": 0.2,
            f"{LOSS}.clip_high": 0.2,
            f"{LOSS}.dual_clip": None,
            "trainer.tasks_per_step": 1,
            "algorithm.rollouts_per_task": 8,
            "data.max_response_tokens": 512,
            "trainer.optimizer.lr": 1e-6,
            "trainer.optimizer.weight_decay": 0.0,
            "trainer.schedule.type": "linear",
            "trainer.schedule.interval": "updates",
            "model.compute_dtype": "bfloat16",
            "model.gradient_checkpointing": True,
            "seed": 42,
            "checkpoint.keep": None,
            "folder": "trainer_output",
        },
    ),
    (
        "grpo",
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 8 --num_processes 2 --num_generations 16",
        {"trainer.tasks_per_step": 4, "trainer.tasks_per_update": None, "algorithm.rollouts_per_task": 16},
    ),
    (
        "grpo",
        "--per_device_train_batch_size 16 --steps_per_generation 4 --num_iterations 2",
        {"trainer.tasks_per_step": 8, "trainer.tasks_per_update": 2, "trainer.epochs_per_step": 2},
    ),
    (
        "grpo",
        "--per_device_train_batch_size 8 --generation_batch_size 64",
        {"trainer.tasks_per_step": 8, "trainer.tasks_per_update": 1},
    ),
    (
        "grpo",
        "--beta 0.04 --epsilon 0.1 --epsilon_high 0.3 --delta 4 --loss_type dr_grpo --scale_rewards batch",
        {
            "algorithm.kl_loss.estimator": "k3",
            "algorithm.kl_loss.coef": 0.04,
            "algorithm.kl_loss.weight_by_ratio": True,
            "algorithm.aggregation": "seq-mean-token-sum-norm",
            "algorithm.std_over": "step",
            f"{LOSS}.clip_low": 0.1,
            f"{LOSS}.clip_high": 0.3,
            f"{LOSS}.dual_clip": 4.0,
        },
    ),
    ("grpo", "--beta 0.1 --no_use_bias_correction_kl", {"algorithm.kl_loss.weight_by_ratio": False}),
    (
        "grpo",
        "--loss_type cispo --epsilon_high 5",
        {f"{LOSS}.type": "cispo", f"{LOSS}.clip_low": None, f"{LOSS}.clip_high": 4.0},
    ),
    (
        "grpo",
        "--loss_type sapo --sapo_temperature_neg 1.1",
        {f"{LOSS}.type": "sapo", f"{LOSS}.tau_neg": 1.1, "algorithm.aggregation": "seq-mean-token-mean"},
    ),
    (
        "grpo",
        "--importance_sampling_level sequence --loss_type grpo --epsilon 3e-4 --epsilon_high 4e-4",
        {f"{LOSS}.type": "gspo", f"{LOSS}.clip_low": 3e-4, f"{LOSS}.clip_high": 4e-4},
    ),
    (
        "grpo",
        "--warmup_steps 0.1 --lr_scheduler_type cosine_with_min_lr --max_steps 50 --save_strategy epoch",
        {
            "trainer.schedule.type": "cosine",
            "trainer.schedule.warmup.count": 10,
            "trainer.schedule.warmup.unit": "%",
            "trainer.duration.unit": "updates",
            "checkpoint.every.unit": "epochs",
        },
    ),
    (
        "grpo",
        "--eval_strategy steps --eval_steps 20 --num_generations_eval 2 --temperature 0.7 --report_to wandb",
        {
            "evaluate.every.count": 20,
            "data.eval.0.rollouts_per_task": 2,
            "data.eval.0.sampling.temperature": 0.7,
            "record.monitors": ("console", "wandb"),
        },
    ),
    (
        "grpo",
        "--reward_funcs a.b rewards.py:c --reward_weights 1 0.5",
        {"reward.functions.1.function": "rewards.py:c", "reward.functions.1.weight": 0.5},
    ),
    (
        "sft",
        "--assistant_only_loss --max_length 300 --use_peft --lora_target_modules q_proj v_proj --bf16 false",
        {
            "data.train.response": "messages",
            "data.max_prompt_tokens": 150,
            "data.overlong": "right",
            "model.lora.rank": 16,
            "model.lora.alpha": 32,
            "model.lora.targets": ("q_proj", "v_proj"),
            "model.compute_dtype": None,
            "trainer.tasks_per_step": 8,
            "trainer.optimizer.lr": 2e-5,
            "data.incomplete_batch": "keep",
        },
    ),
    (
        "dpo",
        "--beta 0.05 --gradient_accumulation_steps 4 --dataset_name hub/pairs --dataset_config c",
        {
            "algorithm.type": "dpo",
            "algorithm.beta": 0.05,
            "trainer.tasks_per_step": 32,
            "data.train.chosen": "chosen",
            "data.train.split": "train",
            "data.train.subset": "c",
        },
    ),
    (
        "sft",
        "--dataset_name hub/texts --dataset_streaming --max_steps 5",
        {"data.shuffle": False, "trainer.duration.unit": "updates"},
    ),
]


@pytest.mark.parametrize(("program", "options", "expected"), MEANINGS)
def test_meaning(program: TrlProgram, options: str, expected: dict[str, Any]) -> None:
    loaded = read(options, program)
    assert {field: value(loaded, field) for field in expected} == expected


REFUSED: list[tuple[TrlProgram, str, str]] = [
    ("grpo", "--num_generations 3", "must be a multiple"),
    ("grpo", "--num_generations 1", "write 2 or more"),
    ("grpo", "--loss_type vespo", "a loss that Strop does not have"),
    ("grpo", "--loss_type cispo", "write 5.0"),
    ("grpo", "--importance_sampling_level sequence", "write loss_type grpo"),
    ("grpo", "--loss_type bnpo --gradient_accumulation_steps 2", "write dapo"),
    ("grpo", "--top_entropy_quantile 0.2", "top_entropy_quantile=0.2 is not supported"),
    ("grpo", "--num_generation 4", "did you mean 'num_generations'?"),
    ("grpo", "--use_peft", "such as all-linear"),
    ("grpo", "--save_steps 0.1", "a whole number of updates"),
    ("grpo", "--reward_funcs a.b --reward_weights 1 2", "2 numbers for 1 rewards"),
    ("grpo", "--learning_rate fast", "learning_rate must be a number, got 'fast'"),
    ("grpo", "--report_to comet_ml", "report_to has comet_ml"),
    ("sft", "--completion_only_loss false", "trains on responses only"),
    ("sft", "--max_length null", "write a number of tokens"),
    ("dpo", "--label_smoothing 0.1", "which TRL's loss sigmoid ignores"),
    ("rloo", "--num_iterations 2", "the product of its tokens' ratios"),
    ("rloo", "--steps_per_generation 2", "leave num_iterations at 1"),
    ("rloo", "--generation_batch_size 16", "leave num_iterations at 1"),
    ("rloo", "--normalize_advantages", "GRPOConfig with scale_rewards batch"),
    ("rloo", "--mask_truncated_completions", "write a beta of 0"),
    ("rloo", "--loss_type grpo", "no key loss_type"),
    ("grpo", "--dataset_streaming", "TRL's trainers with rollouts stop at a data set"),
    ("sft", "--dataset_streaming", "TRL requires max_steps"),
    ("dpo", "--loss_type ipo", "the sigmoid loss of DPO"),
]


@pytest.mark.parametrize(("program", "options", "expected"), REFUSED)
def test_refused(program: TrlProgram, options: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(options, program)
    assert expected in str(caught.value) and len(caught.value.faults) == 1


def test_a_word_without_an_option() -> None:
    with pytest.raises(ConfigError, match="has no option before it"):
        read_trl_arguments("grpo", ["beta=1"])


@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("grpo", "--beta 0.04 --loss_type grpo --num_iterations 2 --steps_per_generation 4 --max_steps 30"),
        ("rloo", "--beta 0.1 --epsilon_high 0.3 --max_steps 30 --reward_funcs r.a"),
        ("grpo", "--loss_type cispo --epsilon_high 3 --scale_rewards none --reward_funcs r.a r.b"),
        ("sft", "--assistant_only_loss --use_peft --lora_target_modules all-linear --warmup_steps 12"),
        ("dpo", "--beta 0.2 --eval_strategy epoch --lr_scheduler_type polynomial"),
    ],
)
def test_conversion_in_both_directions(program: TrlProgram, options: str) -> None:
    loaded = read(options, program)
    found = convert(Job(loaded), "trl")
    assert found.unsupported == ()
    import yaml

    Path("again.yaml").write_text(yaml.safe_dump(dict(found.values)))
    assert read_any(Path("again.yaml")).loaded.run == loaded.run
    to_run_file = convert(Job(loaded), "strop")
    Path("run.yaml").write_text(yaml.safe_dump(dict(to_run_file.values)))
    assert read_any(Path("run.yaml")).loaded.run == loaded.run


SCRIPT = """
import trl
from datasets import load_dataset
from peft import LoraConfig
from rewards import right as correct

raise SystemExit("the script is not executed")
MODEL = "my/model"
rate = float(1e-5)
trainer = trl.GRPOTrainer(
    model=MODEL,
    reward_funcs=[correct],
    train_dataset=load_dataset("json", data_files="train.jsonl", split="train"),
    peft_config=LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"),
    args=trl.GRPOConfig(output_dir="out", num_generations=4, beta=0.1, learning_rate=rate, max_steps=7),
)
trainer.train()
"""


def test_script_is_read_without_executing_it() -> None:
    Path("train.py").write_text(SCRIPT)
    loaded = read_any(Path("train.py")).loaded
    assert value(loaded, "model.path") == "my/model" and value(loaded, "data.train.path") == "train.jsonl"
    assert value(loaded, "reward.functions.0.function") == "rewards.right"
    assert value(loaded, "algorithm.kl_loss.coef") == 0.1 and value(loaded, "trainer.duration.count") == 7
    assert value(loaded, "model.lora.rank") == 4 and value(loaded, "model.lora.alpha") == 8
    assert str(loaded.sources["algorithm.rollouts_per_task"]).startswith("train.py:15 ")
    assert [note for note in loaded.notes if "learning_rate=rate is not read" in note]


def test_rewards_of_a_file_next_to_the_script() -> None:
    """As with `python train.py`, whose path begins with the script's folder."""
    folder = Path("scripts")
    folder.mkdir()
    (folder / "rewards.py").write_text("def right(completions, **kwargs): ...\n")
    (folder / "train.py").write_text(
        "from rewards import right\nfrom elsewhere import short\ndata = load_dataset('data')\n"
        "GRPOTrainer(model='m', reward_funcs=[right, short], train_dataset=data, args=GRPOConfig('out'))\n"
    )
    functions = read_trl_script(folder / "train.py").run.reward.functions
    assert [part.function for part in functions] == ["scripts/rewards.py:right", "elsewhere.short"]


def test_rewards_of_the_current_folder() -> None:
    """trl/scripts/grpo.py puts the current folder on the path before it imports them."""
    Path("lib").mkdir()
    Path("lib/rewards.py").write_text("def right(completions, **kwargs): ...\n")
    functions = read("--reward_funcs lib.rewards.right other.short").run.reward.functions
    assert [part.function for part in functions] == ["lib/rewards.py:right", "other.short"]


def test_scripts_that_cannot_be_read() -> None:
    for text, said in (
        ("x = 1", "this one has 0"),
        ("GRPOConfig()\nSFTConfig()", "this one has 2 (lines: 1, 2)"),
        ("def (", "this is not a Python script"),
        ("GRPOConfig(beta='x', zzz=1)", "beta must be a number"),
        ("GKDConfig(lmbda=0.5)", "samples and compares at one temperature"),
    ):
        Path("bad.py").write_text(text)
        with pytest.raises(ConfigError) as caught:
            read_trl_script(Path("bad.py"))
        assert said in str(caught.value)


@pytest.mark.parametrize("program", ["grpo", "sft", "dpo"])
@pytest.mark.parametrize("column", ["images", "image"])
def test_the_columns_of_images_are_trls(program: TrlProgram, column: str) -> None:
    """trl/data_utils.py, prepare_multimodal_messages: images come before the text of the first user message."""
    Path("train.jsonl").write_text(json.dumps({"prompt": "?", column: ["a.png"]}))
    loaded = read(program=program)
    run = loaded.run
    assert (run.data.train.images, run.data.train.optional_columns) == (column, (column,))
    assert (run.data.images.marker, run.data.images.unmarked) == (None, "start")
    Path("train.jsonl").write_text(json.dumps({"prompt": "?"}))
    plain = read(program=program).run
    assert plain.data.train.images is None and plain.data.images.marker == "<image>"


def test_images_of_a_data_set_on_the_hub_are_said_to_be_unknown() -> None:
    def notes(model_type: str) -> str:
        Path("m").mkdir(exist_ok=True)
        Path("m/config.json").write_text(json.dumps({"model_type": model_type}))
        return " ".join(read().notes)

    assert "its images are not used" in notes("qwen2_vl")
    assert "images" not in notes("qwen2")


@pytest.mark.parametrize(
    ("config", "written", "coefficient"),
    [
        ({"router_aux_loss_coef": 0.02}, "", 0.02),
        ({"text_config": {"router_aux_loss_coef": 0.01}}, "", 0.01),
        ({"router_aux_loss_coef": 0.02}, "--router_aux_loss_coef 0.5", 0.5),
        ({"router_aux_loss_coef": 0.02}, "--router_aux_loss_coef 0", None),
        ({}, "", None),
    ],
)
def test_the_loss_of_routers_has_the_models_coefficient(
    config: dict[str, Any], written: str, coefficient: float | None
) -> None:
    """trl/trainer/grpo_trainer.py 1.16.0, line 825: unset takes the text configuration's, 0 disables it."""
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(config))
    section = read(written).run.trainer.router_loss
    assert (None if section is None else section.balance_coef) == coefficient
    assert section is None or section.balance_over == "model"
