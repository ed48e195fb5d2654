"""Redirection of a shell script's output files into a folder, by rewriting the script's text."""

from __future__ import annotations

import re

_WORD_END = " \t\n;|&<>()"
_HEREDOC = re.compile(r"<<(-?)[ \t]*(?:'([^']+)'|\"([^\"]+)\"|\\?([\w.-]+))")


def redirect_outputs(text: str, function: str) -> str:
    """The script with `> "$(FUNCTION FILE)"` in place of `> FILE`, for every operator that opens a file for
    writing; `function` is a shell function that prints the file to write instead."""
    return _Rewriter(text, function).rewrite()


class _Rewriter:
    """One pass over a script: quotes, comments, here-documents, arithmetic and tests are copied unchanged."""

    def __init__(self, text: str, function: str) -> None:
        self._text = text
        self._function = function
        self._at = 0
        self._out: list[str] = []
        self._documents: list[tuple[str, bool]] = []
        """Delimiters of the here-documents that start after this line, and whether tabs before them count."""

    def rewrite(self) -> str:
        self._code(end="")
        return "".join(self._out)

    def _code(self, end: str) -> None:
        """Copy commands up to the character `end`, or to the end of the text."""
        word_start = True
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == end:
                self._copy(1)
                return
            if character == "#" and word_start:
                self._copy_to(self._text.find("\n", self._at))
            elif character == "\n":
                self._copy(1)
                self._copy_documents()
            elif self._is_ahead("[[ "):
                self._copy_through("]]")
            elif self._is_ahead("(("):
                self._copy_through("))")
            elif self._is_ahead("<<<"):
                self._copy(3)
            elif document := _HEREDOC.match(self._text, self._at):
                self._documents.append((next(filter(None, document.groups()[1:])), bool(document[1])))
                self._copy(len(document[0]))
            elif character == ">" and not self._is_ahead(">("):
                self._redirection()
            elif character == "(":
                self._copy(1)
                self._code(")")
            else:
                self._copy_element()
            word_start = self._out[-1][-1:] in _WORD_END

    def _copy_element(self) -> None:
        """Copy one quoted text, expansion or character."""
        character = self._text[self._at]
        if character == "\\":
            self._copy(2)
        elif character == "'":
            self._copy_to(self._text.find("'", self._at + 1) + 1)
        elif character == '"':
            self._double_quotes()
        elif self._is_ahead("$(("):
            self._copy_through("))")
        elif self._is_ahead("$("):
            self._copy(2)
            self._code(")")
        elif self._is_ahead("${"):
            self._copy_through("}")
        else:
            self._copy(1)

    def _double_quotes(self) -> None:
        self._copy(1)
        while self._at < len(self._text) and self._text[self._at] != '"':
            if self._text[self._at] == "'":
                self._copy(1)
            else:
                self._copy_element()
        self._copy(1)

    def _redirection(self) -> None:
        """Copy `>`, `>>`, `>|` or `>&`, and name the file that is written instead of the operand."""
        for operator in (">>", ">|", ">&", ">"):
            if self._is_ahead(operator):
                self._copy(len(operator))
                break
        blanks = len(self._text[self._at :]) - len(self._text[self._at :].lstrip(" \t"))
        self._copy(blanks)
        if self._is_ahead(">(") or re.match(r"&?(\d+|-)", self._text[self._at :]):
            return  # a process, or a descriptor that is open already
        kept = self._out
        self._out = []
        while self._at < len(self._text) and self._text[self._at] not in _WORD_END:
            self._copy_element()
        operand, self._out = "".join(self._out), kept
        if operand:
            self._out.append(f'"$({self._function} {operand})"')

    def _copy_documents(self) -> None:
        for delimiter, strip_tabs in self._documents:
            while self._at < len(self._text):
                line_end = self._text.find("\n", self._at)
                line = self._text[self._at : line_end if line_end >= 0 else len(self._text)]
                self._copy(len(line) + 1)
                if (line.lstrip("\t") if strip_tabs else line) == delimiter:
                    break
        self._documents.clear()

    def _is_ahead(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _copy(self, count: int) -> None:
        self._out.append(self._text[self._at : self._at + count])
        self._at += count

    def _copy_to(self, position: int) -> None:
        """Copy up to a position; a negative one is the end of the text."""
        end = position if position > self._at else len(self._text)
        self._copy(end - self._at)

    def _copy_through(self, mark: str) -> None:
        found = self._text.find(mark, self._at + 1)
        self._copy_to(found + len(mark) if found >= 0 else -1)
