"""Training programs of verl, Trinity-RFT, TRL and AzureML in command lines that a launch script runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

from strop.compat.trl.script.run import is_trl_script

Tool = Literal[
    "verl ppo",
    "verl sft",
    "verl eval",
    "verl generate",
    "verl merge",
    "trinity",
    "trl grpo",
    "trl rloo",
    "trl sft",
    "trl dpo",
    "file",
]
"""Command of Strop; `file` is `strop train`."""

_VERL: tuple[tuple[str, Tool], ...] = (
    (r"(?>(?:.*_)?main_(?:ppo|dapo|entropy|prime|spin|sppo|gspo))\w*", "verl ppo"),
    (r"fully_async_main", "verl ppo"),
    (r"(?:fsdp_)?sft_trainer\w*", "verl sft"),
    (r"main_eval", "verl eval"),
    (r"main_generation(?:_server)?", "verl generate"),
    (r"(?:legacy_)?model_merger", "verl merge"),
)
"""Patterns of the names of verl's programs, and of those of its recipes."""
_RECIPE = re.compile(r"(?:.*[./])?main_(dapo|entropy|prime|spin|sppo)")
"""Programs of verl's recipes with a configuration of their own, `<recipe>_trainer`."""
_ASYNC = re.compile(
    r".*(?:(fully_async)_policy[./]fully_async_main|experimental[./](one_step_off)_policy[./]main_ppo)"
)
"""verl's asynchronous programs, whose configuration is `<name>_ppo_trainer`."""
_CONFIG_OPTIONS = ("--config-name", "-cn")
_TRL_TOOLS: tuple[Tool, ...] = ("trl grpo", "trl rloo", "trl sft", "trl dpo")
_PYTHON = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|uv|srun|conda|ray")


@dataclass(frozen=True, slots=True)
class TrainingProgram:
    """A program that Strop can run instead, with its arguments."""

    tool: Tool
    arguments: tuple[str, ...]
    processes: str | None = None
    """Number of processes that the launcher of a Python script starts; None if it starts one."""


def find_program(words: Sequence[str], folder: Path) -> TrainingProgram | None:
    """The training program in a command line, behind launchers such as `torchrun` and `nohup`; None for
    another command. `folder` is the command's current folder, in which Python scripts are read."""
    for index, word in enumerate(words):
        name, rest = PurePath(word).name, words[index + 1 :]
        if word == "-m" and rest:
            if rest[0] == "trinity.cli.launcher":
                return _trinity(rest[1:])
            tool = _verl_tool(rest[0].rpartition(".")[2])
            if tool is not None:
                return TrainingProgram(tool, _arguments(tool, rest[0], rest[1:]))
            if found := _trl(rest[0].removeprefix("trl.scripts."), words[:index], rest[1:]):
                return found
        elif name.endswith(".py") and index and (tool := _verl_tool(name.removesuffix(".py"))):
            return TrainingProgram(tool, _arguments(tool, word.removesuffix(".py"), rest))
        elif name == "trinity" and "run" in rest[:1]:
            return _trinity(rest)
        elif name == "trl" and rest and (found := _trl(rest[0], (), rest[1:])):
            return found
        elif (
            word.endswith(("scripts/grpo.py", "scripts/rloo.py", "scripts/sft.py", "scripts/dpo.py"))
            and index
        ):
            return _trl(name.removesuffix(".py"), words[:index], rest)
        elif name.endswith(".py") and index and (folder / word).is_file() and is_trl_script(folder / word):
            return TrainingProgram("file", (word, *rest), _processes(words[:index]))
        elif name == "az" and list(rest[:3]) == ["ml", "job", "create"]:
            file = _option(rest, "--file", "-f")
            return None if file is None else TrainingProgram("file", (file,))
    return None


def is_python(words: Sequence[str]) -> bool:
    """Whether a command starts Python, so that a reader should hear of it."""
    return bool(words) and _PYTHON.fullmatch(PurePath(words[0]).name) is not None


def _verl_tool(name: str) -> Tool | None:
    return next((tool for pattern, tool in _VERL if re.fullmatch(pattern, name)), None)


def _arguments(tool: Tool, program: str, words: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a program of verl, without the operation of its merger, which names Strop's command."""
    if tool == "verl merge":
        return tuple(words[1:] if words and words[0] == "merge" else words)
    return _with_config(program, words)


def _with_config(program: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments, with the name of the program's own configuration where they select none."""
    recipe, asynchronous = _RECIPE.fullmatch(program), _ASYNC.fullmatch(program)
    if any(word.partition("=")[0] in _CONFIG_OPTIONS for word in arguments):
        return tuple(arguments)
    if asynchronous is not None:
        return (f"--config-name={asynchronous[1] or asynchronous[2]}_ppo_trainer", *arguments)
    return tuple(arguments) if recipe is None else (f"--config-name={recipe[1]}_trainer", *arguments)


def _trl(name: str, launcher: Sequence[str], arguments: Sequence[str]) -> TrainingProgram | None:
    """A program of TRL. The number of processes that its launcher starts multiplies the batch size."""
    tool = next((known for known in _TRL_TOOLS if known == f"trl {name}"), None)
    if tool is None:
        return None
    processes = _processes(launcher)
    started = ("--num_processes", processes) if processes is not None else ()
    return TrainingProgram(tool, (*arguments, *started))


def _processes(launcher: Sequence[str]) -> str | None:
    return _option(launcher, "--num_processes", "--nproc_per_node", "--nproc-per-node")


def _trinity(words: Sequence[str]) -> TrainingProgram | None:
    config = _option(words, "--config", "-c")
    if "run" not in words[:1] or config is None:
        return None
    return TrainingProgram("trinity", (config,))


def _option(words: Sequence[str], *names: str) -> str | None:
    """The value of an option, written `--name value` or `--name=value`."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(words[index + 1 : index + 2]), None)
    return None
