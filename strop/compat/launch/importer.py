"""Import of a launch script: the training programs among its commands, and the runs that they would start."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Literal

from strop.compat.detect import read_file
from strop.compat.hydra import ConfigSelection
from strop.compat.launch.recorder import RecordedCommand, Recording, record
from strop.compat.registry import key_owner_hint
from strop.compat.trinity.reader import read_trinity
from strop.compat.trl.reader import find_program as find_trl_program
from strop.compat.trl.reader import read_trl_arguments, read_trl_file, take_config
from strop.compat.trl.script.run import is_trl_script
from strop.compat.verl.ppo_trainer import read_verl
from strop.compat.verl.sft_engine import read_verl_sft
from strop.config.load.loader import Job, LoadedRun
from strop.errors import ConfigError

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


_HYDRA_OPTIONS = {
    **dict.fromkeys(("--config-name", "-cn"), "name"),
    **dict.fromkeys(("--config-path", "-cp"), "path"),
    **dict.fromkeys(("--config-dir", "-cd"), "folder"),
}
_MAX_SHOWN = 300
"""Maximum number of characters of a command or of bash's errors in a message."""


@dataclass(frozen=True, slots=True)
class ImportedCommand:
    """A training command of a launch script."""

    program: TrainingProgram
    command: RecordedCommand
    files: Mapping[Path, str]
    """Files that the script writes before."""

    @property
    def shown(self) -> str:
        """The command as the script would run it, shortened."""
        text = shlex.join(self.command.words)
        return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."

    @property
    def strop_command(self) -> str:
        """The command that runs it in Strop directly."""
        if self.program.tool != "file":
            return shlex.join(["strop", *self.program.tool.split(), *self.program.arguments])
        file, *own = self.program.arguments
        line = shlex.join(["strop", "train", file, *(["--", *own] if own else [])])
        return f"WORLD_SIZE={self.program.processes} {line}" if self.program.processes else line

    @property
    def is_training(self) -> bool:
        """Whether the command trains, so that there is a run file for it."""
        return self.program.tool not in ("verl eval", "verl generate", "verl merge")

    def read(self) -> Job:
        """The run, read in the command's folder with its environment. Raises ConfigError."""
        with _as_in(self.command):
            return self._read(self.program.arguments)

    def _read(self, arguments: Sequence[str]) -> Job:
        if self.program.tool in ("verl ppo", "verl sft"):
            overrides, selection = _split_options(arguments)
            read = read_verl if self.program.tool == "verl ppo" else read_verl_sft
            return Job(read(overrides, selection=selection, here=True, key_owner=key_owner_hint))
        if self.program.tool.startswith("trl "):
            return Job(self._read_trl(arguments))
        with self._written(Path(arguments[0])) as path:
            return self._read_file(path, arguments[1:])

    def _read_trl(self, arguments: Sequence[str]) -> LoadedRun:
        program = find_trl_program(self.program.tool.removeprefix("trl "))
        config, rest = take_config(list(arguments))
        if config is None:
            return read_trl_arguments(program, rest, here=True, key_owner=key_owner_hint)
        with self._written(Path(config)) as path:
            return read_trl_file(program, path, rest, here=True, key_owner=key_owner_hint)

    @contextmanager
    def _written(self, path: Path) -> Iterator[Path]:
        """The file, or a copy of the text that the script writes into it."""
        text = self.files.get(self.command.folder / path)
        if text is None:
            yield path
            return
        with TemporaryDirectory() as folder:
            copy = Path(folder, path.name)
            copy.write_text(text, encoding="utf-8")
            yield copy

    def _read_file(self, path: Path, arguments: Sequence[str]) -> Job:
        if self.program.tool == "trinity":
            return Job(read_trinity(path, here=True, key_owner=key_owner_hint))
        if self.program.processes:
            os.environ["WORLD_SIZE"] = self.program.processes  # as the launcher sets it; `_as_in` restores it
        return read_file(path, arguments, here=True, dialect=None)


def import_script(script: Path, arguments: Sequence[str] = ()) -> tuple[list[ImportedCommand], list[str]]:
    """The training commands of a launch script, and notices about what was not followed.

    Raises ConfigError where the script cannot be recorded, or has no training command.
    """
    recording = record(script, arguments)
    found = [
        ImportedCommand(program, command, recording.files)
        for command in recording.commands
        if (program := find_program(command.words, command.folder)) is not None
    ]
    if not found:
        raise ConfigError(
            f"{script}: the script runs no command of verl, Trinity-RFT, TRL or AzureML. {_end(recording)}It "
            f"would run: {_programs(recording)}."
        )
    return found, list(_notices(recording, found))


def _notices(recording: Recording, found: Sequence[ImportedCommand]) -> Iterator[str]:
    training = {id(each.command) for each in found}
    for command in recording.commands:
        if is_python(command.words) and id(command) not in training:
            yield f"not run, and its output is empty for the script: {shlex.join(command.words)[:_MAX_SHOWN]}"
        if command.words[:1] in (("bash",), ("sh",)):
            yield f"not followed: {shlex.join(command.words)[:_MAX_SHOWN]}; import that script on its own"
    if recording.exit_code != 0:
        yield _end(recording).strip()


def _end(recording: Recording) -> str:
    """A sentence on the end of the script, unless it ended without an error."""
    if recording.exit_code is None:
        return f"The script was stopped {recording.stopped}. "
    errors = " ".join(recording.errors.split())[-_MAX_SHOWN:]
    if recording.exit_code == 0 and not errors:
        return ""
    printed = " ".join(recording.output.split())[:_MAX_SHOWN]
    if printed and not errors:
        return (
            f"The script ended with exit code {recording.exit_code} and prints: {printed}. Write its arguments "
            "after its name: strop import LAUNCH.sh ARGUMENTS. "
        )
    return f"The script ended with exit code {recording.exit_code}; bash says: {errors or 'nothing'}. "


def _programs(recording: Recording) -> str:
    names = dict.fromkeys(command.words[0] for command in recording.commands if command.words)
    return ", ".join(names) or "no program"


def _split_options(arguments: Sequence[str]) -> tuple[list[str], ConfigSelection]:
    """The overrides, and the configuration that Hydra's options select."""
    overrides: list[str] = []
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name not in _HYDRA_OPTIONS:
            overrides.append(word)
        else:
            options[_HYDRA_OPTIONS[name]] = value if equals or not rest else rest.pop(0)
    selected = ConfigSelection(None, options.get("name"), options.get("path"), options.get("folder"))
    return overrides, selected


@contextmanager
def _as_in(command: RecordedCommand) -> Iterator[None]:
    """Enter the folder of a command, with its variables, while its configuration is read."""
    folder, environment = Path.cwd(), dict(os.environ)
    try:
        if command.folder.is_dir():
            os.chdir(command.folder)
        os.environ.update({name: value for name, value in command.environment.items() if name != "PATH"})
        yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
