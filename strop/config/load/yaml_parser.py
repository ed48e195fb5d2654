"""YAML parser with limits on size, depth, aliases and numbers, so that no file exhausts time or memory."""

from __future__ import annotations

from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

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
