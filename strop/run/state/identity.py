"""Identity of a run by content: digests of the rows, code, texts, models and tokenizer that its configuration names.

`resume_compatibility` compares the values of two configurations; this compares what the values name. Not covered: rows
of streams, queues and generators, image files that rows name, what is on other machines, and installed packages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.config.paths import existing_path, gguf_file
from strop.config.save import folder_mode, save_resolved
from strop.config.schema.data import TasksetConfig
from strop.config.schema.run import Run, leaves
from strop.config.semantic_diff import is_learning_field, recorded_differences
from strop.config.user_code import callable_digest, code_digest
from strop.data.sources.cache import content_digest, file_digest, files_digest
from strop.data.sources.generators import is_generator
from strop.data.sources.reader import read_rows
from strop.errors import RunFolderError
from strop.models.fingerprint import WRITER_KEYS, model_fingerprint
from strop.printable import counted
from strop.python_rewards import PythonReward, PythonRewards, list_rewards
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.lock import lock_run
from strop.runs.overview import all_finished
from strop.runs.sessions import record_changes
from strop.training.checkpoints import checkpoint
from strop.workers.files import atomic_write
from strop.workers.json_text import parse_json

Identity = Mapping[str, str]
"""Text for the content that each field names, such as `11 rows with content 3f9a61c20d4e`."""

IDENTITY_FILE = "identity.json"
_DIGITS = 12
_TEXT_FILES = (".jinja", ".json", ".txt", ".yaml", ".yml")
_SECTIONS_WITH_CODE = frozenset({"dataset", "pipeline", "reward", "workflow"})
"""Sections of `data` whose values name code and text files."""
_CODE_NAME = re.compile(r"(?<![\w./~-])[\w./~-]+\.py(?::\w+)?|(?<!\w)[A-Za-z_]\w*+(?:\.[A-Za-z_]\w*)+")
_TOKENIZER_FILES = ("added_tokens.json", "merges.txt", "tokenizer.json", "tokenizer.model", "vocab.json")
PYTHON_REWARD = "reward"
"""Field of the functions that Python passed; those of the run file are below it."""


def run_identity(run: Run, reward: PythonRewards | None = None) -> dict[str, str]:
    """The identity of a run, and of the reward functions that Python passes. Raises DataError for rows that cannot be
    read."""
    found = {**dict(_datasets(run)), **dict(_files(run)), **dict(_models(run))}
    if functions := [_code_of(part) for part in list_rewards(reward)]:
        found[PYTHON_REWARD] = ", ".join(functions)
    return found


def _code_of(reward: PythonReward) -> str:
    name = getattr(reward.function, "__qualname__", type(reward.function).__qualname__)
    weight = "" if reward.weight == 1 else f" with weight {reward.weight:g}"
    return f"code {callable_digest(reward.function)[:_DIGITS]} of {name}{weight}"


def save_identity(identity: Identity, folder: Path) -> None:
    """Write the identity into a run's or a checkpoint's folder."""
    atomic_write(folder / IDENTITY_FILE, json.dumps(identity, indent=1) + "\n")


def read_identity(folder: Path) -> Identity | None:
    """Read what `save_identity` wrote; None in a folder of an earlier version. Raises RunFolderError."""
    file = folder / IDENTITY_FILE
    if not file.exists():
        return None
    try:
        return {str(field): str(text) for field, text in parse_json(file.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise RunFolderError(
            f"{file} cannot be read ({error}), so it is not known whether the run's data and code are still the same. "
            f"To resume, copy the {IDENTITY_FILE} of a checkpoint over it."
        ) from None


def identity_differences(recorded: Identity, now: Identity) -> list[str]:
    """The fields that name something else than before, as `field was ..., is ...`. A field that only one of two
    configurations has is a difference of the configurations."""
    fields = [field for field in recorded if field in now]
    fields += [PYTHON_REWARD] * ((PYTHON_REWARD in recorded) != (PYTHON_REWARD in now))
    return [
        f"{field} was {recorded.get(field, 'not passed from Python')}, is {now.get(field, 'not passed from Python')}"
        for field in fields
        if recorded.get(field) != now.get(field)
    ]


def is_learned_from(run: Run, difference: str) -> bool:
    """Whether a difference changes what the run learns; that of an evaluation taskset does not."""
    return is_learning_field(run, difference.partition(" ")[0])


def _datasets(run: Run) -> Iterator[tuple[str, str]]:
    data = run.data
    sections: dict[str, TasksetConfig] = {}
    if data.stream is None and data.queue is None:
        sections |= data.training_tasksets()
    sections |= {f"data.demonstrations.{number}": each for number, each in enumerate(data.demonstrations)}
    sections |= {f"data.eval.{number}": each for number, each in enumerate(data.eval)}
    for field, section in sections.items():
        if section.few_shot is not None:
            yield f"{field}.few_shot", f"examples {files_digest(section.few_shot.path)[:_DIGITS]}"
        paths = (section.path,) if isinstance(section.path, str) else section.path
        if section.dataset is not None:
            yield field, f"files {files_digest(section.path)[:_DIGITS]}"
        elif not any(map(is_generator, paths)):
            rows = read_rows(section)
            digest = content_digest(section.path, rows)[:_DIGITS]
            yield field, f"{counted(len(rows), 'row')} with content {digest}"


def _files(run: Run) -> Iterator[tuple[str, str]]:
    """Code and text files that values name, and code that these text files name."""
    for leaf in leaves(run):
        field = ".".join(leaf.keys)
        if leaf.keys[0] == "data" and _SECTIONS_WITH_CODE.isdisjoint(leaf.keys):
            continue  # paths of rows, names of columns
        if found := list(filter(None, map(_named_content, leaf.texts()))):
            yield field, ", ".join(found)


def _named_content(text: str) -> str | None:
    """Digest of the code or the text file that a value names; None for another value."""
    is_code = text.endswith(".py") or ".py:" in text or _CODE_NAME.fullmatch(text)
    if is_code and (digest := code_digest(text)):
        return f"code {digest[:_DIGITS]} of {text}"
    if text.endswith(_TEXT_FILES) and (file := existing_path(text)) is not None and file.is_file():
        return f"text {_text_digest(file)[:_DIGITS]} of {text}"
    return None


def _text_digest(file: Path) -> str:
    """Digest of a text file, and of the user's code that it names, such as the classes of a tool configuration."""
    digest = hashlib.sha256(file_digest(file).encode())
    if file.suffix != ".jinja":
        for name in _CODE_NAME.findall(file.read_text(encoding="utf-8", errors="replace")):
            digest.update(code_digest(name).encode())
    return digest.hexdigest()


def _models(run: Run) -> Iterator[tuple[str, str]]:
    for leaf in leaves(run):
        if leaf.keys[-1] == "path" and isinstance(leaf.value, str) and leaf.keys[0] != "data":
            folder = existing_path(leaf.value)
            if gguf_file(leaf.value) or (folder is not None and (folder / "config.json").is_file()):
                yield ".".join(leaf.keys), model_fingerprint(leaf.value)
    folder = existing_path(run.model.tokenizer or run.model.path)
    if folder is None or not folder.is_dir():
        return
    settings = _tokenizer_settings(folder)
    template = settings.pop("chat_template", None)
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            digest.update(name.encode() + file_digest(folder / name).encode())
    yield "model.tokenizer", f"files {digest.hexdigest()[:_DIGITS]}"
    named = run.data.chat_template
    if named == "tokenizer":
        own = folder / "chat_template.jinja"
        text = own.read_text(encoding="utf-8") if own.is_file() else json.dumps(template)
    else:
        file = existing_path(named) if len(named) < 1000 and "\n" not in named else None
        text = file_digest(file) if file is not None and file.is_file() else named
    yield "data.chat_template", f"text {hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _tokenizer_settings(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    try:
        values = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError:
        return {}  # loading the tokenizer reports the fault
    return (
        {key: value for key, value in values.items() if key not in WRITER_KEYS}
        if isinstance(values, dict)
        else {}
    )


def change_configuration(run: Run, keys: Sequence[str], reward: PythonRewards | None = None) -> str:
    """Replace the configuration and the identity recorded in the folder of `run`, which differ from its own in `keys`
    only.

    `keys` are dotted keys of the run file, or of sections of it; `reward` for the function that Python passes. The
    differences become a part of the last session's record. Returns a sentence for the user. Raises `RunFolderError`
    where there is no checkpoint to continue from, or the run differs in another key too.
    """
    folder = RunFolder.of(run)
    with lock_run(folder, mode=run.mode, is_distributed=run.is_distributed, permissions=folder_mode(run)):
        found, _ = checkpoint.latest(folder.checkpoints)
        if found is None or not folder.run_file.is_file():
            raise RunFolderError(
                f"--change continues a run, and {folder.path} has no checkpoint of one. Write the values as overrides, "
                "without --change."
            )
        differences = recorded_differences(folder.run_file, run)
        now, identities = run_identity(run, reward), {}
        for each in (folder, folder.explorer):
            recorded = read_identity(each.path) or {}
            is_kept = (
                reward is None and PYTHON_REWARD in recorded
            )  # the next start passes a function, and compares it
            identities[each] = now | ({PYTHON_REWARD: recorded[PYTHON_REWARD]} if is_kept else {})
            differences += identity_differences(recorded, identities[each]) if recorded else []
        differences = list(dict.fromkeys(differences))
        others = [
            text
            for text in differences
            if not _is_named(text.partition(" ")[0], keys) and is_learned_from(run, text)
        ]
        if others:
            raise RunFolderError(
                f"The run in {folder.path} differs from this configuration in more than --change names: "
                f"{'; '.join(others)}. Write --change for each of them, or restore its value."
            )
        if not differences:
            return f"--change: the run in {folder.path} has these values already."
        with reporting_write_errors(folder.path):
            record_changes(folder.path, differences)
            for each in (folder, folder.explorer):
                if each.run_file.is_file():
                    save_resolved(run, each.run_file)
                    save_identity(identities[each], each.path)
    changed = f"Changed after step {RunState.load(found).step}: {'; '.join(differences)}."
    if all_finished([folder]):
        return f"{changed} The run had finished: no step uses the change unless the run is longer now."
    return changed


def _is_named(field: str, keys: Sequence[str]) -> bool:
    return any(field == key or field.startswith(f"{key}.") for key in keys)
