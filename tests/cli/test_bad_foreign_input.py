"""Errors of `strop check FILE` for bad input in other tools' files: what is wrong, where, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Cli

REAL = Path(__file__).parents[1] / "dialects" / "real"
FILE = "config.yaml"

Case = tuple[str, str, str, str]
"""A dialect, the text that is replaced in its configuration, the replacement, and a part of the error."""
CASES: list[Case] = [
    # a misspelt key
    (
        "verl",
        "max_prompt_length",
        "max_promt_length",
        "6: verl has no key data.max_promt_length; did you mean ",
    ),
    (
        "verl-sft",
        "max_length",
        "max_lenght",
        "10: verl-sft has no key data.max_lenght; did you mean 'data.max_l",
    ),
    ("trinity", "repeat_times: 8", "repeat_time: 8", "did you mean 'algorithm.repeat_times'?"),
    (
        "trinity",
        "max_actor_ckpt",
        "max_actr_ckpt",
        "trainer_config.trainer.max_actr_ckpt_to_keep; did you mean",
    ),
    (
        "rft_trainer",
        "rollout_n:",
        "rolout_n:",
        "rft_trainer has no input --rolout_n; did you mean 'rollout_n'?",
    ),
    ("verl_trainer", "actor_optim_lr", "actor_optm_lr", "did you mean 'actor_optim_lr'?"),
    ("grpo", "num_generations", "num_generation", "10: grpo has no input --num_generation; did you mean"),
    ("strop", "rank: 64", "rnk: 64", "model.lora.rnk: unknown key; did you mean 'rank'?"),
    # a key of another dialect
    ("verl", "trainer:\n", "buffer: {batch_size: 3}\ntrainer:\n", "no key buffer. It is a key of trinity."),
    (
        "verl-sft",
        "optim:",
        "algorithm: {adv_estimator: grpo}\noptim:",
        "algorithm. It is a key of verl, trinity",
    ),
    (
        "trinity",
        "buffer:\n",
        "data: {train_batch_size: 8}\nbuffer:\n",
        "no key data. It is a key of verl, verl-sft",
    ),
    (
        "rft_trainer",
        "rollout_n:",
        "num_generations:",
        "no input --num_generations. It is a key of trl, trl-rloo, grpo.",
    ),
    ("grpo", "beta:", "rollout_n:", "no input --rollout_n. It is a key of rft_trainer, verl_trainer."),
    (
        "strop",
        "overlong:",
        "train_batch_size:",
        "It is a key of verl, verl-sft, verl-sft-engine. In a run file write trainer.tasks_per_step=",
    ),
    # a value of the wrong type, or outside the enum
    (
        "verl",
        "batch_size: 64",
        "batch_size: sixty",
        "5 (data.train_batch_size): data.train_batch_size must be an integer",
    ),
    (
        "verl",
        "estimator: grpo",
        "estimator: gppo",
        "algorithm.adv_estimator must be gae or grpo or .*, got 'gppo'",
    ),
    (
        "verl-sft",
        "lr_scheduler: wsd",
        "lr_scheduler: wsdd",
        "optim.lr_scheduler must be cosine or wsd, got 'wsdd'",
    ),
    ("verl-eval", "prompt_key: prompt", "prompt_key: [1]", "data.prompt_key must be a string, got"),
    (
        "trinity",
        "algorithm_type: grpo",
        "algorithm_type: gpo",
        "7 (algorithm.algorithm_type): .* or sft or cpt or mix",
    ),
    ("rft_trainer", "rollout_n: 5", "rollout_n: five", "--rollout_n must be an integer, got 'five'"),
    ("verl_trainer", "float16", "float17", "--rollout_dtype must be float16 or bfloat16"),
    ("grpo", "strategy: steps", "strategy: step", "--eval_strategy must be no or steps or epoch, got 'step'"),
    ("strop", "type: adamw", "type: adamww", "`type` must be one of adamw, .*, got 'adamww'"),
    # keys that contradict one another
    (
        "trinity",
        "  total_steps: 200",
        "  trainer_config_path: x.yaml",
        "both trainer.trainer_config and trainer.tr",
    ),
    (
        "verl_trainer",
        "rollout_name: vllm",
        "rollout_name: sglang",
        "--ENGINE=vllm and --rollout_name=sglang set the same option",
    ),
    # interpolation
    (
        "verl",
        "{algorithm.adv_estimator}",
        "{algorithm.adv}",
        "59: trainer.experiment_name: interpolation key '",
    ),
    ("verl-sft", "{model.lora_rank}", "{trainer.experiment_name}", "recursive interpolation"),
    (
        "trinity",
        "{oc.env:STROP_TEST_DIR,./checkpoints}",
        "{oc.env:STROP_TEST_NONE}",
        "variable 'STROP_TEST_NONE'",
    ),
    ("strop", ",buffer}", "}", "the environment variable 'STROP_TEST_DB' is not set"),
    # YAML
    ("verl", "  shuffle: true", "  shuffle: [true", ":11:18: this is not valid YAML: "),
    ("trinity", "cluster: {", "cluster: {{", "this is not valid YAML: "),
    ("grpo", "beta: 0.01", "beta: 0.01\nbeta: 0.02", "duplicate key beta"),
    # a batch that does not divide
    (
        "verl",
        "batch_size: 64",
        "batch_size: 60",
        "(60) is not a multiple of .*; the nearest divisors are 12 and",
    ),
    (
        "rft_trainer",
        "mini_batch_size: 16",
        "mini_batch_size: 24",
        "(24); the nearest divisors are 16 and 32",
    ),
    (
        "grpo",
        "num_generations: 4",
        "num_generations: 5",
        "not a multiple of num_generations (5); the nearest multiples are",
    ),
    (
        "strop",
        "update: 16",
        "update: 24",
        "28: trainer: tasks_per_step (64) is .*; the nearest multiples are 48 and 72",
    ),
]


@pytest.mark.parametrize(("dialect", "old", "new", "said"), CASES, ids=lambda text: text[:24])
def test_one_paragraph_with_file_and_line(cli: Cli, dialect: str, old: str, new: str, said: str) -> None:
    text = (REAL / f"{dialect}.yaml").read_text(encoding="utf-8")
    assert old in text
    Path(FILE).write_text(text.replace(old, new, 1), encoding="utf-8")
    Path("ds.json").write_text("{}")
    words = ("verl", "eval", "--config", FILE) if dialect == "verl-eval" else ("check", FILE, "--here")
    result = cli(*words)
    assert result.exit_code == 2 and result.stdout == ""
    place, rest = said.partition(" ")[::2] if said[0].isdigit() else ("", said)
    told = result.stderr
    assert told.startswith(f"strop: {FILE}:") and "\n\n" not in told and "Traceback" not in told
    assert all(part in told for part in rest.split(".*")), told
    assert not place or f"{FILE}:{place} " in told, told
