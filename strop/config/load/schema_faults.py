"""Faults that the run file's schema finds, in the words of what the user wrote, and names familiar from other tools.

Names from other tools are found by their last part, wherever they are written: `rollout.n`,
`algorithm.num_generations`. `<8>` is an example, which the number that was written replaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from strop.config.load.config_tree import ConfigTree, KeyPath, split_key
from strop.config.redact import redacted_repr
from strop.config.schema.run import all_keys, field_at, section_types_at
from strop.errors import Fault, FaultKind
from strop.printable import closest, did_you_mean

_ROLLOUTS = "algorithm.rollouts_per_task=<8>"
_LR = "trainer.optimizer.lr=<1e-6>"
_STEPS = "trainer.duration='<10> steps', or in epochs: '2 epochs'"
_EPOCHS = "trainer.duration='<2> epochs', or in steps: '10 steps'"
_TASKS = "trainer.tasks_per_step=<64>, the number of tasks in one step"
_SIZE = "the size of one forward and backward pass"
_MICROBATCH = f"trainer.microbatch='<8> sequences', {_SIZE}"
_RESPONSE = "data.max_response_tokens=<1024>"
_KL = "algorithm.kl_loss.coef=<0.001> in the loss, or algorithm.kl_reward.coef in the reward"
_SAVE = "checkpoint.every='<10> steps'"
_TEST = "evaluate.every='<10> steps'"
_NO_VIDEO = "nothing: Strop trains on text and images, and not on video or audio"

_EXAMPLE = re.compile(r"<([^<>]*)>")

FAMILIAR_NAMES: Mapping[str, str] = {
    "r": "model.lora.rank=<16>",
    "lora_r": "model.lora.rank=<16>",
    "lora_rank": "model.lora.rank=<16>",
    "lora_alpha": "model.lora.alpha=<32>",
    "lora_target_modules": "model.lora.targets=all-linear",
    "target_modules": "model.lora.targets=all-linear",
    "n": _ROLLOUTS,
    "num_generations": _ROLLOUTS,
    "repeat_times": _ROLLOUTS,
    "group_size": _ROLLOUTS,
    "continue_final_message": "data.train.final_assistant=continue, which continues a last message of the assistant",
    "beta": _KL,
    "kl_coef": _KL,
    "kl_loss_coef": _KL,
    "entropy_coeff": "algorithm.entropy_coef=<0.001>",
    "learning_rate": _LR,
    "total_epochs": _EPOCHS,
    "num_train_epochs": _EPOCHS,
    "epochs": _EPOCHS,
    "max_steps": _STEPS,
    "total_steps": _STEPS,
    "total_training_steps": _STEPS,
    "batch_size": _TASKS,
    "train_batch_size": _TASKS,
    "ppo_mini_batch_size": "trainer.tasks_per_update=<16>, the number of tasks in one update",
    "per_device_train_batch_size": f"{_MICROBATCH}, and trainer.tasks_per_step, the number of tasks in one step",
    "micro_batch_size": _MICROBATCH,
    "micro_batch_size_per_gpu": _MICROBATCH,
    "gradient_accumulation_steps": f"trainer.microbatch='8 sequences' or '16384 tokens', {_SIZE}",
    "max_tokens": _RESPONSE,
    "max_new_tokens": _RESPONSE,
    "max_completion_length": _RESPONSE,
    "max_response_length": _RESPONSE,
    "max_prompt_length": "data.max_prompt_tokens=<1024>",
    "data_parallel": "rollout.pool.engines=<2>",
    "data_parallel_size": "rollout.pool.engines=<2>",
    "grad_clip": "trainer.max_grad_norm=<1>",
    "model_name": "model.path",
    "model_name_or_path": "model.path",
    "train_files": "data.train.path",
    "val_files": "data.eval='[{name: test, path: test.parquet}]'",
    "output_dir": "output",
    "default_local_dir": "output",
    "experiment_name": "name",
    "logger": "record.monitors='[console, tensorboard]'",
    "report_to": "record.monitors='[console, tensorboard]'",
    "logging_steps": "nothing: each step is recorded; record.monitors says where",
    "save_freq": _SAVE,
    "save_steps": _SAVE,
    "test_freq": _TEST,
    "eval_steps": _TEST,
    "reward_funcs": "reward",
    **dict.fromkeys(
        ("quantization_config", "load_in_4bit"), "model.quantization='{bits: 4}' with model.lora"
    ),
    "load_in_8bit": "model.quantization='{bits: 8}' with model.lora",
    "bf16": "model.compute_dtype=bfloat16",
    "image_key": "data.train.images=images",
    "videos": _NO_VIDEO,
    "video_key": _NO_VIDEO,
    "audios": _NO_VIDEO,
    "audio_key": _NO_VIDEO,
}


def familiar_hint(dotted: str, last: str, value: Any) -> str:
    """` In a run file write ...` for the last part of a key that has this value; empty if it is no familiar name, or
    already that key."""
    advice = FAMILIAR_NAMES.get(last)
    if advice is None or advice.partition("=")[0] == dotted:
        return ""
    number = (
        str(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else ""
    )
    return f" In a run file write {_EXAMPLE.sub(lambda example: number or example[1], advice)}."


_PLAIN = {
    "int_parsing": "expected an integer",
    "int_type": "expected an integer",
    "int_from_float": "expected an integer",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected a string",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping (`key: value` lines)",
    "model_type": "expected a section (`key: value` lines)",
    "model_attributes_type": "expected a section (`key: value` lines)",
    "finite_number": "expected a finite number",
}

_COMPOUND = re.compile(r"(?<![a-z])[a-z]++(?:[._][a-z0-9]+)+")
"""A name of several words, which cannot be prose."""
_GENERIC = frozenset({"args", "enable", "every", "function", "model", "name", "path", "type", "weight"})
"""Names of keys that mean something else in each section."""


@dataclass(frozen=True, slots=True)
class OwnerHint:
    """The configuration formats to which an unknown key belongs."""

    sentence: str = ""
    """Names the format; begins with a space. Empty if no other format has the key."""
    field: str | None = None
    """The run file's field of the same meaning."""


KeyOwner = Callable[[str, bool], OwnerHint]
"""Finds the configuration formats that have a dotted key; if the second argument is true, also those with a key of the
same last name."""


def unknown_owner(dotted: str, by_last_name: bool) -> OwnerHint:
    """The `KeyOwner` that knows no other configuration format."""
    return OwnerHint()


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """A fault that the schema finds in one section or value."""

    keys: KeyPath
    """Path of the section or value."""
    fault: Fault
    reason: str
    """Message without its place."""
    between_fields: bool
    """Whether the fault is between the fields of the section."""
    meant: KeyPath | None
    """Key that an unknown key resembles."""


def schema_faults(
    error: ValidationError, values: Any, tree: ConfigTree, origin: str, key_owner: KeyOwner
) -> list[SchemaFault]:
    """The faults of pydantic's error. A section that contains another fault has none of its own."""
    faults: dict[KeyPath, list[SchemaFault]] = {}
    for detail in error.errors():
        keys = _keys(detail, values)
        faults.setdefault(keys, [*_faults(detail, keys, values, tree, origin, key_owner)])
    inner = [
        keys
        for keys in faults
        if not any(len(other) > len(keys) and other[: len(keys)] == keys for other in faults)
    ]
    return [fault for keys in inner for fault in faults[keys]]


def _faults(
    detail: ErrorDetails, keys: KeyPath, values: Any, tree: ConfigTree, origin: str, key_owner: KeyOwner
) -> Iterator[SchemaFault]:
    """The faults of one pydantic error; the faults between the fields of one section are one error."""
    kind = detail["type"]
    for reason in _reason(detail, keys, values, key_owner).split("\n"):
        where = _location(kind, reason, keys, tree) or tree.locator(origin)(keys)
        message = f"{where}: {sentence(users_words(reason, tree, keys))}{_removal(detail, keys, tree)}"
        yield SchemaFault(
            keys, Fault(_kind(kind), message), reason, kind == "value_error", _meant(kind, keys, values)
        )


def _removal(detail: ErrorDetails, keys: KeyPath, tree: ConfigTree) -> str:
    """A sentence for a null that is to remove a value: what to write instead."""
    source = tree.source(keys)
    if detail["input"] is not None or detail["type"] not in _PLAIN or source is None:
        return ""
    dotted = ".".join(keys)
    if source.kind == "override":
        return (
            f" To remove the value that the file has, write ~{dotted}; where it has none, leave {dotted} out."
        )
    return f" Leave {dotted} out for its default."


def _kind(kind: str) -> FaultKind:
    if kind == "extra_forbidden":
        return FaultKind.UNKNOWN_KEY
    return FaultKind.WRONG_TYPE if kind in _PLAIN and kind != "finite_number" else FaultKind.UNSUPPORTED


def _meant(kind: str, keys: KeyPath, values: Any) -> KeyPath | None:
    """The key of the same section that an unknown key resembles."""
    return similar_key(keys, values) if kind == "extra_forbidden" else None


def similar_key(keys: KeyPath, values: Any) -> KeyPath | None:
    """The key of the same section that a key without a field resembles."""
    names = {name for section in section_types_at(keys[:-1], values) for name in section.model_fields}
    near = closest(keys[-1], names - {keys[-1]})
    return None if near is None else (*keys[:-1], near)


def sentence(reason: str) -> str:
    """The reason with a mark at its end."""
    return reason if reason.endswith(("?", ".")) else f"{reason}."


def users_words(reason: str, tree: ConfigTree, above: KeyPath = ()) -> str:
    """The reason with the key that the user wrote in place of each field that a foreign key decided."""

    def written(match: re.Match[str]) -> str:
        for keys in ((*above, *split_key(match[0])), split_key(match[0])):
            source = tree.sources.get(keys)
            if source is not None and source.foreign_key:
                return source.foreign_key.partition("=")[0]
        return match[0]

    return _COMPOUND.sub(written, reason)


def _location(kind: str, reason: str, keys: KeyPath, tree: ConfigTree) -> str | None:
    """Return the location of the first key that a fault between the fields of one section names."""
    if kind != "value_error" or not isinstance(tree.get(keys), dict):
        return None
    source = tree.source_named_in(reason, keys)
    if source is None or source.foreign_key:
        return None if source is None else str(source)
    return ": ".join(filter(None, (str(source), ".".join(keys))))


def unknown_key(keys: KeyPath, value: Any, values: Any, key_owner: KeyOwner = unknown_owner) -> str:
    """Suggestion for a key that the schema does not have, with the value that was written: a similar key, or the format
    that has the key."""
    dotted = ".".join(keys)
    kinds = section_types_at(keys[:-1], values)
    here = list(dict.fromkeys(n for kind in kinds for n in kind.model_fields))
    owners = [str(k.model_fields["type"].default) for k in kinds if keys[-1] in k.model_fields]
    familiar = familiar_hint(dotted, keys[-1], value)
    near = None if familiar else closest(keys[-1], here)
    if owners:
        return f"; it belongs to `type: {' or '.join(owners)}`, so write that `type` in the section{_after(familiar)}"
    hint = key_owner(dotted, False)
    owned = hint.sentence
    if hint.field is not None:
        owned += familiar or f" The run file has {hint.field} for it."
    else:
        owned = familiar or owned or key_owner(dotted, near is None).sentence
    if near is not None:
        return f"{did_you_mean(keys[-1], [near])}{owned}"
    if dotted in all_keys():
        return f"; it has no effect under `type: {_type_above(keys, values)}`{_after(familiar)}"
    elsewhere = _keys_of_like_meaning(keys)
    if elsewhere and not familiar:
        return f"; did you mean {min(elsewhere, key=lambda known: known.count('.'))!r}?{owned}"
    if owned:
        return f".{owned}"
    return f"; the keys of this section are {', '.join(here)}" if here else ""


def _keys_of_like_meaning(keys: KeyPath) -> list[str]:
    """Keys of other sections with the same last name, unless the name alone does not say what it is of."""
    if keys[-1] in _GENERIC and len(keys) > 1:
        return []
    return [known for known in all_keys() if split_key(known)[-1] == keys[-1] and split_key(known) != keys]


def _after(sentence: str) -> str:
    """A further sentence after one whose mark is added later."""
    return f".{sentence}" if sentence else ""


def _type_above(keys: KeyPath, values: Any) -> str:
    """Return the `type` of the nearest section above a key; for a list of types, the first one."""
    depths = range(len(keys) - 1, 0, -1)
    kinds = (kind for depth in depths for kind in section_types_at(keys[:depth], values))
    return next(str(kind.model_fields["type"].default) for kind in kinds if "type" in kind.model_fields)


def _keys(detail: ErrorDetails, values: Any) -> KeyPath:
    """Return the key of a pydantic error, whose `loc` also contains the branches of unions."""
    keys: list[str] = []
    here: Any = values
    last = len(detail["loc"]) - 1
    for position, part in enumerate(detail["loc"]):
        if part in (here if isinstance(here, dict) else range(len(here) if isinstance(here, list) else 0)):
            here = here[part]
        elif not (position == last and detail["type"] in ("missing", "extra_forbidden")):
            continue
        keys.append(str(part))
    return tuple(keys)


def _reason(detail: ErrorDetails, keys: KeyPath, values: Any, key_owner: KeyOwner) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key{unknown_key(keys, detail['input'], values, key_owner)}"
    if kind == "missing":
        field = field_at(keys, values)
        effect = (field and field.description) or "It is required"
        return f"missing. {' '.join(effect.split())}".rstrip(".")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        names = dict.fromkeys(str(found.model_fields["type"].default) for found in section_types_at(keys, {}))
        written = context.get("tag")
        hint = did_you_mean(written, names) if isinstance(written, str) else ""
        return f"`type` must be one of {', '.join(names)}{_got(keys, written)}{hint}"
    if kind == "value_error":
        return str(context["error"]).rstrip(".")
    return value_reason(detail, keys)


def first_fault(error: ValidationError) -> str:
    """The first fault of a value in a small file, with its place in it: `config.args: expected a list, got 'x'.`"""
    detail = error.errors()[0]
    keys = tuple(map(str, detail["loc"]))
    return f"{'.'.join(keys)}{': ' if keys else ''}{sentence(value_reason(detail, keys))}"


def value_reason(detail: ErrorDetails, keys: KeyPath) -> str:
    """Reason why one value is rejected, without its place: `must be greater than 0, got 0`."""
    kind = detail["type"]
    message = _PLAIN.get(kind) or detail["msg"].replace("Input should be", "must be")
    hint = (
        "; write it in quotes" if kind == "string_type" and isinstance(detail["input"], int | float) else ""
    )
    return f"{message[0].lower()}{message[1:]}{_got(keys, detail['input'])}{hint}"


def _got(keys: KeyPath, value: Any) -> str:
    if value is None:
        return ", got nothing (null)"
    return f", got {redacted_repr(value, keys[-1] if keys else '')}"
