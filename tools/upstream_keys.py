"""Compares the ledgers with the configuration files of a release of verl, Trinity-RFT or TRL.

    pip download --no-deps verl==0.9.1 && python tools/upstream_keys.py verl-0.9.1-py3-none-any.whl [EARLIER.whl]

Nothing of a release is imported. Prints the keys on which nobody has decided, and ends with status 1 if there are any:
those that no ledger has; those with another default than the ledger's that `upstream_defaults.yaml` does not have; and
those of the earlier release that this one lacks, whose row has no last version (`until`).
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from strop.compat.ledger.key_mapping import UNSET, KeyMapping
from strop.compat.registry import LEDGERS

Key = tuple[str, str, Any]
"""Ledger, dotted key and default."""
_DECIDED = Path(__file__).with_name("upstream_defaults.yaml")
_VERL = {
    "ppo_trainer": "verl",
    "ppo_megatron_trainer": "verl",
    "sft_trainer": "verl-sft",
    "sft_trainer_engine": "verl-sft-engine",
    "evaluation": "verl-eval",
    "generation": "verl-generate",
}
"""verl's files -> the ledger of their keys."""
_TRL = {
    "GRPOConfig": "trl",
    "RLOOConfig": "trl-rloo",
    "SFTConfig": "trl-sft",
    "DPOConfig": "trl-dpo",
    "KTOConfig": "trl-kto",
    "RewardConfig": "trl-reward",
    "CPOConfig": "trl-cpo",
    "ORPOConfig": "trl-orpo",
}
"""TRL's classes -> the ledger of their fields. Those of transformers' TrainingArguments are not in TRL's wheel."""
_NO_DEFAULT = object()


def _verl(folder: Path) -> Iterator[Key]:
    """Ledger, key and default of every key of verl's files, as Hydra composes them."""
    with initialize_config_dir(str(folder / "verl/trainer/config"), version_base=None):
        for file, ledger in _VERL.items():
            if (folder / f"verl/trainer/config/{file}.yaml").is_file():
                values = OmegaConf.to_container(compose(file), resolve=False)
                yield from ((ledger, key, value) for key, value in _leaves(values))


def _leaves(values: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{key}.")
        elif not str(name).startswith("_"):
            yield key, value


def _classes(*files: Path) -> dict[str, dict[str, tuple[str, Any]]]:
    """Fields of the classes in Python files, by class: name of the type and default of each."""
    found: dict[str, dict[str, tuple[str, Any]]] = {}
    for file in files:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                found[node.name] = {
                    each.target.id: (ast.unparse(each.annotation), _default(each.value))
                    for each in fields
                    if isinstance(each.target, ast.Name)
                }
    return found


def _default(value: ast.expr | None) -> Any:
    if isinstance(value, ast.Call):  # field(default=..., metadata=...)
        value = next((each.value for each in value.keywords if each.arg == "default"), None)
    try:
        return _NO_DEFAULT if value is None else ast.literal_eval(value)
    except ValueError:
        return _NO_DEFAULT


def _trinity(folder: Path) -> Iterator[Key]:
    """Ledger, key and default of every field below Trinity's class Config; a list's items have the number 0."""
    classes = _classes(folder / "trinity/common/config.py")

    def inside(kind: str, above: str) -> Iterator[tuple[str, Any]]:
        for name, (annotation, default) in classes[kind].items():
            inner = next((each for each in classes if each in annotation.replace("]", "[").split("[")), None)
            if inner is None:
                yield f"{above}{name}", default
            elif name not in ("stages", "tasksets", "eval_tasksets"):  # the same keys again
                is_list = "list[" in annotation.lower()
                yield from inside(inner, f"{above}{name}.{'0.' if is_list else ''}")

    yield from (("trinity", key, default) for key, default in inside("Config", ""))


def _trl(folder: Path) -> Iterator[Key]:
    """Ledger, key and default of every field that TRL's own classes have."""
    classes = _classes(*sorted(folder.glob("trl/**/*_config.py")))
    for kind, ledger in _TRL.items():
        yield from ((ledger, key, default) for key, (_, default) in classes.get(kind, {}).items())


def _read(folder: Path) -> Iterator[Key]:
    for package, read in {"verl": _verl, "trinity": _trinity, "trl": _trl}.items():
        if (folder / package).is_dir():
            return read(folder)
    raise SystemExit(f"{folder}: no package of verl, Trinity-RFT or TRL")


_SELECTED = re.compile(r"\$\{oc\.select:([\w.]+),[^}]*\}")


def _normalized(key: str, default: Any) -> Any:
    """A default as the ledgers write it: interpolations name whole keys, without the value where a key is missing."""
    if not isinstance(default, str):
        return default
    section = key.rpartition(".")[0]
    return _SELECTED.sub(r"${\1}", default).replace("${.", f"${{{section}.")


def _differs(row: KeyMapping, key: str, default: Any) -> bool:
    """Whether a release has another default than the ledger. A list's items and a null that leaves a key unset do not
    count, nor does a key without a default on one side."""
    unknown = default is _NO_DEFAULT or row.default is UNSET or row.is_repeated
    unset = default is None and (row.null_is_unset or row.default is None)
    return not unknown and not unset and row.default != _normalized(key, default)


def undecided(keys: Iterable[Key], earlier: Iterable[Key] = ()) -> Mapping[str, list[str]]:
    """Lines on the keys that someone has to decide on, by heading."""
    found: dict[str, list[str]] = {heading: [] for heading in ("new", "another default", "gone")}
    decided = _decided()
    named = set()
    for tool, key, default in keys:
        named.add((tool, key))
        row = LEDGERS[tool].find(key)
        shown = "" if default is _NO_DEFAULT else f" = {default}"
        if row is None and not LEDGERS[tool].is_section(key):
            found["new"].append(f"{tool}: {key}{shown}")
        elif row is not None and _differs(row, key, default) and (tool, key, str(default)) not in decided:
            found["another default"].append(f"{tool}: {key}{shown}, here {row.default}")
    for tool, key, _ in earlier:
        row = LEDGERS[tool].find_exact(key)
        if (tool, key) not in named and row is not None and not row.until:
            found["gone"].append(f"{tool}: {key}")
    return {heading: sorted(set(lines)) for heading, lines in found.items()}


def _decided() -> set[tuple[str, str, str]]:
    """Ledger, key and default of the differences that someone has decided on."""
    decisions = yaml.safe_load(_DECIDED.read_text(encoding="utf-8"))
    return {
        (tool, key, str(each))
        for decision in decisions
        for tool, defaults in decision["keys"].items()
        for key, default in defaults.items()
        for each in (default, *(default if isinstance(default, list) else ()))
    }


def _keys(path: str) -> list[Key]:
    """The keys of a wheel, or of a folder of unpacked packages."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path)
        if folder.suffix == ".whl":
            folder = Path(temporary)
            zipfile.ZipFile(path).extractall(folder)
        return list(_read(folder.resolve()))


def main(release: str, earlier: str | None = None) -> int:
    """Print the keys that are undecided; returns their number."""
    lines = undecided(_keys(release), _keys(earlier) if earlier else ())
    for heading, each in lines.items():
        print(f"{heading} ({len(each)}):", *each, sep="\n  ")
    return sum(map(len, lines.values()))


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
