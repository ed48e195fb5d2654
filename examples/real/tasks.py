"""Writes the tasks of the other run files here: Countdown, stories for an agent with a calculator, questions of MedMCQA
and GSM8K in a short form, and pairs of responses of which one has a human tone.

    python examples/real/tasks.py --out runs/real countdown
    python examples/real/tasks.py --out runs/real calculator
    python examples/real/tasks.py --out runs/real --data path/to/medmcqa medmcqa
    python examples/real/tasks.py --out runs/real --data path/to/gsm8k gsm8k
    python examples/real/tasks.py --out runs/real --data path/to/human_like human_like

`--data` is a folder with train.jsonl and test.jsonl: of `question` and `answer` for GSM8K; of `problem`, which ends
with the question and its options, and `solution`, a letter, for MedMCQA (a validation.jsonl there counts as training
data). The pairs are in a train.jsonl alone, whose last rows are held out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HELD_OUT_GAMES = 64
LARGEST_NUMBER = 12
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
DEMONSTRATIONS = 128
HELD_OUT_PAIRS = 5
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
EXAMPLE = "<answer>3 + 4</answer>"


def countdown() -> dict[str, list[dict[str, Any]]]:
    """Games of two numbers: every one once, in train or in test."""
    numbers = range(2, LARGEST_NUMBER + 1)
    games = sorted(
        {
            (min(a, b), max(a, b), target)
            for a, b in itertools.product(numbers, numbers)
            for apply in OPERATORS.values()
            if (target := apply(a, b)) > 0
        }
    )
    random.Random(0).shuffle(games)
    rows = [
        {
            "prompt": f"Use the numbers {a} and {b}, each once, and + - * / to make {target}. "
            f"Answer with the expression only, like {EXAMPLE}.",
            "answer": {"numbers": [a, b], "target": target},
        }
        for a, b, target in games
    ]
    return {"train": rows[HELD_OUT_GAMES:], "test": rows[:HELD_OUT_GAMES]}


def calculator() -> dict[str, list[dict[str, Any]]]:
    """Stories to train on, and demonstrations of a call for questions without a story."""
    draw = random.Random(0)

    def numbers() -> tuple[int, int]:
        return draw.randint(11, 99), draw.randint(11, 99)

    def story() -> dict[str, Any]:
        a, b = sorted(numbers(), reverse=True)
        text, answer = draw.choice(
            (
                (f"A box has {a} pens. How many pens are in {b} boxes?", a * b),
                (f"Ben walks {a} meters a minute. How far does he walk in {b} minutes?", a * b),
                (f"Cleo had {a} coins and lost {b}. How many has she now?", a - b),
                (f"Dan read {a} pages on Monday and {b} on Tuesday. How many in all?", a + b),
            )
        )
        return {"prompt": text, "answer": str(answer)}

    def demonstration() -> dict[str, Any]:
        (a, b), symbol = numbers(), draw.choice(list(OPERATORS))
        result = str(OPERATORS[symbol](a, b))
        call = {"name": "calculator", "arguments": {"expression": f"{a} {symbol} {b}"}}
        response = [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": result},
        ]
        return {"prompt": f"What is {a} {symbol} {b}?", "response": response, "tools": [CALCULATOR]}

    stories = _distinct(story, 500)
    demonstrations = [demonstration() for _ in range(DEMONSTRATIONS)]
    return {"train": stories[64:], "test": stories[:64], "demonstrations": demonstrations}


def _distinct(draw: Callable[[], dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Rows of different prompts, so that no test row is trained on."""
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        row = draw()
        rows.setdefault(row["prompt"], row)
    return list(rows.values())


def medmcqa(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Multiple-choice questions, answered by a letter."""

    def row(source: dict[str, Any]) -> dict[str, Any]:
        question = source["problem"].split("\n\n", maxsplit=1)[-1].strip()
        prompt = f"{question}\nAnswer with the letter only, like: Final Answer: A"
        return {"prompt": prompt, "answer": source["solution"]}

    files = {"train": ("train", "validation"), "test": ("test",)}
    return {part: [row(source) for source in _rows(data, names)] for part, names in files.items()}


def gsm8k(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Word problems, answered after `####`."""

    def row(source: dict[str, Any]) -> dict[str, Any]:
        prompt = f"{source['question']}\nThink step by step, shortly, and end with #### and the number."
        return {"prompt": prompt, "answer": source["answer"]}

    return {part: [row(source) for source in _rows(data, (part,))] for part in ("train", "test")}


def human_like(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Pairs of responses, of which the chosen one has a human tone."""
    rows = list(_rows(data, ("train",)))
    return {"train": rows[:-HELD_OUT_PAIRS], "test": rows[-HELD_OUT_PAIRS:]}


def write(name: str, out: Path, data: Path | None) -> None:
    """Write `name`-train.jsonl, `name`-test.jsonl and, for the calculator, `name`-demonstrations.jsonl.

    Raises ValueError if the task needs data of its own.
    """
    if name in ("countdown", "calculator"):
        parts = countdown() if name == "countdown" else calculator()
    elif data is None:
        raise ValueError(f"{name} needs --data, a folder with its train.jsonl and test.jsonl")
    else:
        parts = {"medmcqa": medmcqa, "gsm8k": gsm8k, "human_like": human_like}[name](data)
    out.mkdir(parents=True, exist_ok=True)
    for part, rows in parts.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (out / f"{name}-{part}.jsonl").write_text(text, encoding="utf-8")


def _rows(data: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in names:
        file = data / f"{name}.jsonl"
        if file.is_file():
            yield from map(json.loads, file.read_text(encoding="utf-8").splitlines())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=["countdown", "calculator", "medmcqa", "gsm8k", "human_like"])
    parser.add_argument("--data", type=Path, help="folder of the task's data")
    parser.add_argument("--out", type=Path, default=Path("runs/real"), help="folder of the written files")
    args = parser.parse_args()
    try:
        write(args.task, args.out, args.data)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
