"""Datasets of the tests: the files in `../shared/data` if they exist, else small generated ones of the same form."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"

Row = dict[str, Any]


@cache
def data_folder() -> Path:
    """Return the folder with one subfolder per dataset: gsm8k, countdown, math, medmcqa, human_like, ..."""
    if SHARED.is_dir():
        return SHARED
    folder = Path(tempfile.mkdtemp(prefix="strop-data-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_datasets(folder)
    return folder


def read_rows(name: str, count: int | None = None) -> list[Row]:
    """Read the first rows of a JSONL file of the data folder; all rows by default."""
    with (data_folder() / name).open(encoding="utf-8") as file:
        return [json.loads(line) for line in islice(file, count)]


def write_datasets(folder: Path) -> None:
    """Write a small file of every dataset, in the columns of the real one."""
    _write(folder / "gsm8k" / "train.jsonl", _word_problems(600))
    _write(folder / "gsm8k" / "test.jsonl", _word_problems(520, first=600))
    _write(folder / "countdown" / "train.jsonl", _countdown_games(12))
    _write(folder / "countdown" / "test.jsonl", _countdown_games(4, first=12))
    _write(folder / "math" / "math500.jsonl", _math_problems())
    for number, split in enumerate(("train", "validation", "test")):
        _write(folder / "medmcqa" / f"{split}.jsonl", _multiple_choice(12, first=12 * number))
    _write(folder / "human_like" / "train.jsonl", _preference_pairs(12))
    _write(folder / "sft_with_tools" / "sft_with_tools.jsonl", _tool_conversations(4))
    _write_geometry(folder / "geometry" / "train.parquet")


def _write(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _word_problems(count: int, first: int = 0) -> Iterator[Row]:
    names, things = ("Ada", "Ben", "Chen", "Dora", "Emil"), ("apples", "stamps", "marbles", "books")
    for n in range(first, first + count):
        a, b, name, thing = 900 + 7 * n, 3 + n % 50, names[n % 5], things[n % 4]
        question = f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?"
        yield {
            "question": question,
            "answer": f"{name} has {a}+{b} = <<{a}+{b}={a + b}>>{a + b}.\n#### {a + b:,}",
        }


def _countdown_games(count: int, first: int = 0) -> Iterator[Row]:
    for n in range(first, first + count):
        numbers = [10 + n, 3 + n % 7, 40 - n]
        target = numbers[0] * numbers[1] - numbers[2] if n % 2 else sum(numbers)
        question = (
            "A conversation between User and Assistant. The assistant first thinks and then answers.\n"
            f"User: Using the numbers {numbers}, create an equation that equals {target}. Use each number "
            "once, and return the equation in <answer> </answer> tags.\nAssistant: <think>"
        )
        yield {"question": question, "answer": json.dumps({"numbers": numbers, "target": target})}


def _math_problems() -> Iterator[Row]:
    numbers = (r"\frac{3}{4}", "12", r"2\sqrt{5}", r"\left( 3, \frac{\pi}{2} \right)", "15\\%")
    answers = (*numbers, r"\text{east}", "x^2 + 1")
    for number, answer in enumerate(answers):
        yield {
            "problem": f"Problem {number}.",
            "solution": rf"The value is $\boxed{{{answer}}}.$",
            "answer": answer,
            "subject": "Algebra",
            "level": 1,
            "unique_id": f"test/generated/{number}.json",
        }


def _multiple_choice(count: int, first: int = 0) -> Iterator[Row]:
    for n in range(first, first + count):
        options = "".join(f"{letter}. {n + offset}\n" for offset, letter in enumerate("ABCD"))
        problem = (
            "Think step by step in <think> </think> tags, answer in <answer> </answer> tags, and end with a "
            f"line 'Final Answer: ' and one of 'A', 'B', 'C', 'D'.\n\nWhich number is {n} + {n % 4}?\n"
            f"Options:\n{options}"
        )
        yield {"id": f"generated-{n}", "problem": problem, "solution": "ABCD"[n % 4]}


def _preference_pairs(count: int) -> Iterator[Row]:
    topics = ("music", "running", "tea", "trains", "gardens", "chess")
    for n in range(count):
        topic = topics[n % len(topics)]
        yield {
            "prompt": f"What do you think about {topic}, friend number {n}?",
            "chosen": f"Oh, {topic}! I could talk about {topic} all day \N{GRINNING FACE} Do you like it?",
            "rejected": f"I am an assistant without experience of {topic}. I can provide facts about it.",
        }


def _tool_conversations(count: int) -> Iterator[Row]:
    parameters = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
    tool = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": parameters}}
    for n in range(count):
        calls = [
            {
                "id": f"call_{n}_{m}",
                "type": "function",
                "function": {"name": "add", "arguments": {"a": n, "b": m}},
            }
            for m in (1, 2)
        ]
        messages = [
            {"role": "system", "content": "You are a helpful assistant with a calculator."},
            {"role": "user", "content": f"What are {n} + 1 and {n} + 2?"},
            {"role": "assistant", "content": "Let me compute both.", "tool_calls": calls},
            {"role": "tool", "content": {"result": n + 1}, "tool_call_id": calls[0]["id"]},
            {"role": "tool", "content": {"result": n + 2}, "tool_call_id": calls[1]["id"]},
            {"role": "assistant", "content": f"They are {n + 1} and {n + 2}."},
        ]
        yield {"messages": json.dumps(messages), "tools": json.dumps([tool])}


def _write_geometry(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"images": [_image(shade)], "problem": f"<image>Find x, if 2 x = {2 * shade}.", "answer": str(shade)}
        for shade in range(4)
    ]
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("images", pa.list_(image)), ("problem", pa.string()), ("answer", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def _image(shade: int) -> Row:
    """A gray image of 4 x 4 pixels."""
    file = BytesIO()
    Image.new("L", (4, 4), shade).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}
