"""`strop quickstart`, which trains a small model on sums without a download or writes the notebook of a first run, and
`strop init`, which writes a first run file from flags or answers."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import strop
from strop.cli.arguments import MachineOption
from strop.cli.output import echo
from strop.errors import ConfigError
from strop.workers.fork_server import without_collections

if TYPE_CHECKING:
    from strop.config.first_run import FirstRun

_PACKAGE = Path(strop.__file__).parent
_EXAMPLES = next(
    (
        each
        for each in (_PACKAGE / "examples", _PACKAGE.parent / "examples")
        if (each / "quickstart").is_dir()
    ),
    _PACKAGE / "examples",
)
"""Package data of a wheel, or the folder of a clone."""
_NOTEBOOK = "first_run.ipynb"


def quickstart(
    steps: Annotated[int, typer.Option(help="Number of training steps.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the order of the data and of every draw.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder of the data, the models and the run.")] = Path(
        "runs/quickstart"
    ),
    notebook: Annotated[
        bool, typer.Option("--notebook", help=f"Write {_NOTEBOOK} here instead, a first run in cells.")
    ] = False,
) -> None:
    """Train a small random model on two-digit sums by GRPO, on a CPU and without a download."""
    if notebook:
        if Path(_NOTEBOOK).exists():
            raise ConfigError(f"{_NOTEBOOK} exists here. Move it, or go to another folder.")
        shutil.copyfile(_EXAMPLES / "notebook" / _NOTEBOOK, _NOTEBOOK)
        echo(
            f"Wrote {_NOTEBOOK}. Open it with `jupyter lab {_NOTEBOOK}`, or with an editor that runs notebooks."
        )
        return
    sys.path.insert(0, str(_EXAMPLES / "quickstart"))
    with without_collections():
        from quickstart import run

    run(out, seed=seed, steps=steps)
    echo(f"Look at it with `strop show {out}/sums`, ask it with `strop chat {out}/sums`.")


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Run file to write.")] = Path("run.yaml"),
    model: Annotated[str | None, typer.Option(help="Model folder, GGUF file, or name on the Hub.")] = None,
    train: Annotated[
        str | None, typer.Option(help="Training tasks: JSONL, Parquet, CSV, or a Hub name.")
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Built-in reward, or file.py:function.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Column of the prompts; by default `prompt`.", show_default=False)
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option(
            help="Column of the answers, '' if the reward needs none; by default `answer`.",
            show_default=False,
        ),
    ] = None,
    held_out: Annotated[
        str | None, typer.Option("--eval", help="Held-out tasks.", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(help="Number of training steps.", min=1)] = 100,
    max_response_tokens: Annotated[int, typer.Option(help="Maximum length of a response.", min=1)] = 256,
    lora: Annotated[bool, typer.Option("--lora", help="Train an adapter instead of all weights.")] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Prompts are plain text, without a chat template.")
    ] = False,
    machine: MachineOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a first run file with comments, and check it; asks for what the options do not say."""
    from strop.config.first_run import SCHEMA, FirstRun
    from strop.config.machine import parse_machine, this_machine
    from strop.config.reference import schema_text
    from strop.plan.request import has_fast_bfloat16

    if file.exists() and not force:
        raise ConfigError(f"{file} exists. Write another name, or --force to replace it.")
    is_interview = None in (model, train, reward)
    model = model or ask("Model (folder, GGUF file, or name on the Hub)", "--model")
    train = train or ask("Training tasks (JSONL, Parquet, CSV, or a name on the Hub)", "--train")
    columns = first_columns(train)
    prompt = prompt or ask_prompt_column(columns)
    answer = ask_answer_column(columns) if answer is None else answer or None
    reward = reward or ask("Reward (exact, gsm8k, math, ..., or file.py:function)", "--reward", check_reward)
    if is_interview:
        held_out = held_out or ask_or_none("Held-out tasks (Enter for none)")
        machine = machine or ask_or_none("Machine (Enter for this one, else such as 1xA10-24GB)")
    values = FirstRun(
        model=model,
        train=train,
        reward=reward,
        prompt=prompt,
        answer=answer,
        eval=held_out,
        steps=steps,
        lora=lora,
        max_response_tokens=max_response_tokens,
        chat=not plain,
        bfloat16=has_fast_bfloat16(parse_machine(machine) if machine else this_machine()),
    )
    file.write_text(values.text(), encoding="utf-8")
    (file.parent / SCHEMA).write_text(schema_text(), encoding="utf-8")
    _make_fit(file, values, machine)
    echo(f"Wrote {file}, and {SCHEMA} for completion in editors.")
    _check(file, machine)
    echo(f"Train with `strop train {file}`.")


def _make_fit(file: Path, values: FirstRun, machine: str | None) -> None:
    """Write the changes with which the run fits into the machine's memory, if it does not fit and there are such."""
    from strop.cli.output import print_changes
    from strop.config.load.loader import load_run
    from strop.config.machine import GIB, on_machine, parse_machine
    from strop.plan.fit import memory_fit

    with on_machine(parse_machine(machine) if machine else None):
        fit = memory_fit(load_run(file).run)
    if fit is None or fit.proposal is None or not fit.proposal.fits:
        return
    size = f"{fit.capacity / GIB:.0f} GiB"
    changes = tuple((each.override, f"to fit into {size}: {each.cost}") for each in fit.proposal.changes)
    file.write_text(replace(values, changes=changes).text(), encoding="utf-8")
    echo(f"Written into the file, so that the run fits into {size}:")
    print_changes(fit.proposal)


def _check(file: Path, machine: str | None) -> None:
    """Print whether the run can start."""
    from strop.cli.actions import check_run
    from strop.config.load.loader import load_run
    from strop.config.machine import on_machine, parse_machine

    loaded = load_run(file)
    with on_machine(parse_machine(machine) if machine else None):
        check_run(loaded)


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
