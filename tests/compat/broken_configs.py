"""Generator of realistic configurations with typical mistakes, reproducible from a seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from strop.compat.azureml.reader import COMPONENTS, read_component
from strop.compat.registry import LEDGERS
from strop.compat.trinity.reader import read_trinity
from strop.compat.verl.evaluation import read_verl_eval
from strop.compat.verl.generation import read_verl_generate
from strop.compat.verl.ppo_trainer import read_verl
from strop.compat.verl.sft_engine import read_verl_sft
from strop.config.load.loader import LoadedRun, load_run
from strop.config.load.yaml_file import read_yaml
from strop.config.schema.run import all_keys
from strop.reading import read_any

REAL = Path(__file__).parent / "real"
DIALECTS = tuple(name for name in ("strop", *LEDGERS) if name != "verl-merge")
"""Dialects whose configurations come from a file or from lines like a file's."""
Way = tuple[str | int, ...]

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, -7, 3, 2.5, 10**30, -1e308, float("nan"), float("inf"), 1e-320),
    *("", " ", "no", "null", "1e5", "12", "-1", "True", "a b", "a,b", "a=b", "[", "{x", "'", '"', "~", "~/x"),
    *(
        "é\u0301ß",
        "日本語",
        "\u202eabc",
        "\x07",
        "😀" * 40,
        "x" * 5000,
        "${",
        "${}",
        "${nowhere}",
        "$${a}",
        "\\",
    ),
    *("${oc.env:STROP_TEST_NONE}", "${oc.env:STROP_TEST_NONE,3}", "${nosuch:1}", "${.x}", "${..}", "???"),
    *(
        *("20 steps", "3 epochs", "10 %", "never", "0 steps", "grpo", "file.py:name", "a.b.c", "../.."),
        *("/", "s3://b"),
    ),
    *([], [1], [None], ["a", 2], [[]], [{}], {}, {"a": 1}, {"type": "adamw"}, {"path": "x"}, {"": 1}, {1: 2}),
)
TEXTS = (
    *("\t", ":", "- ", "{", "}", "[", "]", "'", '"', "&a ", "*a", "!x ", "!!int ", "<<: ", "\n", "#"),
    *("%", "|", "?"),
)


def base(dialect: str) -> dict[str, Any]:
    """The valid configuration."""
    return read_yaml(REAL / f"{dialect}.yaml").values


def mutated(dialect: str, number: int) -> str:
    """The configuration's text with one to three mistakes; in rare cases the text itself is corrupted."""
    rng = random.Random(f"{dialect}:{number}")
    values = copy.deepcopy(base(dialect))
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(CHANGES)(values, rng, dialect)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=rng.random() < 0.5, width=10**6)
    return rng.choice(SCRAWLS)(text, rng) if rng.random() < 0.2 else text


def read(dialect: str, path: Path, number: int) -> LoadedRun | None:
    """Read the configuration with the dialect's reader or as `strop train FILE` does; a component's from its
    arguments."""
    here = number % 5 != 0
    if number % 2 and dialect not in ("verl-eval", "verl-generate"):
        return read_any(path, here=here).loaded
    match dialect:
        case "strop":
            return load_run(path, here=here)
        case "verl" if number % 4 == 2:
            return read_verl(list(_lines(read_yaml(path).values)), here=here)
        case "verl":
            return read_verl((), config=path, here=here)
        case "verl-sft" | "verl-sft-engine":
            return read_verl_sft((), config=path, here=here)
        case "verl-eval":
            read_verl_eval((), config=path)
            return None
        case "verl-generate":
            read_verl_generate((), config=path, here=here)
            return None
        case "trinity" if number % 4 == 2:
            lines = list(_lines(read_yaml(path).values))
            return read_trinity(REAL / "trinity.yaml", lines[-3:], here=here)
        case "trinity":
            return read_trinity(path, here=here)
    if dialect.startswith("trl"):
        return read_any(path, here=here, dialect=dialect).loaded
    words = [word for name, value in read_yaml(path).values.items() for word in _words(name, value, number)]
    return read_component(dialect, words, here=here).loaded


def _lines(values: Any, above: str = "") -> Iterator[str]:
    """The values as overrides, sometimes with Hydra's prefixes, sometimes without required quotes."""
    for key, value in values.items():
        dotted = f"{above}.{key}" if above else str(key)
        if isinstance(value, dict) and value:
            yield from _lines(value, dotted)
        else:
            sign = ("", "", "+", "++", "~")[len(dotted) % 5]
            yield f"{sign}{dotted}={value if len(dotted) % 3 else json.dumps(value)}"


def _words(name: Any, value: Any, number: int) -> Iterator[str]:
    text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)
    yield from (f"--{name}={text}",) if number % 4 else (f"--{name}", text)


# -- one change each ---------------------------------------------------------------------------------------


def _ways(values: Any, above: Way = ()) -> Iterator[Way]:
    items = values.items() if isinstance(values, dict) else enumerate(values)
    for key, item in items:
        yield (*above, key)
        if isinstance(item, dict | list):
            yield from _ways(item, (*above, key))


def _at(values: Any, way: Way) -> Any:
    for key in way:
        values = values[key]
    return values


def _pick(values: Any, rng: random.Random, *, key: bool = False) -> tuple[Any, Any]:
    """A random container and a key in it; with `key`, the container is a mapping."""
    ways = [way for way in _ways(values) if not key or isinstance(_at(values, way[:-1]), dict)]
    way = rng.choice(ways) if ways else ("x",)
    if not ways:
        values["x"] = 1
    return _at(values, way[:-1]), way[-1]


def _rename(container: dict[Any, Any], old: Any, new: Any) -> None:
    items = [(new if key == old else key, value) for key, value in container.items()]
    container.clear()
    container.update(items)


def delete(values: Any, rng: random.Random, dialect: str) -> None:
    container, key = _pick(values, rng)
    del container[key]


def misspell(values: Any, rng: random.Random, dialect: str) -> None:
    container, key = _pick(values, rng, key=True)
    name = str(key) or "x"
    at = rng.randrange(len(name))
    slips = (
        name[:at] + name[at + 1 :],
        name[:at] + name[at] + name[at:],
        name.upper(),
        name.replace("_", "-"),
        name.replace("_", ""),
        name[:at] + "é" + name[at + 1 :],
        f" {name}",
        f"{name}.x",
        "",
    )
    _rename(container, key, rng.choice(slips))


def retype(values: Any, rng: random.Random, dialect: str) -> None:
    container, key = _pick(values, rng)
    container[key] = copy.deepcopy(rng.choice(VALUES))


def swap(values: Any, rng: random.Random, dialect: str) -> None:
    (one, a), (other, b) = _pick(values, rng), _pick(values, rng)
    one[a], other[b] = copy.deepcopy(other[b]), copy.deepcopy(one[a])


def nest(values: Any, rng: random.Random, dialect: str) -> None:
    container, key = _pick(values, rng)
    container[key] = {rng.choice((str(key), "value", "path", "0")): container[key]}


def listed(values: Any, rng: random.Random, dialect: str) -> None:
    container, key = _pick(values, rng)
    container[key] = [container[key]] * rng.choice((0, 1, 2))


def flatten(values: Any, rng: random.Random, dialect: str) -> None:
    container, key = _pick(values, rng)
    container[key] = str(container[key])


def lift(values: Any, rng: random.Random, dialect: str) -> None:
    """Move a section's keys to the parent section, as a missing indentation does."""
    container, key = _pick(values, rng)
    if isinstance(container[key], dict) and isinstance(container, dict):
        container.update(container.pop(key))


def stretch(values: Any, rng: random.Random, dialect: str) -> None:
    container, key = _pick(values, rng)
    if isinstance(container[key], int | float):
        container[key] *= rng.choice((-1, 0, 0.5, 1.5, 7, 10**9, 1e300))


def refer(values: Any, rng: random.Random, dialect: str) -> None:
    """Insert an interpolation of another value, of itself, or of a missing key."""
    container, key = _pick(values, rng)
    way = rng.choice(list(_ways(values)) or [("x",)])
    container[key] = f"{rng.choice(('', 'a ', '1'))}${{{'.'.join(map(str, way))}}}"


def other_kind(values: Any, rng: random.Random, dialect: str) -> None:
    """Switch the algorithm, schedule or engine, so that other keys are active."""
    kinds = (
        *("ppo", "gae", "grpo", "opmd", "remax", "mix", "sft", "dpo", "explore", "train", "sql"),
        *("cosine", "fsdp2"),
    )
    names = ("type", "algorithm_type", "adv_estimator", "algorithm_adv_estimator", "mode", "storage_type")
    ways = [way for way in _ways(values) if way[-1] in names]
    if ways:
        way = rng.choice(ways)
        _at(values, way[:-1])[way[-1]] = rng.choice(kinds)


def borrow(values: Any, rng: random.Random, dialect: str) -> None:
    """Add a key of another dialect with its default."""
    other = rng.choice([name for name in DIALECTS if name != dialect])
    names = list(all_keys()) if other == "strop" else [row.key for row in LEDGERS[other].rows]
    way = [part for part in rng.choice(names).split(".") if part != "*"]
    here = values
    for part in way[:-1]:
        here = here.setdefault(part, {}) if isinstance(here, dict) else {}
    if isinstance(here, dict):
        here[way[-1]] = copy.deepcopy(rng.choice(VALUES))


def add(values: Any, rng: random.Random, dialect: str) -> None:
    """Add a key of the same dialect with a random value."""
    names = list(all_keys()) if dialect == "strop" else [row.key for row in LEDGERS[dialect].rows]
    here: Any = values
    *above, last = [int(part) if part.isdigit() else part for part in rng.choice(names).split(".")]
    for part in above:
        inside = isinstance(here, dict) and isinstance(part, str)
        here = here.setdefault(part, {}) if inside else _item(here, part)
    if isinstance(here, dict):
        here[str(last)] = copy.deepcopy(rng.choice(VALUES))


def _item(here: Any, part: Any) -> Any:
    return here[part] if isinstance(here, list) and isinstance(part, int) and part < len(here) else None


Change = Callable[[Any, random.Random, str], None]
CHANGES: tuple[Change, ...] = (
    *(delete, misspell, retype, retype, retype, swap, nest, listed, flatten),
    *(lift, stretch, refer, borrow, add, add, add, other_kind, other_kind),
)


# -- broken as text ----------------------------------------------------------------------------------------


def insert(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(TEXTS) + text[at:]


def cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def shift(text: str, rng: random.Random) -> str:
    lines = text.splitlines() or [""]
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((" ", "   ", "\t")) + lines[at]
    return "\n".join(lines)


def double(text: str, rng: random.Random) -> str:
    lines = text.splitlines() or [""]
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "\n".join(lines)


def replace(text: str, rng: random.Random) -> str:
    odd = (
        "",
        "\ufeff" + text,
        text.replace("\n", "\r\n"),
        text + "\n---\na: 1\n",
        "- " + text,
        text * 2,
        "null",
    )
    return rng.choice(odd)


SCRAWLS = (insert, insert, cut, shift, double, replace)

assert set(COMPONENTS) < set(DIALECTS)
