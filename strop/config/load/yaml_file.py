"""Reading of YAML files to a `ConfigTree`, each value with its file and line, within limits of size and depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from strop.config.load.config_tree import ConfigTree, KeyPath, Source
from strop.config.paths import data_file_name
from strop.errors import ConfigError
from strop.workers.files import open_regular

MAX_DEPTH = 50
"""Maximum number of nested sections and lists."""
MAX_VALUES = 10_000
"""Maximum number of values after every alias is replaced by what it names."""
_MAX_NUMBER = 100
"""Maximum number of characters of a number."""
_TOO_DEEP = f"more than {MAX_DEPTH} sections or lists are nested"
_PREFIX = "tag:yaml.org,2002:"
_NUMBERS = (f"{_PREFIX}int", f"{_PREFIX}float")
_TAGS: dict[type[yaml.Node], tuple[str, ...]] = {
    yaml.ScalarNode: ("str", "int", "float", "bool", "null", "merge"),
    yaml.SequenceNode: ("seq",),
    yaml.MappingNode: ("map",),
}
"""Tags of each kind of node."""
_INVALID_SCALAR = (ValueError, LookupError, AttributeError, TypeError, OverflowError)
"""Exceptions of PyYAML's constructors for a scalar that its tag does not allow, such as `!!int x`."""


class YamlLimitError(yaml.MarkedYAMLError):
    """A document that is valid YAML, and that a configuration cannot be."""

    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        super().__init__(problem=problem, problem_mark=mark)
        self.line = mark.line + 1


def parse_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """Parse one YAML document as OmegaConf does (`1e-6` is a number, a duplicate key is an error).

    Returns its node and its value; None for an empty document. Raises yaml.YAMLError for a syntax error, and
    YamlLimitError for a document beyond the limits.
    """
    loader = BoundedLoader(text)
    node = loader.get_single_node()
    return node, None if node is None else loader.construct_document(node)


class BoundedLoader(get_yaml_loader()):  # type: ignore[misc]
    """OmegaConf's loader with limits, and without tags of other types."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[int, tuple[int, int]] = {}
        """Number of values and of levels in each composed node, aliases replaced."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """Compose a node; an alias gives the node of its anchor."""
        mark, is_alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlLimitError(_TOO_DEEP, mark)
        node: yaml.Node = super().compose_node(parent, index)
        self._depth -= 1
        if not is_alias:
            self._check_tag(node)
            self._sizes[id(node)] = self._measure(node)
        elif id(node) not in self._sizes:
            raise YamlLimitError("this anchor contains itself, which a configuration cannot do", mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct a value. Raises ConstructorError for a scalar that its tag does not allow."""
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        try:
            return super().construct_object(node, deep)
        except _INVALID_SCALAR:
            kind = node.tag.removeprefix(_PREFIX)
            raise YamlLimitError(
                f"{node.value[:60]!r} is not a value of the type !!{kind}", node.start_mark
            ) from None

    def _check_tag(self, node: yaml.Node) -> None:
        if node.tag.removeprefix(_PREFIX) not in _TAGS[type(node)]:
            shown = node.tag.replace(_PREFIX, "!!")[:60]
            raise YamlLimitError(
                f"the tag {shown!r} is not supported here; write a string in quotes, a number, true, false or null",
                node.start_mark,
            )
        if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER:
            raise YamlLimitError(
                f"a number of {len(node.value):,} characters; write it shorter", node.start_mark
            )

    def _measure(self, node: yaml.Node) -> tuple[int, int]:
        inside = [self._sizes[id(child)] for child in _children(node)]
        values = 1 + sum(size for size, _ in inside)
        depth = 1 + max((depth for _, depth in inside), default=0)
        if values > MAX_VALUES:
            raise YamlLimitError(f"more than {MAX_VALUES:,} values, with aliases replaced", node.start_mark)
        if depth > MAX_DEPTH:
            raise YamlLimitError(_TOO_DEEP, node.start_mark)
        return values, depth


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


_MAX_SHOWN = 5
"""Maximum number of files that a message lists."""
MAX_BYTES = 200_000
"""Maximum size of a configuration file."""


def read_yaml(path: Path, *, regular: bool = False) -> ConfigTree:
    """Read a YAML mapping as OmegaConf does (`1e-6` is a number, a duplicate key is an error).

    A FIFO is read to its end, unless only `regular` files are wanted: those that another file names.

    Raises ConfigError for a file that is missing, empty or not a mapping, and for a syntax error,
    with its line and column.
    """
    _require_configuration(path)
    try:
        node, values = parse_yaml(read_bounded(path, regular=regular))
    except YamlLimitError as error:
        raise ConfigError(f"{path}:{error.line}: {error.problem}.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        reason = " ".join(filter(None, (error.context, error.problem)))
        raise ConfigError(f"{place}: this is not valid YAML: {reason}.") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: this is not valid YAML: {reason}.") from None
    if node is None:
        raise ConfigError(f"{path}: the file is empty; write a run file (`strop init` does).")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: expected `key: value` lines, got {_kind(values)}.")
    sources: dict[KeyPath, Source] = {}
    _mark(node, path, (), sources)
    return ConfigTree(values, sources)


def _require_configuration(path: Path) -> None:
    """Raise ConfigError for a file of rows, and for a folder, with the command that reads it."""
    if path.is_file() and path.suffix != ".json" and data_file_name(path.name) is not None:
        raise ConfigError(
            f"{path}: this is a file of rows, and no run file. `strop init --train {path}` writes a run file for it; "
            f"in one that you have, write data.train.path={path}."
        )
    if not path.is_dir():
        return
    if (path / "config.json").is_file():
        raise ConfigError(
            f"{path}: this is a model's folder, and no run file. `strop init --model {path}` writes a run file for it, "
            f"and `strop chat {path}` talks with the model."
        )
    found = ", ".join(sorted(each.name for each in path.glob("*.y*ml"))[:_MAX_SHOWN])
    raise ConfigError(
        f"{path}: this is a folder, and no run has started in it. Name "
        f"{f'a file in it: {found}' if found else 'a run file, or the folder of a run, <output>/<project>/<name>'}."
    )


def read_bounded(path: Path, *, regular: bool = False) -> str:
    """Read a text file of a configuration. Raises ConfigError if it is missing, too large, or not UTF-8.

    A FIFO is read to its end, unless only `regular` files are wanted: those that another file names.
    """
    try:
        with open_regular(path) if regular else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"{path}: the file is larger than {MAX_BYTES:,} bytes, the limit of a configuration."
            )
        return content.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not a text file in UTF-8: {error.reason} at byte {error.start}."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{path}: cannot be read: {error}.") from None


def _kind(values: Any) -> str:
    return "a list" if isinstance(values, list) else f"the single value {str(values)[:40]!r}"


def _mark(node: yaml.Node, path: Path, at: KeyPath, sources: dict[KeyPath, Source]) -> None:
    """Record the line of every node. Merges (`<<`) are already resolved in constructed nodes."""
    sources.setdefault(at, Source("file", f"{path}:{node.start_mark.line + 1}"))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            where = f"{path}:{key.start_mark.line + 1}"
            if key.tag != "tag:yaml.org,2002:str":
                raise ConfigError(
                    f"{where}: the key {str(key.value)[:60]!r} is not a string; write it in quotes."
                )
            inside = (*at, key.value)
            sources[inside] = Source("file", where)
            _mark(value, path, inside, sources)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _mark(value, path, (*at, str(index)), sources)
