"""Recipes of tinker-cookbook, unchanged, against `strop serve --tinker`: what each learned, and how long a step took.

    python benchmarks/tinker_recipes.py MODEL --data DATA --python COOKBOOK/bin/python [--recipe NAME ...] [--steps N]

MODEL is a folder or a GGUF file of a small chat model; it is served under a name that the cookbook knows. DATA is a
folder with gsm8k and human_like in JSON Lines, from which the datasets of the recipes are written, since they load them
by name. COOKBOOK is an environment with tinker-cookbook and strop. Results are printed as JSON Lines.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = "Qwen/Qwen3-4B-Instruct-2507"
"""A name for which the cookbook has a renderer of the form `<|im_start|>role`."""
KEY = "tml-recipes"
_RECIPES = "tinker_cookbook.recipes"


@dataclass(frozen=True)
class Recipe:
    """A program of the cookbook, with arguments that make it small, and the metric that shows what it learned."""

    program: str
    arguments: Sequence[str]
    metric: str


_RENDERED = (f"model_name_for_tokenizer={NAME}", "renderer_name=qwen3_instruct")
_RL = ("group_size=8", "groups_per_batch=8", "eval_every=0", "save_every=0")
RECIPES: Mapping[str, Recipe] = {
    "sl_loop": Recipe("sl_loop", ("batch_size=8", "max_length=256", "learning_rate=5e-4"), "train_mean_nll"),
    "sl_basic": Recipe(
        "sl_basic",
        (
            f"dataset_builder={_RECIPES}.chat_sl.chat_datasets:NoRobotsBuilder",
            *(
                f"dataset_builder.common_config.{each}"
                for each in (*_RENDERED, "batch_size=8", "max_length=256")
            ),
            *("learning_rate=5e-4", "eval_every=0"),
        ),
        "train_mean_nll",
    ),
    "rl_loop": Recipe(
        "rl_loop", ("batch_size=4", "group_size=4", "max_tokens=48", "learning_rate=2e-4"), "reward/total"
    ),
    "rl_basic": Recipe(
        "rl_basic",
        (
            f"dataset_builder={_RECIPES}.math_rl.math_env:Gsm8kDatasetBuilder",
            *(f"dataset_builder.{each}" for each in (*_RENDERED, "batch_size=4", "group_size=4")),
            *("max_tokens=48", "learning_rate=2e-4", "eval_every=0", "save_every=0"),
        ),
        "env/all/reward/total",
    ),
    "rl_numerics_check": Recipe(
        "rl_numerics_check.train",
        ("group_size=4", "groups_per_batch=2", "max_tokens=32", "save_every=0"),
        "optim/kl_sample_train_v2",
    ),
    "math_rl": Recipe(
        "math_rl.train",
        ("env=arithmetic", "max_tokens=6", "learning_rate=5e-4", *_RL),
        "env/all/reward/total",
    ),
    "dpo": Recipe(
        "preference.dpo.train",
        ("dataset=hhh", "batch_size=8", "max_length=256", "learning_rate=1e-4"),
        "dpo_loss",
    ),
    "distillation": Recipe(
        "distillation.on_policy_distillation",
        (
            *(f"teacher_model={NAME}", "groups_per_batch=4", "group_size=2", "max_tokens=32", "lora_rank=32"),
            *("learning_rate=1e-4", "eval_every=0", "save_every=0"),
        ),
        "teacher_kl",
    ),
}


def main() -> None:
    """Run the recipes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--python", type=Path, required=True, help="interpreter with tinker-cookbook and strop"
    )
    parser.add_argument("--recipe", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--port", type=int, default=8764)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tinker-recipes-") as name:
        folder = Path(name)
        write_datasets(folder, given.data)
        subprocess.run(
            [str(given.python), "-c", _CONVERT, str(given.model.resolve()), str(folder / NAME)], check=True
        )
        with served(given.python, folder, given.port) as environment:
            for recipe in given.recipe:
                print(json.dumps(run(recipe, given.python, folder, environment, given.steps)), flush=True)


def run(name: str, python: Path, folder: Path, environment: Mapping[str, str], steps: int) -> dict[str, Any]:
    """Run one recipe; returns the metric of its first and last steps, and the median time of a step."""
    recipe, log = RECIPES[name], folder / f"log-{name}"
    command = [str(python), "-m", f"{_RECIPES}.{recipe.program}", f"model_name={NAME}", f"log_path={log}"]
    done = subprocess.run(
        [*command, *recipe.arguments, f"max_steps={steps}"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    file = next(log.rglob("metrics.jsonl"), None)
    if done.returncode or file is None:
        return {"recipe": name, "exit": done.returncode, "error": done.stderr.strip().splitlines()[-5:]}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    values = [row[recipe.metric] for row in rows if recipe.metric in row]
    seconds = [row["time/total"] for row in rows if "time/total" in row]
    return {
        "recipe": name,
        "steps": len(values),
        "metric": recipe.metric,
        "values": [round(value, 4) for value in values],
        "seconds": round(statistics.median(seconds), 1) if seconds else None,
    }


@contextmanager
def served(python: Path, folder: Path, port: int) -> Iterator[dict[str, str]]:
    """Serve the model; yields the environment of clients."""
    environment = {
        **os.environ,
        "STROP_SERVE_TOKEN": KEY,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
    }
    command = [str(python), "-m", "strop", "serve", NAME, "--name", NAME, "--dtype", "bfloat16"]
    with subprocess.Popen(
        [*command, "--tinker", "runs", "--port", str(port)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
        try:
            yield {**environment, "TINKER_BASE_URL": f"http://127.0.0.1:{port}", "TINKER_API_KEY": KEY}
        finally:
            process.send_signal(signal.SIGTERM)


_CONVERT = """
import sys
from pathlib import Path
from strop.config.schema.model import ModelConfig
from strop.models.loading import load_model, load_tokenizer
section, folder = ModelConfig(path=sys.argv[1], dtype="bfloat16"), Path(sys.argv[2])
folder.mkdir(parents=True)
load_model(section, device="cpu", trainable=False).save_pretrained(folder)
load_tokenizer(section).save_pretrained(folder)
"""


def write_datasets(folder: Path, data: Path) -> None:
    """Write the datasets under the names by which the recipes load them."""
    problems = {split: _rows(data / "gsm8k" / f"{split}.jsonl") for split in ("train", "test")}
    _write(folder / "openai/gsm8k", problems, config="main")
    chats = {
        split: [
            {
                "messages": [
                    {"role": "user", "content": row["question"]},
                    {"role": "assistant", "content": row["answer"].rpartition("####")[2].strip()},
                ]
            }
            for row in rows
        ]
        for split, rows in problems.items()
    }
    _write(folder / "HuggingFaceH4/no_robots", chats)
    pairs = [
        {
            kind: f"\n\nHuman: {row['prompt']}\n\nAssistant: {row[kind][:200]}"
            for kind in ("chosen", "rejected")
        }
        for row in _rows(next((data / "human_like").glob("*.jsonl")))
    ]
    _write(folder / "Anthropic/hh-rlhf", {"train": pairs, "test": pairs})
    _write(
        folder / "Salesforce/wikitext",
        {"train": [{"text": row["answer"]} for row in problems["train"]]},
        config="wikitext-103-raw-v1",
    )
    questions = [{"question": row["question"]} for row in problems["train"]]
    _write(folder / "zwhe99/DeepMath-103K", {"train": questions})


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def _write(folder: Path, splits: Mapping[str, Sequence[Mapping[str, Any]]], config: str = "default") -> None:
    folder.mkdir(parents=True)
    files = "".join(f"  - {{split: {split}, path: {split}.jsonl}}\n" for split in splits)
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{files}---\n")
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
