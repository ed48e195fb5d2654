"""Questions of `strop init` about what its options do not say."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer

from strop.errors import ConfigError


def ask(question: str, option: str, check: Callable[[str], str] | None = None) -> str:
    """The answer to a question without a default; asked again while `check` refuses it.

    Raises ConfigError where nobody can answer.
    """
    if not sys.stdin.isatty():
        raise ConfigError(f"{option} is missing, and there is no terminal to ask in. Write the option.")
    return str(typer.prompt(question, value_proc=check))


def ask_or_none(question: str) -> str | None:
    """The answer to a question; None for an empty one, and where nobody can answer."""
    if not sys.stdin.isatty():
        return None
    return str(typer.prompt(question, default="", show_default=False)) or None


def ask_prompt_column(columns: Sequence[str]) -> str:
    """The column of the prompts: `prompt` if the rows have it or their columns are not known, else an answer.

    Raises ConfigError where nobody can answer.
    """
    if "prompt" in columns or not columns:
        return "prompt"
    _need_terminal("prompt", columns, "")
    return str(typer.prompt(f"Column of the prompts ({', '.join(columns)})", value_proc=_column(columns)))


def ask_answer_column(columns: Sequence[str]) -> str | None:
    """The column of the answers, found as that of the prompts is; None for an empty answer."""
    if "answer" in columns or not columns:
        return "answer"
    _need_terminal("answer", columns, ", or --answer '' if the reward needs none")
    question = f"Column of the answers ({', '.join(columns)}; Enter if the reward needs none)"
    check = _column(["", *columns])
    return typer.prompt(question, default="", show_default=False, value_proc=check) or None


def _need_terminal(name: str, columns: Sequence[str], otherwise: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError(
            f"--{name} is missing, and there is no terminal to ask in. The columns of the data are "
            f"{', '.join(columns)}: write one of them{otherwise}."
        )


def _column(columns: Sequence[str]) -> Callable[[str], str]:
    """Accepts the name of a column. Raises BadParameter for others."""

    def check(answer: str) -> str:
        if answer not in columns:
            named = ", ".join(filter(None, columns))
            raise typer.BadParameter(f"there is no column {answer!r}; the data has {named}")
        return answer

    return check


def check_reward(name: str) -> str:
    """The name of a reward. Raises BadParameter for one that is neither built in nor a function's address."""
    from strop.rewards.registry import unknown_reward

    if fault := unknown_reward(name):
        raise typer.BadParameter(fault)
    return name


def first_columns(path: str) -> tuple[str, ...]:
    """Columns of the first row of a file or folder of this machine; none for other names. Raises DataError."""
    from strop.config.paths import existing_path
    from strop.config.schema.data import TasksetConfig
    from strop.data.sources.reader import read_rows

    if "://" in path or not existing_path(path):
        return ()
    rows = read_rows(TasksetConfig(path=path))
    return tuple(rows[0]) if len(rows) else ()
