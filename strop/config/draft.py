"""Values as they were written, each with where that was: what a run is made from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strop.errors import ConfigError

Keys = tuple[str, ...]
"""The way to a value: `("data", "eval", "0", "path")`; dotted, `data.eval.0.path`."""
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
Locate = Callable[[Keys], str]
"""Says where a value stands, as an error message begins: `run.yaml:7: trainer.optimizer.lr`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value was said."""

    kind: Literal["file", "override", "default", "dialect", "python", "here", "stage"]
    """`dialect` is a default of the dialect's page, `here` what `--here` put in a value's place, `stage` what
    the stage before leaves."""
    where: str
    """`run.yaml:12`, `trainer.tasks_per_step=8`, ...; empty for Strop's own defaults."""
    theirs: str = ""
    """Another dialect's key that decided a field of ours, with its value: `trainer.save_freq=20`."""

    def __str__(self) -> str:
        match self.kind:
            case "default":
                return "default"
            case "override":
                return f"override {self.where}"
            case _:
                return self.where


def split(dotted: str) -> Keys:
    """`a.b.0` -> `("a", "b", "0")`."""
    return tuple(dotted.split("."))


def plain(value: Any) -> Any:
    """A copy in dicts and lists, which can be changed."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def walk(value: Any, at: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """A value and everything inside it, each with the way to it."""
    yield at, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*at, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, (*at, str(index)))


@dataclass(slots=True)
class Draft:
    """A tree of dicts, lists and plain values that is still being written."""

    values: dict[str, Any] = field(default_factory=dict)
    said: dict[Keys, Source] = field(default_factory=dict)

    def has(self, keys: Keys) -> bool:
        """Whether something is written there."""
        value: Any = self.values
        for key in keys:
            if isinstance(value, dict) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                return False
        return True

    def get(self, keys: Keys) -> Any:
        """What is written there, or None."""
        if not self.has(keys):
            return None
        value: Any = self.values
        for key in keys:
            value = value[int(key)] if isinstance(value, list) else value[key]
        return value

    def set(self, keys: Keys, value: Any, source: Source) -> None:
        """Write a value, in place of all that stood there. Raises ConfigError where the way is barred."""
        container: Any = self.values
        for depth in range(1, len(keys)):
            container = self._enter(container, keys[:depth], source)
        self._put(container, keys, plain(value))
        self._forget(keys)
        for depth in range(1, len(keys)):
            self.said.setdefault(keys[:depth], source)
        for inside, _ in walk(plain(value), keys):
            self.said[inside] = source

    def delete(self, keys: Keys) -> None:
        """Take a written value away."""
        container: Any = self.get(keys[:-1])
        del container[int(keys[-1]) if isinstance(container, list) else keys[-1]]
        self._forget(keys)

    def source(self, keys: Keys) -> Source | None:
        """Where the value there was said, or the short form that stands for it; None for a default."""
        for depth in range(len(keys), 0, -1):
            if keys[:depth] in self.said:
                whole = depth == len(keys) or not isinstance(self.get(keys[:depth]), dict | list)
                return self.said[keys[:depth]] if whole else None
        return None

    def nearest(self, keys: Keys) -> Source | None:
        """Where the value there was written, or else the section that it would stand in."""
        ways = (keys[:depth] for depth in range(len(keys), -1, -1))
        return next((self.said[way] for way in ways if way in self.said), None)

    def locator(self, origin: str) -> Locate:
        """How to say where a value stands; `origin` names the whole, for what nobody wrote."""

        def locate(keys: Keys) -> str:
            where = self.nearest(keys) or origin
            return f"{where}: {'.'.join(keys)}" if any(keys) else str(where)

        return locate

    def named(self, reason: str, above: Keys = ()) -> Source | None:
        """Where the first value that a sentence names, from `above` or in whole, was written by someone."""
        for word in _NAME.findall(reason):
            for keys in ((*above, *split(word)), split(word)):
                source = self.source(keys)
                if source is not None and source.kind != "dialect":
                    return source
        return None

    def merge(self, keys: Keys, value: Any, source: Source) -> None:
        """Write a value as Hydra does: the keys of a mapping join those that are there.

        A mapping of another `type` is another kind of thing, and takes the whole place.
        """
        there = self.get(keys)
        if not (isinstance(value, dict) and isinstance(there, dict)) or _other_kind(value, there):
            self.set(keys, value, source)
            return
        for key, item in value.items():
            self.merge((*keys, str(key)), item, source)

    def _forget(self, keys: Keys) -> None:
        for known in [known for known in self.said if known[: len(keys)] == keys]:
            del self.said[known]

    def _enter(self, container: Any, keys: Keys, source: Source) -> Any:
        key = keys[-1]
        if isinstance(container, list):
            return container[_index(container, keys, source)]
        if container.get(key) is None:
            container[key] = {}
        if not isinstance(container[key], dict | list):
            raise ConfigError(
                f"{source}: {'.'.join(keys)} is {container[key]!r} here, which has no keys of its own; "
                f"write the whole section, {'.'.join(keys)}={{...}}."
            )
        return container[key]

    @staticmethod
    def _put(container: Any, keys: Keys, value: Any) -> None:
        if isinstance(container, list):
            container[_index(container, keys, None)] = value
        else:
            container[keys[-1]] = value


def _other_kind(value: dict[str, Any], there: dict[str, Any]) -> bool:
    return "type" in value and value["type"] != there.get("type", value["type"])


def _index(items: list[Any], keys: Keys, source: Source | None) -> int:
    name = ".".join(keys[:-1])
    if not keys[-1].isdigit() or int(keys[-1]) >= len(items):
        prefix = f"{source}: " if source else ""
        raise ConfigError(
            f"{prefix}{name} is a list of {len(items)}, and {'.'.join(keys)} is no item of it; "
            "items count from 0, and to add some, write the whole list."
        )
    return int(keys[-1])
