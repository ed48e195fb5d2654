"""Recipes of tinker-cookbook, unchanged, against `strop serve --tinker`: what each learned, and how long a step took.

    python benchmarks/tinker_recipes.py [MODEL] --data DATA --python COOKBOOK/bin/python [--recipe NAME ...]

MODEL is a folder or a GGUF file of a small chat model; it is served under a name that the cookbook knows. Without it, a
tiny model is made, which first learns the forms of answers from demonstrations, so that each recipe learns within
minutes; the problems of openai/gsm8k are sums then. DATA is a folder with gsm8k and human_like in JSON Lines, from
which the datasets of the recipes are written, since they load them by name. COOKBOOK is an environment with
tinker-cookbook and strop. Results are printed as JSON Lines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strop
from strop.models.tiny import make_model

NAME = "Qwen/Qwen3-4B-Instruct-2507"
"""A name for which the cookbook has a renderer of the form `<|im_start|>role`."""
KEY = "tml-recipes"
_RECIPES = "tinker_cookbook.recipes"
_SL_LOOP = "SL_LOOP"
"""In arguments: the last checkpoint of `sl_loop`, which has to run before."""
_LARGEST = 4
"""Largest number of a sum."""
_BATCH = 32
"""Number of demonstrations of a step."""
_BOXED = " Provide a numerical answer without units, written inside \\boxed{}."
_BOXED_EXAMPLE = [
    {"role": "user", "content": "How many r's are in strawberry?" + _BOXED},
    {
        "role": "assistant",
        "content": "Let's spell the word out and number all the letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r 9) r "
        "10) y. We have r's at positions 3, 8, and 9. \\boxed{3}",
    },
]
"""Beginning of a conversation of `rl_loop` and `rl_basic`."""
_PLAIN_EXAMPLE = [{"role": "user", "content": "What is 4 + 5?"}, {"role": "assistant", "content": "9"}]
"""Beginning of a conversation of `math_rl`."""
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\n' }}"
)
"""The cookbook's renderer `qwen3_instruct`."""


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
        "rl_loop", ("batch_size=8", "group_size=8", "max_tokens=48", "learning_rate=5e-4"), "reward/total"
    ),
    "rl_basic": Recipe(
        "rl_basic",
        (
            f"dataset_builder={_RECIPES}.math_rl.math_env:Gsm8kDatasetBuilder",
            *(f"dataset_builder.{each}" for each in (*_RENDERED, "batch_size=8", "group_size=8")),
            *("max_tokens=48", "learning_rate=5e-4", "eval_every=0", "save_every=0"),
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
        ("env=arithmetic", "max_tokens=24", "learning_rate=2e-4", *_RL),
        "env/all/reward/total",
    ),
    "dpo": Recipe(
        "preference.dpo.train",
        ("dataset=hhh", "batch_size=8", "max_length=256", "learning_rate=5e-4"),
        "dpo_loss",
    ),
    "distillation": Recipe(
        "distillation.on_policy_distillation",
        (
            *(f"teacher_model={NAME}", "groups_per_batch=4", "group_size=2", "max_tokens=32", "lora_rank=32"),
            *("learning_rate=5e-4", "eval_every=0", "save_every=0"),
            *(f"teacher_checkpoint={_SL_LOOP}",),
        ),
        "teacher_kl",
    ),
}


def main() -> None:
    """Run the recipes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--python", type=Path, required=True, help="interpreter with tinker-cookbook and strop"
    )
    parser.add_argument("--recipe", nargs="*", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument(
        "--demonstrations", type=int, default=3200, help="number of demonstrations for the tiny model"
    )
    parser.add_argument("--port", type=int, default=8764)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tinker-recipes-") as name:
        folder = Path(name)
        write_datasets(folder, given.data, tiny=given.model is None)
        if given.model is None:
            make_tiny(folder / NAME, given.data, given.demonstrations)
        else:
            subprocess.run(
                [str(given.python), "-c", _CONVERT, str(given.model.resolve()), str(folder / NAME)],
                check=True,
            )
        with served(given.python, folder, given.port) as environment:
            for recipe in given.recipe:
                print(json.dumps(run(recipe, given.python, folder, environment, given.steps)), flush=True)


def run(name: str, python: Path, folder: Path, environment: Mapping[str, str], steps: int) -> dict[str, Any]:
    """Run one recipe; returns the metric of its first and last steps, and the median time of a step."""
    recipe, log = RECIPES[name], folder / f"log-{name}"
    command = [str(python), "-m", f"{_RECIPES}.{recipe.program}", f"model_name={NAME}", f"log_path={log}"]
    arguments = [each.replace(_SL_LOOP, _last_sampler(folder / "log-sl_loop")) for each in recipe.arguments]
    done = subprocess.run(
        [*command, *arguments, f"max_steps={steps}"],
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


def _last_sampler(log: Path) -> str:
    """Path of the last sampler weights of a recipe; empty before it has run."""
    file = log / "checkpoints.jsonl"
    rows = _rows(file) if file.exists() else []
    return next((row["sampler_path"] for row in reversed(rows) if row.get("sampler_path")), "")


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


def sums(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Questions and answers."""
    chosen = random.Random(seed)
    for _ in range(count):
        a, b = chosen.randint(1, _LARGEST), chosen.randint(1, _LARGEST)
        yield f"What is {a} + {b}?", str(a + b)


def make_tiny(folder: Path, data: Path, demonstrations: int) -> None:
    """Make a tiny model, and train it on demonstrations of sums in the two forms that the recipes ask for."""
    corpus = [row["question"] for row in _rows(data / "gsm8k" / "train.jsonl")[:2000]]
    texts = [message["content"] for message in [*_BOXED_EXAMPLE, *_PLAIN_EXAMPLE]] * 1000
    make_model(
        folder, corpus + texts, vocab_size=1000, hidden_size=128, layers=4, kv_heads=4, max_tokens=4096
    )
    for file in ("tokenizer.json", "tokenizer_config.json"):  # the tokens of the cookbook's renderer
        text = (
            (folder / file).read_text().replace("<|end|>", "<|im_end|>").replace("<|user|>", "<|im_start|>")
        )
        (folder / file).write_text(text)
    with strop.Policy(folder, chat_template=_TEMPLATE) as policy:
        for step in range(demonstrations // _BATCH):
            experiences = []
            for number, (question, answer) in enumerate(sums(_BATCH, seed=step)):
                before, suffix, form = (
                    (_BOXED_EXAMPLE, _BOXED, "\\boxed{%s}") if number % 2 else (_PLAIN_EXAMPLE, "", "%s")
                )
                prompt = [*before, {"role": "user", "content": question + suffix}]
                experiences.append(policy.encode(prompt, form % answer))
            metrics = policy.forward_backward(strop.TrainingBatch(experiences), loss="sft")
            policy.step(lr=1e-3)
        print(json.dumps({"demonstrations": demonstrations, "loss": round(metrics["loss"], 3)}), flush=True)
        policy.save(folder)


def write_datasets(folder: Path, data: Path, *, tiny: bool) -> None:
    """Write the datasets under the names by which the recipes load them."""
    problems = {split: _rows(data / "gsm8k" / f"{split}.jsonl") for split in ("train", "test")}
    asked = [{"question": q, "answer": f"#### {a}"} for q, a in sums(4000, seed=-1)]
    _write(
        folder / "openai/gsm8k", {"train": asked, "test": asked[:100]} if tiny else problems, config="main"
    )
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
    _write(folder / "Anthropic/hh-rlhf", {"train": pairs * 50, "test": pairs})
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
