"""Plain values -> a `Run`, or one paragraph that says what is wrong, where, and what instead."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from strop.config.draft import Draft, Keys, split
from strop.config.redact import brief
from strop.config.schema import Run
from strop.config.schema.walk import all_keys, field_at, sections_at
from strop.config.suggest import closest, did_you_mean
from strop.errors import ConfigError

_PLAIN = {
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "string_type": "expected text",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping (`key: value` lines)",
    "model_type": "expected a section (`key: value` lines)",
    "model_attributes_type": "expected a section (`key: value` lines)",
    "finite_number": "expected a finite number",
}


def validate(values: dict[str, Any], draft: Draft, origin: str) -> Run:
    """Check resolved values, which `draft` says the places of. Raises ConfigError with one line for each
    thing that is wrong."""
    try:
        return Run.model_validate(values)
    except ValidationError as error:
        faults: dict[Keys, str] = {}
        for detail in error.errors():
            keys = _keys(detail, values)
            reason = _reason(detail, keys, values)
            where = _place(detail, keys, draft) or draft.locator(origin)(keys)
            faults.setdefault(keys, f"{where}: {reason}{'' if reason.endswith(('?', '.')) else '.'}")
        inner = [keys for keys in faults if not any(_inside(other, keys) for other in faults)]
        raise ConfigError("\n".join(faults[keys] for keys in inner)) from None


def _place(detail: ErrorDetails, keys: Keys, draft: Draft) -> str | None:
    """Of what does not fit together in a section: where the first value that the reason names stands."""
    if detail["type"] != "value_error" or not isinstance(draft.get(keys), dict):
        return None
    source = draft.named(detail["msg"], keys)

    return None if source is None else ": ".join(filter(None, (str(source), ".".join(keys))))


def unknown_key(keys: Keys, values: Any) -> str:
    """What to say of a key that the schema does not have: what it may be a slip of, and whose it is."""
    from strop.config.dialects.whose import whose  # dialects end in a check of the run that they became

    dotted = ".".join(keys)
    kinds = sections_at(keys[:-1], values)
    here = list(dict.fromkeys(n for kind in kinds for n in kind.model_fields))
    owners = [str(k.model_fields["type"].default) for k in kinds if keys[-1] in k.model_fields]
    if owners:
        return f"; it is of `type: {' or '.join(owners)}`, so write that `type` beside it"
    near = closest(keys[-1], here)
    owned = whose(dotted, "strop", by_last_name=near is None)
    if near is not None:
        return f"{did_you_mean(keys[-1], [near])}{owned}"
    if dotted in all_keys():
        kind = next(iter(sections_at(keys[:-1], values))).model_fields["type"].default
        return f"; it means nothing under `type: {kind}`"
    elsewhere = [known for known in all_keys() if split(known)[-1] == keys[-1] and known != dotted]
    if elsewhere:
        return f"; did you mean {min(elsewhere, key=lambda known: known.count('.'))!r}?{owned}"
    if owned:
        return f".{owned}"
    return f"; this section has {', '.join(here)}" if here else ""


def _inside(keys: Keys, outer: Keys) -> bool:
    return len(keys) > len(outer) and keys[: len(outer)] == outer


def _keys(detail: ErrorDetails, values: Any) -> Keys:
    """The dotted key of a pydantic error, whose `loc` also names the branches of unions."""
    keys: list[str] = []
    here: Any = values
    last = len(detail["loc"]) - 1
    for place, part in enumerate(detail["loc"]):
        if part in (here if isinstance(here, dict) else range(len(here) if isinstance(here, list) else 0)):
            here = here[part]
        elif not (place == last and detail["type"] in ("missing", "extra_forbidden")):
            continue
        keys.append(str(part))
    return tuple(keys)


def _reason(detail: ErrorDetails, keys: Keys, values: Any) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key{unknown_key(keys, values)}"
    if kind == "missing":
        field = field_at(keys, values)
        effect = (field and field.description) or "It must be given"
        return f"missing. {' '.join(effect.split())}".rstrip(".")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        names = [str(found.model_fields["type"].default) for found in sections_at(keys, {})]
        return f"`type` must be one of {', '.join(names)}{_got(keys, context.get('tag'))}"
    if kind == "value_error":
        return str(context["error"]).rstrip(".")
    message = _PLAIN.get(kind) or detail["msg"].replace("Input should be", "must be")
    hint = (
        "; write it in quotes" if kind == "string_type" and isinstance(detail["input"], int | float) else ""
    )
    return f"{message[0].lower()}{message[1:]}{_got(keys, detail['input'])}{hint}"


def _got(keys: Keys, value: Any) -> str:
    if value is None:
        return ", got nothing (null)"
    return f", got {brief(value, keys[-1] if keys else '')}"
