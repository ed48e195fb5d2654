"""Rewards for the tests' runs, named by file."""

import os
import time
from pathlib import Path
from typing import Any


def digit_share(completion: str, answer: Any) -> float:
    """The share of digits in the answer: something that a random model can learn."""
    return sum(c.isdigit() for c in completion) / max(1, len(completion))


def with_parts(completion: str, answer: Any) -> dict[str, float]:
    """A score and a named part, as verl's functions return them."""
    return {"score": digit_share(completion, answer), "even": float(len(completion) % 2 == 0)}


def length(completion: str) -> float:
    return float(len(completion))


def raises(completion: str, answer: Any) -> float:
    raise KeyError("no such thing")


def hangs(completion: str, answer: Any) -> float:
    while True:
        pass


def hangs_on_loops(completion: str) -> float:
    if "loop" in completion:
        time.sleep(3600)
    return 1.0


def not_a_number(completion: str, answer: Any) -> float:
    return float("nan")


def a_string(completion: str, answer: Any) -> str:
    return "0.5"


def breaks_on_some(completion: str, answer: Any) -> float:
    if answer == "9":
        raise ValueError("nines are hard")
    return digit_share(completion, answer)


def constant(completion: str, answer: Any) -> float:
    return 1.0


def signals_the_run(completion: str, answer: Any) -> float:
    """Sends a signal once; the file `STROP_TEST_SIGNAL` has the run's process and the signal's number."""
    file = Path(os.environ["STROP_TEST_SIGNAL"])
    if file.exists():
        process, number = map(int, file.read_text().split())
        file.unlink()
        os.kill(process, number)
    return digit_share(completion, answer)


def slowly(completion: str, answer: Any) -> float:
    time.sleep(0.03)
    return digit_share(completion, answer)
