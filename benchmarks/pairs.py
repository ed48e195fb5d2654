"""Tokens per CPU-second and peak memory of DPO and of a reward model on pairs, by Strop and by TRL.

    make .venv/bench && .venv/bin/python benchmarks/pairs.py

Both train the random 10.2M-parameter Qwen2 of `grpo_step.py` on the same pairs, whose two responses follow one
prompt, with 8 pairs per update and one thread; TRL with padding, and DPO also without. The reference's log-probs are
computed before the first update, and not measured. Each implementation runs in a separate process. The measurement is
over `--steps` updates after one warm-up update, and includes the CPU time of child processes. Tokens are those of
both sequences of a pair, so that a prompt counts twice, without padding; their number is the mean of the pairs.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from grpo_step import cpu_seconds, peak_mb
from sft import Measured, arguments, measure, print_table, texts, train_with_strop, trl_options

PAIRS_PER_UPDATE = 8
PEERS = {
    f"{algorithm}, {name}": (tool, algorithm, dtype, mode)
    for algorithm, modes in (("DPO", ("padded", "padding-free")), ("reward model", ("padded",)))
    for name, tool, dtype, mode in (
        ("Strop float32", "strop", "float32", ""),
        ("Strop bfloat16", "strop", "bfloat16", ""),
        *(
            (f"TRL {dtype}, {mode}", "trl", dtype, mode)
            for dtype in ("bfloat16", "float32")
            for mode in modes
        ),
    )
}


def pairs(count: int, prompt_words: int) -> list[dict[str, str]]:
    """Generate prompts of `prompt_words` to twice as many words, and two responses of 5 to 250 words each."""
    rows, draw = texts(2 * count), random.Random(1)
    words = " ".join(row["completion"] for row in rows).split()
    return [
        {
            "prompt": " ".join(draw.choices(words, k=draw.randint(prompt_words, 2 * prompt_words))),
            "chosen": one["completion"],
            "rejected": other["completion"],
        }
        for one, other in zip(rows[::2], rows[1::2], strict=True)
    ]


def run_strop(folder: Path, algorithm: str, dtype: str, _mode: str, steps: int) -> Measured:
    """Measure Strop, with a callback that records the CPU time after each step."""
    data = {"chosen": "chosen", "rejected": "rejected"}
    of_strop = "dpo" if algorithm == "DPO" else "reward_model"
    rows, seconds = train_with_strop(folder, dtype, of_strop, data, PAIRS_PER_UPDATE, steps)
    return Measured(tokens(folder, steps), seconds, peak_mb(), rows[0]["loss"])


def run_trl(folder: Path, algorithm: str, dtype: str, mode: str, steps: int) -> Measured:
    """Measure TRL's DPOTrainer or RewardTrainer, with a callback that records CPU time after each update."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, TrainerCallback
    from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

    step_ends: list[float] = []

    class TrlClock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            step_ends.append(cpu_seconds())

    options = trl_options(folder, dtype, mode, PAIRS_PER_UPDATE, steps)
    rows = load_dataset("json", data_files=str(folder / "rows.jsonl"), split="train").map(
        lambda row: {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            **{name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")},
        }
    )
    common = {"train_dataset": rows, "callbacks": [TrlClock()]}
    if algorithm == "DPO":
        trainer = DPOTrainer(
            AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32"),
            args=DPOConfig(padding_free=mode == "padding-free", precompute_ref_log_probs=True, **options),
            **common,
        )
    else:
        model = AutoModelForSequenceClassification.from_pretrained(
            folder / "model", dtype="float32", num_labels=1
        )
        trainer = RewardTrainer(model, args=RewardConfig(**options), **common)
    trainer.train()
    loss = next(row["loss"] for row in trainer.state.log_history if "loss" in row)
    return Measured(tokens(folder, steps), step_ends[-1] - step_ends[0], peak_mb(), float(loss))


def prepare(folder: Path, steps: int, prompt_words: int) -> None:
    """Write the model and the pairs that all implementations share."""
    from strop.models.tiny import make_model

    rows = pairs(PAIRS_PER_UPDATE * (steps + 2), prompt_words)
    corpus = [text for row in rows for text in row.values()]
    make_model(folder / "model", corpus, vocab_size=2048, hidden_size=384, layers=6, heads=6, kv_heads=2)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def tokens(folder: Path, steps: int) -> float:
    """Tokens of `steps` updates, by the mean of the pairs."""
    from strop.config.schema.model import ModelConfig
    from strop.models.loading import load_tokenizer

    tokenizer = load_tokenizer(ModelConfig(path=str(folder / "model")))
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    sizes = [
        len(tokenizer(row["prompt"] + row[name])["input_ids"])
        for row in rows
        for name in ("chosen", "rejected")
    ]
    return steps * PAIRS_PER_UPDATE * sum(sizes) / len(rows)


def main() -> None:
    """Run the command line."""
    summary = "Tokens per CPU-second of DPO and of a reward model on pairs, by Strop and by TRL."
    parser = arguments(summary, PEERS, 4)
    parser.add_argument("--prompt-words", type=int, default=60, help="minimum length of a prompt, in words")
    parser.add_argument("--only", default="", help="part of the names of the implementations to run")
    args = parser.parse_args()
    if args.peer is None:
        with tempfile.TemporaryDirectory() as name:
            prepare(Path(name), args.steps, args.prompt_words)
            print_table(measure(__file__, [peer for peer in PEERS if args.only in peer], name, args.steps))
        return
    tool, algorithm, dtype, mode = PEERS[args.peer]
    run = run_strop if tool == "strop" else run_trl
    print(json.dumps(run(args.folder, algorithm, dtype, mode, args.steps).__dict__))


if __name__ == "__main__":
    main()
