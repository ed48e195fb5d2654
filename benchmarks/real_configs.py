"""Runs real configurations for two steps: verl's launch lines and Trinity-RFT's files, with a small model and data.

    python benchmarks/real_configs.py FOLDER [--all] [--only WORD]

FOLDER has `*.jsonl` files of configurations: verl command lines (`command`, `args`) and Trinity files (`yaml`). Paths
of models and data, sizes (prompts in a batch, response tokens, responses of a prompt) and the duration are replaced;
a task pipeline that asks people is left out; every other key stays as its owner wrote it. Prints one row per
configuration; exits with 1 if a run fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from strop.models.tiny import make_model

STEPS = 2
TIMEOUT_SECONDS = 900
SELECTED = (
    "examples/ppo_trainer/run_deepseek7b_llm.sh",
    "examples/ppo_trainer/run_moonlight16b_a3b_gsm8k_megatron.sh",
    "examples/grpo_trainer/run_qwen2_5-3b_gsm8k_grpo_lora.sh",
    "examples/grpo_trainer/run_qwen3_8b_fsdp.sh",
    "examples/remax_trainer/run_qwen2.5-7b_seq_balance.sh",
    "examples/reinforce_plus_plus_trainer/run_qwen2-7b_math_rf_baseline.sh",
    "examples/gpg_trainer/run_qwen3_8b_megatron.sh",
    "examples/sft/gsm8k/run_qwen_05_sp2.sh",
    "examples/sft/multiturn/run_qwen2_5_0_5b_fsdp.sh",
    "recipe/dapo/test_dapo_7b_math.sh",
    "recipe/dapo/run_dapo_qwen2.5_32b_rollout_corr.sh",
    "recipe/sppo/run_qwen2.5-7b_rm.sh",
    "examples/dapo_math/dapo.yaml",
    "examples/sppo_gsm8k/gsm8k.yaml",
    "examples/opmd_gsm8k/opmd_gsm8k.yaml",
    "examples/ppo_countdown/countdown.yaml",
    "examples/rec_gsm8k/gsm8k.yaml",
    "examples/topr_gsm8k/gsm8k.yaml",
    "examples/dpo_human_in_the_loop/dpo.yaml",
)
"""Configurations that run without `--all`: beginnings of their ids."""


@dataclass(frozen=True)
class Stand:
    """Folders and files that take the place of what the configurations name."""

    model: Path
    reward_model: Path
    tasks: Path
    jsonl: Path


def prepare(folder: Path) -> Stand:
    """Write a small model, a reward model and tasks in the columns that the configurations read."""
    questions = [f"What is {a} + {b}?" for a in range(8) for b in range(8)]
    rows = [_row(question, index) for index, question in enumerate(questions)]
    tasks = folder / "tasks.parquet"
    pq.write_table(pa.Table.from_pylist(rows), tasks)
    jsonl = folder / "taskset"
    jsonl.mkdir()
    (jsonl / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (jsonl / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:4]), encoding="utf-8")
    model = make_model(folder / "model", questions, max_tokens=4096)
    return Stand(model, _reward_model(folder, questions), tasks, jsonl)


def _row(question: str, index: int) -> dict[str, Any]:
    a, b = (int(word.strip("?")) for word in question.split() if word.strip("?").isdigit())
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": f"#### {a + b}"}]
    return {
        "data_source": "openai/gsm8k",
        "prompt": messages[:1],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"index": index, "question": question, "answer": f"#### {a + b}"},
        "messages": messages,
        "question": question,
        "answer": f"#### {a + b}",
        "ground_truth": str(a + b),
        "game": json.dumps({"target": a + b, "numbers": [a, b]}),
        "chosen": messages,
        "rejected": [messages[0], {"role": "assistant", "content": "#### 100"}],
    }


def _reward_model(folder: Path, corpus: list[str]) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    path = make_model(folder / "reward-model", corpus, max_tokens=4096)
    config = AutoConfig.from_pretrained(path, num_labels=1)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).save_pretrained(path)
    return path


def verl_command(row: dict[str, Any], stand: Stand, output: Path) -> list[str]:
    """Return the command line of one verl configuration; later overrides replace its own."""
    written = dict(argument.lstrip("+").split("=", 1) for argument in row["args"] if "=" in argument)
    shared = {
        "data.train_files": stand.tasks,
        "data.val_files": stand.tasks,
        "data.train_batch_size": 4,
        "trainer.total_training_steps": STEPS,
        "trainer.default_local_dir": output,
        "trainer.default_hdfs_dir": "null",
        "trainer.logger": "[console]",
    }
    replaced = _sft_values(written, stand) if row["command"] == "sft" else _ppo_values(written, stand)
    overrides = [f"++{key}={value}" for key, value in (shared | replaced).items()]
    return ["verl", row["command"], "--here", *row["args"], *overrides]


def _ppo_values(written: dict[str, str], stand: Stand) -> dict[str, Any]:
    values: dict[str, Any] = {
        "data.max_prompt_length": 128,
        "data.max_response_length": 16,
        "actor_rollout_ref.model.path": stand.model,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
        "actor_rollout_ref.rollout.n": min(int(written.get("actor_rollout_ref.rollout.n", 1)), 4),
        "actor_rollout_ref.rollout.val_kwargs.n": 1,
    }
    smaller = {
        "data.gen_batch_size": 4,
        "critic.model.path": stand.model,
        "critic.model.tokenizer_path": stand.model,
        "reward_model.model.path": stand.reward_model,
        "reward_model.model.input_tokenizer": stand.model,
        "reward_model.reward_kwargs.overlong_buffer_cfg.len": 4,
        "reward_model.reward_kwargs.max_resp_len": 16,
        "reward_model.overlong_buffer.len": 4,
        "reward.reward_kwargs.overlong_buffer_cfg.len": 4,
        "reward.reward_kwargs.max_resp_len": 16,
        "critic.ppo_mini_batch_size": 4,
        "rollout.total_rollout_steps": 4 * STEPS,
        "async_training.require_batches": 1,
    }
    if "rollout.total_rollout_steps" in written:
        del smaller["data.gen_batch_size"]
    return values | {key: value for key, value in smaller.items() if key in written}


def _sft_values(written: dict[str, str], stand: Stand) -> dict[str, Any]:
    path = "model.path" if "model.path" in written else "model.partial_pretrain"
    smaller = {"data.max_length": 256, "data.max_token_len_per_gpu": 512, "model.tokenizer_path": stand.model}
    return {path: stand.model} | {key: value for key, value in smaller.items() if key in written}


def trinity_command(row: dict[str, Any], stand: Stand, output: Path) -> list[str]:
    """Write one Trinity file with small sizes and return its command line."""
    values = yaml.safe_load(row["yaml"])
    values["checkpoint_root_dir"] = str(output)
    values["model"] |= {"model_path": str(stand.model), "max_response_tokens": 16, "max_prompt_tokens": 512}
    for key in ("max_model_len", "critic_model_path"):
        values["model"].pop(key, None)
    buffer = values["buffer"] | {"batch_size": 4, "total_steps": STEPS}
    buffer.pop("train_batch_size", None)
    values["buffer"] = buffer
    values["algorithm"]["repeat_times"] = min(values["algorithm"].get("repeat_times", 1), 4)
    values.get("explorer", {}).pop("auxiliary_models", None)
    if "human_preference_annotation_mapper" in row["yaml"]:
        del values["data_processor"]
    values.get("trainer", {}).pop("total_steps", None)
    for source in _mappings(values, "cache_length"):
        source["cache_length"] = 4
    for source in _mappings(buffer, "storage_type"):
        if source["storage_type"] == "file":
            _replace_file(source, stand, "game" if "countdown" in row["yaml"] else "answer")
    file = output.parent / f"{output.name}.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return ["trinity", str(file), "--here"]


def _replace_file(source: dict[str, Any], stand: Stand, answer: str) -> None:
    """Point a storage of a Trinity file at the small tasks, under the column names that it asks for.

    `answer` is the column of the small tasks with the answers.
    """
    split = "test" if source.get("split") == "test" else "train"
    columns = source.get("format", {})
    renamed = {
        columns.get("prompt_key", "question"): "question",
        columns.get("response_key", "answer"): answer,
        columns.get("messages_key", "messages"): "messages",
        columns.get("chosen_key", "chosen"): "chosen",
        columns.get("rejected_key", "rejected"): "rejected",
    }
    folder = stand.jsonl.parent / f"taskset-{len(list(stand.jsonl.parent.glob('taskset-*')))}"
    folder.mkdir()
    with (stand.jsonl / f"{split}.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    text = "".join(json.dumps(row | {new: row[old] for new, old in renamed.items()}) + "\n" for row in rows)
    (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")
    source |= {"path": str(folder), "split": split}
    source.pop("subset_name", None)
    source.pop("total_epochs", None)


def _mappings(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """Yield each mapping below a value that has this key."""
    if isinstance(value, dict):
        if key in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from _mappings(entry, key)


def run(name: str, command: list[str], folder: Path) -> tuple[bool, str]:
    """Run one configuration; returns whether it did its steps, and its row of the table."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "strop", *command],
            cwd=folder,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"| {name} | no end after {TIMEOUT_SECONDS} s | |"
    steps = _steps(folder)
    passed = done.returncode == 0 and steps >= STEPS
    if not passed:
        print(f"{name}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}", file=sys.stderr)
    status = f"{steps} steps" if passed else f"exit {done.returncode} after {steps} steps"
    return passed, f"| {name} | {status} | {time.monotonic() - started:.0f} |"


def _steps(folder: Path) -> int:
    """The last step that the metrics of a run below this folder have."""
    files = folder.rglob("metrics.jsonl")
    return max(
        (json.loads(line)["step"] for file in files for line in file.open(encoding="utf-8")), default=0
    )


def main() -> None:
    """Run the configurations and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="all configurations, not a selection")
    parser.add_argument("--only", default="", help="ids that contain this")
    arguments = parser.parse_args()
    failed = 0
    print("| configuration | result | seconds |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary:
        stand = prepare(Path(temporary))
        for number, (corpus, row) in enumerate(_records(arguments.folder)):
            if arguments.only not in row["id"] or not (arguments.all or row["id"].startswith(SELECTED)):
                continue
            folder = Path(temporary) / f"{number:03d}"
            folder.mkdir()
            make = trinity_command if "yaml" in row else verl_command
            passed, line = run(f"{corpus}: {row['id']}", make(row, stand, folder / "output"), folder)
            failed += not passed
            print(line, flush=True)
    if failed:
        sys.exit(f"{failed} configurations did not run; see above.")


def _records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(folder.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield file.stem, json.loads(line)


if __name__ == "__main__":
    main()
