"""Damaged configurations of every dialect, reproducible from a seed, and the result of reading each.

The texts are the examples, the configurations of the tests, and the YAML blocks of the documentation. Each is
changed in its keys, values and structure, as text (tags, anchors, truncation, duplicate keys), and in its bytes.
"""

from __future__ import annotations

import copy
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from strop.compat.convert import CONVERSION_TARGETS, convert
from strop.compat.detect import detect_dialect
from strop.compat.verl.model_merger import read_verl_merge
from strop.config.explain import explain_values, summarize
from strop.config.load.loader import Job, LoadedRun
from strop.config.load.yaml_file import read_yaml
from strop.config.preflight import missing_files
from strop.config.save import save_resolved
from tests.compat.broken_configs import CHANGES, DIALECTS, REAL, SCRAWLS, read
from tests.fuzz.outcome import Outcome, attempt

ROOT = REAL.parents[2]
FUZZED = (*DIALECTS, "verl-merge")
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)
_MERGE = {"local_dir": "run", "target_dir": "out", "hf_model_path": "m", "backend": "fsdp", "lora_alpha": 16}
_DEEPSPEED = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}'


@cache
def originals(dialect: str) -> tuple[str, ...]:
    """The valid texts of a dialect, in a fixed order."""
    return tuple(_by_dialect()[dialect])


@cache
def _by_dialect() -> dict[str, list[str]]:
    texts: dict[str, list[str]] = defaultdict(list, {"verl-merge": [yaml.safe_dump(_MERGE)]})
    for path in sorted(REAL.glob("*.yaml")):
        texts[path.stem].append(path.read_text(encoding="utf-8"))
    for path in sorted(ROOT.glob("examples/**/*.yaml")):
        texts[detect_dialect(read_yaml(path))].append(path.read_text(encoding="utf-8"))
    for page in sorted(ROOT.glob("docs/**/*.md")):
        for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
            texts["strop"].append(block)
    return texts


def damaged(dialect: str, seed: str) -> bytes:
    """A text of the dialect with one to four changes."""
    rng = random.Random(f"{dialect}:{seed}")
    text = rng.choice(originals(dialect))
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError:
        values = None
    if isinstance(values, dict) and rng.random() < 0.8:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change_values(values, rng, dialect)
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=rng.random() < 0.5, width=10**6)
    while rng.random() < 0.3:
        text = rng.choice((*SCRAWLS, *TEXT_CHANGES))(text, rng)
    content = text.encode("utf-8", "surrogatepass")
    return rng.choice(BYTE_CHANGES)(content, rng) if rng.random() < 0.15 else content


def _damaged_json(rng: random.Random) -> bytes:
    """A DeepSpeed file, damaged in one of five cases."""
    if rng.random() < 0.8:
        return _DEEPSPEED.encode()
    text = rng.choice((*SCRAWLS, *TEXT_CHANGES))(_DEEPSPEED, rng)
    return rng.choice(BYTE_CHANGES)(text.encode("utf-8", "surrogatepass"), rng)


def change_values(values: Any, rng: random.Random, dialect: str) -> None:
    if rng.random() < 0.4:
        containers = [values, *_containers(values)]
        container = rng.choice(containers)
        keys = list(container) if isinstance(container, dict) else range(len(container))
        if keys:
            container[rng.choice(keys)] = copy.deepcopy(rng.choice(VALUES))
        return
    rng.choice(CHANGES)(values, rng, dialect if dialect in DIALECTS else "strop")


def _containers(values: Any) -> Iterator[Any]:
    for item in values.values() if isinstance(values, dict) else values:
        if isinstance(item, dict | list) and item:
            yield item
            yield from _containers(item)


VALUES: tuple[Any, ...] = (
    *(10**40, -(10**40), 2**63, -(2**63) - 1, 10**18, -1, 1e308, -1e308, 1e-320, float("nan"), -float("inf")),
    *("9" * 5000, "1e400", "-1e400 steps", "1e30 steps", "0.5 steps", "nan", ".inf", "0x_", "1_000", "1:60"),
    *(
        "a\0b",
        "\0",
        "\x1b[2J\x1b]0;t\x07",
        "\r",
        "\u2028",
        "a" * 300,
        "a/" * 3000,
        "../" * 200,
        "\u202e",
        "\ufeff",
    ),
    *(
        *("\ud800", "a\udfff", "\udc80.py:f", "~nobody/x", "file.py:\0", "s3://\0", "sqlite:///\0"),
        *("http://[", "a:b:c"),
    ),
    *(
        "${" * 30,
        "${" * 30 + "}" * 30,
        "${oc.env:}",
        "${oc.env:STROP_TEST_NONE,${model}}",
        "${..}",
        "${.}",
        "${:}",
    ),
    *("${oc.decode:'[1'}", "${oc.create:{a:1}}", "${oc.select:a}", "${oc.dict.keys:data}", "${model}${data}"),
    *("20 steps 3", " 5  epochs ", "1e15 epochs", "%", "10%%", "\t", "'", "[[[", "{{{{", "{% for %}", "{{ x"),
    *(
        [[]] * 60,
        [[[[[[[[1]]]]]]]],
        [{}] * 3,
        {"type": None},
        {"type": []},
        {"type": {"a": 1}},
        {"": ""},
        {"a.b": 1},
    ),
    *([None] * 500, ["x"] * 2000, {str(i): i for i in range(300)}, [True, 1, "1", 1.0]),
)


# -- as text -----------------------------------------------------------------------------------------------

Edit = Callable[[str, random.Random], str]
_TAGS = (
    *("int", "float", "bool", "null", "str", "timestamp", "binary", "set", "omap", "pairs", "seq", "map"),
    *("merge",),
)
_TAGGED = (
    *("''", "x", "maybe", "1", "[1]", "{a: 1}", "2020-13-45", "=", ".", "-", "~", "0o9", "1e", "!!"),
    *("&a",),
)


def _at_value(text: str, rng: random.Random, new: str) -> str:
    """Replace the value of a random line."""
    places = list(re.finditer(r"(?<=: ).+$", text, re.MULTILINE))
    if not places:
        return f"{text}\nx: {new}"
    place = rng.choice(places)
    return text[: place.start()] + new + text[place.end() :]


def tag(text: str, rng: random.Random) -> str:
    kind = rng.choice((*(f"!!{name}" for name in _TAGS), "!x", "!", "!<tag:x>", "!!python/object:os.system"))
    return _at_value(text, rng, f"{kind} {rng.choice(_TAGGED)}")


def anchor(text: str, rng: random.Random) -> str:
    forms = ("&a [*a]", "*a", "&a {b: *a}", "&a x", "{<<: *a}", "&a {<<: *a}", "*", "&", "&a &b x")
    return _at_value(f"a: &a {{x: 1}}\n{text}" if rng.random() < 0.5 else text, rng, rng.choice(forms))


def bomb(text: str, rng: random.Random) -> str:
    """Insert aliases or interpolations whose expansion grows exponentially."""
    levels, width = rng.choice(((3, 3), (8, 9), (30, 2), (200, 1)))
    one, form = rng.choice((("a", "&a{0} [{1}]"), ("a", "&a{0} {{x: [{1}]}}"), ("m", "&m{0} {{<<: [{1}]}}")))
    lines = [f"{one}0: &{one}0 {{x: 1}}"]
    for level in range(1, levels):
        lines.append(f"{one}{level}: " + form.format(level, ", ".join([f"*{one}{level - 1}"] * width)))
    if rng.random() < 0.5:
        lines = [f"i{level}: '" + f"${{i{level + 1}}}" * width + "'" for level in range(levels)]
    return "\n".join(lines) + "\n" + (text if rng.random() < 0.5 else _at_value(text, rng, "${i0}"))


def nest(text: str, rng: random.Random) -> str:
    left, right = rng.choice((("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("[", ""), ("!!seq [", "]")))
    count = rng.choice((20, 49, 60, 250, 5000))
    return _at_value(text, rng, left * count + "x" + right * count)


def number(text: str, rng: random.Random) -> str:
    forms = (
        "9" * 5000,
        "9" * 40,
        "0x" + "f" * 99,
        "1" + ":59" * 30,
        "1e999",
        "-.inf",
        "0b" + "1" * 80,
        "._",
        "0_",
    )
    return _at_value(text, rng, rng.choice(forms))


def escape(text: str, rng: random.Random) -> str:
    forms = (
        *('"\\ud800"', '"\\0"', '"\\U0010ffff"', '"\\x1b[31m"', '"\\uFFFE"', '"\\N\\L\\P"', '"\\xzz"'),
        *('"\\u"',),
    )
    return _at_value(text, rng, rng.choice(forms))


def duplicate(text: str, rng: random.Random) -> str:
    lines = text.splitlines() or [""]
    return "\n".join((*lines, *rng.sample(lines, min(len(lines), 3))))


def enlarge(text: str, rng: random.Random) -> str:
    return text + rng.choice(
        ("#" * 300_000, "\nx: " + "y" * 150_000, "\nx: [" + "1, " * 20_000 + "1]", "\n" * 90_000)
    )


TEXT_CHANGES: tuple[Edit, ...] = (
    *(tag, tag, tag, anchor, anchor, bomb, nest, number, escape, duplicate, duplicate),
    lambda text, rng: enlarge(text, rng) if rng.random() < 0.1 else text,
)


# -- as bytes ----------------------------------------------------------------------------------------------


def flip(content: bytes, rng: random.Random) -> bytes:
    found = bytearray(content or b"x")
    for _ in range(rng.choice((1, 3, 30))):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def drop(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content) + 1)
    return content[:start] + content[start + rng.randrange(200) :]


def recode(content: bytes, rng: random.Random) -> bytes:
    text = content.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "latin-1", "utf-7")), "replace")


BYTE_CHANGES = (flip, flip, drop, recode, lambda content, rng: content + rng.randbytes(50))


# -- reading -----------------------------------------------------------------------------------------------


def outcome(dialect: str, seed: str, folder: Path) -> Outcome:
    """Read one damaged configuration, and describe, save and convert the run if it is valid."""
    path = folder / "config.yaml"
    path.write_bytes(damaged(dialect, seed))
    rng = random.Random(seed)
    path.with_name("ds.json").write_bytes(_damaged_json(rng))
    return attempt(lambda: _use(dialect, path, rng))


def _use(dialect: str, path: Path, rng: random.Random) -> None:
    if dialect == "verl-merge":
        read_verl_merge([f"{key}={value}" for key, value in read_yaml(path).values.items()])
        return
    loaded = read(dialect, path, rng.randrange(20))
    for run in loaded.runs if loaded is not None else ():
        _describe(run, path.with_name("saved.yaml"))
    if loaded is not None and rng.random() < 0.1:
        convert(Job(loaded), rng.choice(CONVERSION_TARGETS))


def _describe(loaded: LoadedRun, saved: Path) -> None:
    summarize(loaded)
    explain_values(loaded)
    missing_files(loaded)
    save_resolved(loaded.run, saved)
