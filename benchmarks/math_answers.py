"""Equal and different answers as scorers judge them: `python benchmarks/math_answers.py --verl FOLDER`.

The pairs are the hand-judged ones of `tests/rewards/math_answers.py`, and answers made from the task answers of
MATH-500 and GSM8K with a seed: rewritings that are equal by construction, and changes that are different by
construction. The scorers are Strop's `math`, math-verify with its own defaults, and verl's own files (FOLDER is a
checkout of verl; its `prime_math` needs pylatexenc). A scorer that raises or takes longer than 10 seconds rejects the
answer. Prints a Markdown table, and with `--faults NAME` the pairs that a scorer misjudges.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import logging
import random
import re
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from strop.rewards.builtin.math import math_reward  # noqa: E402
from tests.datasets import read_rows  # noqa: E402
from tests.rewards.math_answers import RIGHT, WRONG  # noqa: E402

Pair = tuple[str, str]
Scorer = Callable[[str, str], bool]
_SECONDS = 10


def pairs(seed: int) -> dict[str, tuple[list[Pair], list[Pair]]]:
    """Equal and different pairs of each set."""
    draw = random.Random(seed)
    math500 = [row["answer"] for row in read_rows("math/math500.jsonl")]
    gsm8k = [row["answer"].rsplit("#### ", 1)[1] for row in read_rows("gsm8k/test.jsonl", 500)]
    judged = [[pair for part in table.values() for pair in part] for table in (RIGHT, WRONG)]
    sets = {"hand-judged": (judged[0], judged[1])}
    for name, golds in (("MATH-500", math500), ("GSM8K", gsm8k)):
        made: tuple[list[Pair], list[Pair]] = ([], [])
        for gold in golds:
            for index, variants in enumerate((rewritings, changes)):
                found = [each for each in variants(gold, draw) if each != gold]
                made[index].extend((gold, each) for each in draw.sample(found, min(2, len(found))))
        sets[name] = made
    return sets


def _integer(gold: str) -> int | None:
    plain = gold.replace("\\!", "").replace(", ", ",")
    return int(plain.replace(",", "")) if re.fullmatch(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)", plain) else None


def _fraction(gold: str) -> Fraction | None:
    found = re.fullmatch(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}", gold)
    return None if found is None else Fraction(int(found[1] + found[2]), int(found[3]))


def _items(gold: str) -> list[str] | None:
    found = re.fullmatch(r"(?:\\left)?\( *([^()\\]*) *(?:\\right)?\)", gold)
    return None if found is None or "infty" in gold else [each.strip() for each in found[1].split(",")]


def _is_expression(gold: str) -> bool:
    return not re.search(r"text|mbox|[,=_$%]|circ|begin|cup|\\in|\[|\(.*\]|pm", gold)


def rewritings(gold: str, draw: random.Random) -> Iterator[str]:
    """Answers that are equal by construction."""
    number, fraction, items = _integer(gold), _fraction(gold), _items(gold)
    factor, more = draw.randint(2, 9), draw.randint(2, 50)
    if number is not None:
        yield from (f"{number}.0", f"x = {number}", f"**{number}**", rf"\text{{{number}}}", f"{number}.")
        yield rf"\frac{{{number * factor}}}{{{factor}}}"
        yield f"{number - more} + {more}"
        yield rf"{number}\text{{ apples}}"
        if abs(number) >= 1000:
            yield from (f"{number:,}", f"{number:,}".replace(",", "{,}"), f"{number:,}".replace(",", r"\,"))
        if number % 10 == 0 and number:
            yield rf"{number / 10 ** (len(str(abs(number))) - 1)} \times 10^{{{len(str(abs(number))) - 1}}}"
        yield f"{number * 100}\\%"
        yield f"{number}e0"
        return
    if fraction is not None:
        a, b = fraction.numerator, fraction.denominator
        yield from (
            f"{a}/{b}",
            rf"\dfrac{{{a}}}{{{b}}}",
            rf"\frac{{{a * factor}}}{{{b * factor}}}",
            rf"{a} \div {b}",
        )
        whole, rest = divmod(abs(a), b)
        sign = "-" if a < 0 else ""
        if whole:
            yield from (rf"{sign}{whole}\frac{{{rest}}}{{{b}}}", f"{sign}{whole} {rest}/{b}")
        decimal = _decimal(fraction)
        if decimal is not None:
            yield decimal
        elif b in (3, 9, 11, 33, 99):
            digits = f"{rest * (99 // b):02d}" if 99 % b == 0 else ""
            yield rf"{sign}{whole}.\overline{{{digits}}}"
        return
    if items is not None:
        yield from ("(" + ",".join(items) + ")", r"\left(" + r",\; ".join(items) + r"\right)")
        yield "(" + ", ".join(f"{item}+1-1" if item[-1:].isdigit() else item for item in items) + ")"
        return
    if _is_expression(gold):
        yield from (
            f"{gold} + {more} - {more}",
            rf"\frac{{{factor}({gold})}}{{{factor}}}",
            rf"0 + {gold}",
            f"{{{gold}}}",
        )
        yield rf"\displaystyle {gold}"
    elif "text" in gold and (word := re.fullmatch(r"\\text\{([A-Za-z]+)\}", gold)):
        yield from (word[1], rf"\textbf{{{word[1]}}}", rf"\mathrm{{{word[1]}}}", word[1] + ".")


def _decimal(value: Fraction) -> str | None:
    text = f"{float(value):.12f}".rstrip("0")
    return text if Fraction(text) == value else None


def changes(gold: str, draw: random.Random) -> Iterator[str]:
    """Answers that are different by construction."""
    number, fraction, items = _integer(gold), _fraction(gold), _items(gold)
    if number is not None:
        yield from (
            str(number + 1),
            f"{number}.0000000001",
            f"{number}, {number + 1}",
            rf"{number} + 10^{{-9}}",
        )
        yield from (rf"{number} + \mathrm{{e}}", rf"{number} \pm 1", f"{number}:{abs(number) + 7}")
        yield rf"\{{{number}, {number + 2}\}}"
        if abs(number) > 9:
            yield " ".join(str(number))
        if number:
            yield from (
                str(-number),
                rf"\frac{{{number}}}{{0}}",
                rf"\frac{{1}}{{{number + 7919}}}",
                f"{number}x",
            )
            yield from (rf"{number}\mathrm{{i}}", rf"{number} \cdot 10^{{-3}}")
        return
    if fraction is not None:
        a, b = fraction.numerator, fraction.denominator
        yield from (
            rf"\frac{{{a + 1}}}{{{b}}}",
            rf"\frac{{{a}}}{{{b + 1}}}",
            str(a),
            rf"\frac{{{a}}}{{{b}}} + 10^{{-8}}",
        )
        yield from (rf"\frac{{{-a}}}{{{b}}}", rf"\frac{{{a}}}{{{b}}}\mathrm{{e}}", f"{a}, {b}")
        if _decimal(fraction) is None:
            yield from (f"{float(fraction):.7f}", f"{float(fraction):.2f}")
        if abs(fraction) != 1:
            yield rf"\frac{{{b}}}{{{a}}}"
        return
    if items is not None:
        if len(set(items)) > 1 and items != items[::-1]:
            yield "(" + ",".join(items[::-1]) + ")"
        yield from (
            r"\{" + ",".join(items) + r"\}",
            "(" + ",".join([*items, "1"]) + ")",
            "[" + ",".join(items) + "]",
        )
        yield "(" + ",".join([f"{items[0]} + 1", *items[1:]]) + ")"
        return
    if _is_expression(gold):
        yield from (
            f"{gold} + 1",
            f"-({gold})",
            f"2({gold})",
            rf"{gold} + 10^{{-9}}",
            rf"({gold})\mathrm{{e}}",
        )
        yield from (rf"{gold} + \mathrm{{i}}", rf"{gold}, 1", rf"\{{{gold}, 0.5\}}")
    elif re.search(r"_\{?\d", gold):
        yield from (re.sub(r"_\{?\d\}?", "_{11}", gold), re.sub(r"_.*", "", gold))
    elif "text" in gold and "frac" not in gold and not re.search(r"\d", gold):
        yield from (r"\text{none}", "0", "Z")
    elif re.search(r"[\[(].*,.*[\])]$", gold) and "infty" not in gold and "cup" not in gold:
        yield gold.translate(str.maketrans("()[]", "[]()"))


def scorers(verl: Path | None) -> dict[str, Scorer]:
    """Scorers by name: whether a scorer accepts an answer for a task's answer."""
    from math_verify import parse, verify

    logging.disable(logging.ERROR)

    def math_verify(gold: str, stated: str) -> bool:
        return bool(verify(parse(f"${gold}$"), parse(f"So it is $\\boxed{{{stated}}}$.")))

    found: dict[str, Scorer] = {
        "Strop `math`": lambda gold, stated: math_reward(f"So it is $\\boxed{{{stated}}}$.", gold) == 1,
        "math-verify": math_verify,
    }
    if verl is None:
        return found
    folder = verl / "verl" / "utils" / "reward_score"
    functional = types.ModuleType("verl.utils.py_functional")
    functional.timeout_limit = lambda *args, **kwargs: lambda function: function  # type: ignore[attr-defined]
    sys.modules |= {
        "verl": types.ModuleType("verl"),
        "verl.utils": types.ModuleType("verl.utils"),
        "verl.utils.py_functional": functional,
    }
    reward, dapo = _load(folder / "math_reward.py"), _load(folder / "math_dapo.py")
    prime, verify_file = _load(folder / "prime_math" / "__init__.py"), _load(folder / "math_verify.py")
    return found | {
        "verl `math_reward`": lambda gold, stated: (
            reward.compute_score(f"So it is $\\boxed{{{stated}}}$.", gold) == 1
        ),
        "verl `math_dapo`": lambda gold, stated: dapo.compute_score(f"Answer: {stated}", gold)["acc"],
        "verl `prime_math`": lambda gold, stated: bool(
            prime.compute_score(f"So it is $\\boxed{{{stated}}}$.", gold)[0]
        ),
        "verl `math_verify`": lambda gold, stated: (
            verify_file.compute_score(f"So it is $\\boxed{{{stated}}}$.", gold) == 1
        ),
    }


def _load(path: Path) -> types.ModuleType:
    name = "reward_" + path.parent.name if path.name == "__init__.py" else "reward_" + path.stem
    places = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _accepts(scorer: Scorer, pair: Pair) -> bool:
    signal.signal(signal.SIGALRM, _expire)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return bool(scorer(*pair))
    except BaseException as error:  # a scorer may raise anything, and math-verify's limit is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _expire(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verl", type=Path, help="checkout of verl")
    parser.add_argument("--faults", default="", help="scorer whose misjudged pairs are printed")
    arguments = parser.parse_args()
    sets = pairs(arguments.seed)
    header = [f"{name}: equal rejected | different accepted" for name in sets]
    print(f"| scorer | {' | '.join(header)} | ms per answer |")
    print("| --- |" + " ---: |" * (2 * len(sets) + 1))
    sizes = [f"of {len(part)}" for both in sets.values() for part in both]
    print(f"| | {' | '.join(sizes)} | |")
    for name, scorer in scorers(arguments.verl).items():
        cells, count = [], 0
        started = time.process_time()
        for equal, different in sets.values():
            rejected = [pair for pair in equal if not _accepts(scorer, pair)]
            accepted = [pair for pair in different if _accepts(scorer, pair)]
            cells += [len(rejected), len(accepted)]
            count += len(equal) + len(different)
            if arguments.faults and arguments.faults in name:
                print(
                    *[f"rejected {pair}" for pair in rejected],
                    *[f"accepted {pair}" for pair in accepted],
                    sep="\n",
                )
        spent = (time.process_time() - started) / count * 1000
        print(f"| {name} | {' | '.join(map(str, cells))} | {spent:.1f} |", flush=True)


if __name__ == "__main__":
    main()
