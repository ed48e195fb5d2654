r"""Extraction of boxed answers and of the text in other commands, as the graders of MATH, PRM800K and their
descendants do it."""

from __future__ import annotations

_BARE = "\\boxed "


def last_box_of_math(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or, without any, `\fbox{...}`; None if there is none or it is not closed.

    A `\boxed` that a space follows takes precedence, and its content ends at the next dollar sign. The content of
    `\fbox` cannot be read, as in the released grader.
    """
    if _BARE in text:
        return text.rpartition(_BARE)[2].partition("$")[0]
    start = text.rfind("\\boxed")
    if start < 0 or not text.startswith("{", start + len("\\boxed")):
        return None
    return braced(text, start + len("\\boxed"))


def last_box_of_prm800k(text: str) -> str | None:
    r"""Content of the first braces after the last `\boxed`, or, without any, `\fbox`; None if there are none."""
    start = text.rfind("\\boxed")
    if start < 0:
        start = text.rfind("\\fbox")
    opening = -1 if start < 0 else text.find("{", start)
    found = None if opening < 0 else braced(text, opening)
    return None if found is None else found.strip()


def braced(text: str, opening: int) -> str | None:
    """Content of the braces that open at an index; None if they are not closed."""
    depth = 0
    for index in range(opening, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : index]
    return None


def without_command(text: str, command: str, *, keep: bool = True) -> str:
    r"""The text without each `\command{...}` of one line, up to the next closing brace; with `keep`, what is inside
    stays."""
    opening, parts, position = f"\\{command}{{", [], 0
    while (start := text.find(opening, position)) >= 0:
        inside, line = start + len(opening), text.find("\n", start)
        end = text.find("}", inside, len(text) if line < 0 else line)
        if end < 0:  # no later one of this line is closed either
            end = len(text) if line < 0 else line
            parts.append(text[position:end])
            position = end
            continue
        parts += [text[position:start], text[inside:end] if keep else ""]
        position = end + 1
    return "".join([*parts, text[position:]])
