"""Tree of configuration values, each with the source that wrote it; limits on these values; and their interpolations
`${data.max_prompt_tokens}`, `${oc.env:HOME}`, `${oc.env:DATA,data}`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from strop.config.redact import may_have_secret, remember_environment
from strop.config.schema.base import MAX_INTEGER
from strop.errors import ConfigError, Fault, FaultKind

KeyPath = tuple[str, ...]
"""Path to a value: `("data", "eval", "0", "path")`; dotted, `data.eval.0.path`."""
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
Locate = Callable[[KeyPath], str]
"""Returns the location of a value for the start of a message: `run.yaml:7: trainer.optimizer.lr`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a value."""

    kind: Literal["file", "override", "default", "dialect", "python", "here", "stage"]
    """Kind of source; `dialect` is a default of another dialect, `here` a replacement by `--here`, `stage`
    the model of the previous stage."""
    location: str
    """Location, such as `run.yaml:12` or `trainer.tasks_per_step=8`; empty for Strop's defaults."""
    foreign_key: str = ""
    """Key of another dialect that determined the value, with its own value: `trainer.save_freq=20`."""

    def __str__(self) -> str:
        match self.kind:
            case "default":
                return "default"
            case "override":
                return f"override {self.location}"
            case _:
                return self.location


def split_key(dotted: str) -> KeyPath:
    """Split `a.b.0` into `("a", "b", "0")`."""
    return tuple(dotted.split("."))


def to_plain(value: Any) -> Any:
    """Copy mappings and sequences to dicts and lists."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def iter_values(value: Any, at: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield a value and all values inside it, each with its path."""
    yield at, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from iter_values(item, (*at, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from iter_values(item, (*at, str(index)))


def _interpolates(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


@dataclass(slots=True)
class ConfigTree:
    """Mutable tree of dicts, lists and scalar values, with the source of each value."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[KeyPath, Source] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    """Faults that were found so far; the validation of the tree reports them with its own."""
    faulty: set[KeyPath] = field(default_factory=set)
    """Keys with a fault. A further fault that may only follow from their values is not reported."""
    replaced: list[tuple[KeyPath, str]] = field(default_factory=list)
    """Interpolations that later values replaced, each with its path."""

    def add_fault(self, kind: FaultKind, message: str, *keys: KeyPath) -> None:
        """Record a fault; `keys` are the keys whose values it leaves unknown."""
        self.faults.append(Fault(kind, message))
        self.faulty.update(keys)

    def has(self, keys: KeyPath) -> bool:
        """Return whether the tree has a value at these keys."""
        value: Any = self.values
        for key in keys:
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                return False
        return True

    def get(self, keys: KeyPath) -> Any:
        """Return the value at these keys; None if there is none."""
        if not self.has(keys):
            return None
        value: Any = self.values
        for key in keys:
            value = value[int(key)] if isinstance(value, list) else value[key]
        return value

    def set(self, keys: KeyPath, value: Any, source: Source) -> None:
        """Set a value, which replaces the previous one. Raises ConfigError if a key above it has no keys."""
        container: Any = self.values
        for depth in range(1, len(keys)):
            container = self._enter(container, keys[:depth], source)
        self.replaced += [(at, text) for at, text in iter_values(self.get(keys), keys) if _interpolates(text)]
        self._put(container, keys, to_plain(value))
        self._forget(keys)
        for depth in range(1, len(keys)):
            self.sources.setdefault(keys[:depth], source)
        for inside, _ in iter_values(to_plain(value), keys):
            self.sources[inside] = source

    def rename(self, keys: KeyPath, name: str) -> None:
        """Give a key of a mapping another name; its position, value and sources stay."""
        container = self.get(keys[:-1]) if keys[1:] else self.values
        items = [(name if key == keys[-1] else key, item) for key, item in container.items()]
        container.clear()
        container.update(items)
        renamed = (*keys[:-1], name)
        self.sources = {
            (*renamed, *known[len(keys) :]) if known[: len(keys)] == keys else known: source
            for known, source in self.sources.items()
        }

    def replace_value(self, keys: KeyPath, value: Any) -> None:
        """Replace a value without keys of its own; its source stays."""
        self._put(self.get(keys[:-1]) if keys[1:] else self.values, keys, value)

    def delete(self, keys: KeyPath) -> None:
        """Delete a value."""
        container: Any = self.get(keys[:-1]) if keys[1:] else self.values
        del container[int(keys[-1]) if isinstance(container, list) else keys[-1]]
        self._forget(keys)

    def source(self, keys: KeyPath) -> Source | None:
        """Return the source of a value, or of the shorthand that contains it; None for a default."""
        for depth in range(len(keys), 0, -1):
            if keys[:depth] in self.sources:
                whole = depth == len(keys) or not isinstance(self.get(keys[:depth]), dict | list)
                return self.sources[keys[:depth]] if whole else None
        return None

    def nearest_source(self, keys: KeyPath) -> Source | None:
        """Return the source of a value, or of the nearest section above it."""
        paths = (keys[:depth] for depth in range(len(keys), -1, -1))
        return next((self.sources[path] for path in paths if self._is_source_of(path, keys)), None)

    def _is_source_of(self, path: KeyPath, keys: KeyPath) -> bool:
        """Whether the source of `path` says where `keys` are written. An override of another key of a section
        does not."""
        source = self.sources.get(path)
        if source is None or source.kind != "override" or path == keys:
            return source is not None
        return self.has(keys) or source.location.lstrip("+").partition("=")[0] == ".".join(path)

    def locator(self, origin: str) -> Locate:
        """Return a `Locate`; `origin` is the name of the whole configuration, for values without a source."""

        def locate(keys: KeyPath) -> str:
            where = self.nearest_source(keys) or origin
            if isinstance(where, Source) and where.foreign_key:
                return str(where)  # The source names the key that the user wrote.
            return f"{where}: {'.'.join(keys)}" if any(keys) else str(where)

        return locate

    def source_named_in(self, reason: str, above: KeyPath = ()) -> Source | None:
        """Return the source of the first written key that a sentence names, relative to `above` or in
        full."""
        for word in _NAME.findall(reason):
            for keys in ((*above, *split_key(word)), split_key(word)):
                source = self.source(keys)
                if source is not None and source.kind != "dialect":
                    return source
        return None

    def merge(self, keys: KeyPath, value: Any, source: Source) -> None:
        """Merge a value as Hydra does: the keys of a mapping are added to the existing ones. A mapping with
        another `type` replaces the existing one.
        """
        existing = self.get(keys)
        if not (isinstance(value, dict) and isinstance(existing, dict)) or _changes_type(value, existing):
            self.set(keys, value, source)
            return
        for key, item in value.items():
            self.merge((*keys, str(key)), item, source)

    def _forget(self, keys: KeyPath) -> None:
        for known in [known for known in self.sources if known[: len(keys)] == keys]:
            del self.sources[known]

    def _enter(self, container: Any, keys: KeyPath, source: Source) -> Any:
        key = keys[-1]
        if isinstance(container, list):
            return container[_index(container, keys, source)]
        if container.get(key) is None:
            container[key] = {}
        if not isinstance(container[key], dict | list):
            raise ConfigError(
                f"{source}: {'.'.join(keys)} is {container[key]!r}, which has no keys; write the "
                f"whole section, {'.'.join(keys)}={{...}}."
            )
        return container[key]

    @staticmethod
    def _put(container: Any, keys: KeyPath, value: Any) -> None:
        if isinstance(container, list):
            container[_index(container, keys, None)] = value
        else:
            container[keys[-1]] = value


def _changes_type(value: dict[str, Any], existing: dict[str, Any]) -> bool:
    return "type" in value and value["type"] != existing.get("type", value["type"])


def _index(items: list[Any], keys: KeyPath, source: Source | None) -> int:
    name = ".".join(keys[:-1])
    if not keys[-1].isdigit() or int(keys[-1]) >= len(items):
        prefix = f"{source}: " if source else ""
        raise ConfigError(
            f"{prefix}{name} is a list of {len(items)} items, and {'.'.join(keys)} is not one of them; "
            "positions start at 0. To add items, write the whole list."
        )
    return int(keys[-1])


_MAX_INTERPOLATED = 10_000
"""Maximum number of characters of a text with interpolations."""
_MAX_RESOLVED = 100_000
"""Maximum number of values and characters that the interpolations of one value give together."""
_MAX_NESTED = 5
"""Maximum number of interpolations inside each other, as in `${a.${b}}`."""
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_MAX_CHAIN = 100
"""Maximum number of values that lead from an interpolation to a text without one."""
_REFERENCE = re.compile(r"\$\{\s*(?:oc\.[a-z.]+:)?\s*(?P<dots>\.*)(?P<key>[^${},:]*)")


def check_values(values: Any, locate: Locate) -> None:
    """Raise ConfigError for text that no file or terminal can hold, and for integers beyond 64 bits."""
    for keys, value in iter_values(values):
        for text in (value, keys[-1] if keys else None):
            odd = _NOT_TEXT.search(text) if isinstance(text, str) else None
            if odd:
                raise ConfigError(f"{locate(keys)}: contains {_describe(odd[0])}; remove it.")
        if isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
            raise ConfigError(f"{locate(keys)}: the integer does not fit into 64 bits; write a smaller one.")


def _describe(character: str) -> str:
    if character == "\0":
        return "a NUL character"
    return f"the character \\u{ord(character):04x}, half of a surrogate pair, which is not valid text"


def is_deeper(value: Any, limit: int) -> bool:
    """Return whether more than `limit` lists and mappings are inside each other."""
    level = [value]
    for _ in range(limit + 1):
        inside = (
            item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            for item in level
        )
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def check_interpolations(values: dict[str, Any], locate: Locate) -> None:
    """Raise ConfigError for interpolations that refer to themselves, or that grow beyond the limits."""
    sizes: dict[KeyPath, float] = {}
    for keys, value in iter_values(values):
        if isinstance(value, str) and "${" in value:
            nested = max(text.count("${") for text in re.split(r"\}", value))
            if len(value) > _MAX_INTERPOLATED or nested > _MAX_NESTED:
                raise ConfigError(
                    f"{locate(keys)}: the interpolation is too long or too deeply nested; the limits are "
                    f"{_MAX_INTERPOLATED:,} characters and {_MAX_NESTED} levels."
                )
            size = _size(value, keys, values, sizes, ())
            if size == inf:
                raise ConfigError(f"{locate(keys)}: recursive interpolation: the value contains itself.")
            if size > _MAX_RESOLVED:
                raise ConfigError(
                    f"{locate(keys)}: its interpolations give more than {_MAX_RESOLVED:,} characters or values."
                )


def _size(
    value: Any, at: KeyPath, root: Any, sizes: dict[KeyPath, float], above: tuple[KeyPath, ...]
) -> float:
    """Return the number of characters and values of a value after resolution; infinite if it contains
    itself."""
    if at in sizes:
        return sizes[at]
    if at in above:
        return inf
    if len(above) > _MAX_CHAIN:
        return _MAX_RESOLVED + 1
    above = (*above, at)
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        size: float = 1 + sum(_size(item, (*at, str(key)), root, sizes, above) for key, item in items)
    else:
        size = len(value) + 1 if isinstance(value, str) else 1
        for named in references(value, at) if isinstance(value, str) else ():
            size += _size(value_at(root, named), named, root, sizes, above)
    sizes[at] = size if size == inf else min(size, _MAX_RESOLVED + 1)
    return sizes[at]


def references(text: str, at: KeyPath) -> list[KeyPath]:
    """Return the paths that the interpolations of a text name; `at` is the path of the text."""
    return [_named_path(match, at) for match in _REFERENCE.finditer(text)]


def _named_path(match: re.Match[str], at: KeyPath) -> KeyPath:
    """`${a.b}` names a key from the top, `${.b}` from the section of `at`, `${..b}` from the one above."""
    dots = len(match["dots"])
    key = re.sub(r"\[(\w+)\]", r".\1", match["key"]).strip(". ")
    return (*(at[: max(len(at) - dots, 0)] if dots else ()), *key.split("."))


def value_at(value: Any, keys: KeyPath) -> Any:
    """Return the value at a path; None if there is none."""
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


_UNSET = re.compile(r"Environment variable '([^']*)' not found")
_PLAIN_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}", re.ASCII)
"""An interpolation that names a key from the top."""
_OF_REFERENCES = re.compile(rf"(?:[^$\\]|{_PLAIN_REFERENCE.pattern})+", re.ASCII)
"""A text whose interpolations all name a key from the top."""
_OF_ENVIRONMENT = re.compile(r"(?:[^$\\]|\$\{oc\.env:[^${}\\]*\})+")
"""A text whose interpolations all name an environment variable, so that it depends on no other value."""
_PLAIN_TYPES = (str, int, float, bool, type(None))

MISSING = "???"
"""OmegaConf's mark of a value that must be given."""


class UnresolvedError(ConfigError):
    """A value that cannot be resolved."""

    def __init__(self, message: str, keys: KeyPath) -> None:
        super().__init__(message)
        self.keys = keys


def resolve_interpolations(values: dict[str, Any], locate: Locate) -> dict[str, Any]:
    """Resolve all interpolations as OmegaConf does. Raises UnresolvedError for one that cannot be resolved, and
    ConfigError for values beyond the limits."""
    check_interpolations(values, locate)
    for _, value in iter_values(values):
        if isinstance(value, str):
            remember_environment(value)
    try:
        resolved = _resolve(values, ConfigTree(values))
    except _NeedsOmegaConfError:
        resolved = _resolve_with_omegaconf(values, locate)
    check_values(resolved, locate)
    return {str(key): value for key, value in resolved.items()}


class _NeedsOmegaConfError(Exception):
    """A configuration with more than plain values and simple interpolations, or with an error."""


def _resolve(value: Any, tree: ConfigTree) -> Any:
    """A value with its interpolations resolved. OmegaConf would build a node for each of the many values without one.

    Raises _NeedsOmegaConfError for all that only OmegaConf resolves or explains.
    """
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise _NeedsOmegaConfError
        return {key: _resolve(item, tree) for key, item in value.items()}
    if type(value) is list:
        return [_resolve(item, tree) for item in value]
    if type(value) is str and "${" in value:
        value = _resolve_text(value, tree)
    elif type(value) not in _PLAIN_TYPES:
        raise _NeedsOmegaConfError
    if value == MISSING:
        raise _NeedsOmegaConfError
    return value


def _resolve_text(text: str, tree: ConfigTree) -> Any:
    if _OF_ENVIRONMENT.fullmatch(text):
        return _to_container({"text": text})["text"]
    if not _OF_REFERENCES.fullmatch(text):
        raise _NeedsOmegaConfError

    def target(match: re.Match[str]) -> Any:
        keys = split_key(match[1])
        if not tree.has(keys):
            raise _NeedsOmegaConfError
        return _resolve(tree.get(keys), tree)

    def target_text(match: re.Match[str]) -> str:
        value = target(match)
        if isinstance(value, dict | list):
            raise _NeedsOmegaConfError
        return str(value)

    whole = _PLAIN_REFERENCE.fullmatch(text)
    return target(whole) if whole else _PLAIN_REFERENCE.sub(target_text, text)


def _to_container(values: dict[str, Any]) -> dict[Any, Any]:
    """The resolved values. Raises _NeedsOmegaConfError for an error, whose place these values may not know."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise _NeedsOmegaConfError from error
    assert isinstance(resolved, dict)
    return resolved


def _resolve_with_omegaconf(values: dict[str, Any], locate: Locate) -> dict[Any, Any]:
    """The values, all resolved by OmegaConf. Raises UnresolvedError."""
    try:
        return _to_container(values)
    except _NeedsOmegaConfError as failure:
        error: Any = failure.__cause__
        keys = split_key(re.sub(r"\[(\d+)\]", r".\1", error.full_key or ""))
        raise UnresolvedError(f"{locate(keys)}: {_reason(error)}.", keys) from None


def environment_texts(values: dict[str, Any]) -> dict[KeyPath, str]:
    """Return the texts that take a possible secret from the environment, themselves or through another key."""

    def depends(value: Any, at: KeyPath, above: tuple[KeyPath, ...]) -> bool:
        if at in above:
            return False
        if isinstance(value, dict | list):
            return any(
                depends(item, keys, (*above, at)) for keys, item in iter_values(value, at) if keys != at
            )
        if not isinstance(value, str) or "${" not in value:
            return False
        named = references(value, at)
        return may_have_secret(value) or any(
            depends(value_at(values, keys), keys, (*above, at)) for keys in named
        )

    return {
        keys: value
        for keys, value in iter_values(values)
        if isinstance(value, str) and depends(value, keys, ())
    }


def _reason(error: Exception) -> str:
    text = str(error).split("\n    full_key")[0]
    unset = _UNSET.search(text)
    if unset:
        name = unset[1]
        return f"the environment variable {name!r} is not set; set it, or write ${{oc.env:{name},default}}"
    text = f"{text[0].lower()}{text[1:]}"
    kind = type(error).__name__
    if kind == "MissingMandatoryValue":
        return "'???' marks a value that must be given; write it in the file or as an override"
    if kind == "InterpolationKeyError":
        return f"{text}; ${{...}} needs the full dotted key of another value of this configuration"
    if kind == "UnsupportedInterpolationType":
        return f"{text}; write ${{a.key}}, ${{oc.env:NAME}} or ${{oc.decode:...}}"
    if kind == "GrammarParseError":
        return f"the interpolation cannot be parsed ({text}); write a literal '${{' as '\\${{'"
    return " ".join(text.split()).rstrip(".")
