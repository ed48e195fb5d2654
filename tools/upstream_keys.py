"""Compares the ledgers with the configuration files of a release of verl, Trinity-RFT or TRL.

    pip download --no-deps verl==0.9.1 && python tools/upstream_keys.py verl-0.9.1-py3-none-any.whl

Nothing of the release is imported. Prints the keys that no ledger has, on which someone decides; the keys whose default
differs, where the ledger has the default of another version; and, as a count, the keys that the release no longer has.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from strop.compat.ledger.key_mapping import UNSET
from strop.compat.registry import LEDGERS

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


def _verl(folder: Path) -> Iterator[tuple[str, str, Any]]:
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


def _trinity(folder: Path) -> Iterator[tuple[str, str, Any]]:
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


def _trl(folder: Path) -> Iterator[tuple[str, str, Any]]:
    """Ledger, key and default of every field that TRL's own classes have."""
    classes = _classes(*sorted(folder.glob("trl/**/*_config.py")))
    for kind, ledger in _TRL.items():
        yield from ((ledger, key, default) for key, (_, default) in classes.get(kind, {}).items())


def _read(folder: Path) -> Iterator[tuple[str, str, Any]]:
    for package, read in {"verl": _verl, "trinity": _trinity, "trl": _trl}.items():
        if (folder / package).is_dir():
            return read(folder)
    raise SystemExit(f"{folder}: no package of verl, Trinity-RFT or TRL")


def compare(keys: Iterator[tuple[str, str, Any]]) -> Mapping[str, list[str]]:
    """Lines on the keys, by heading."""
    found: dict[str, list[str]] = {"no ledger has": [], "another default": []}
    seen: dict[str, set[str]] = {}
    for tool, key, default in keys:
        ledger = LEDGERS[tool]
        seen.setdefault(tool, set()).add(key)
        row = ledger.find(key)
        if row is None and not ledger.is_section(key):
            found["no ledger has"].append(f"{tool}: {key} = {'' if default is _NO_DEFAULT else default}")
        elif (
            row
            and str(row.default) != str(default)
            and UNSET is not row.default
            and default is not _NO_DEFAULT
        ):
            found["another default"].append(f"{tool}: {key} = {default}, here {row.default}")
    for tool, keys_of in seen.items():
        gone = [row.key for row in LEDGERS[tool].rows if row.key not in keys_of and "*" not in row.key]
        found.setdefault("no longer there", []).append(
            f"{tool}: {len(gone)} of {len(LEDGERS[tool].rows)} keys"
        )
    return {heading: sorted(set(lines)) for heading, lines in found.items()}


def main(path: str) -> None:
    """Print the comparison with a wheel, or with a folder of unpacked packages."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(path)
        if folder.suffix == ".whl":
            folder = Path(temporary)
            zipfile.ZipFile(path).extractall(folder)
        for heading, lines in compare(_read(folder.resolve())).items():
            print(f"{heading} ({len(lines)}):", *lines, sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
