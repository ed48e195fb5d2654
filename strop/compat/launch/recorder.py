"""Recording of a shell script: bash runs it with recorders in place of programs, confined to reading files."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from strop.compat.launch.limits import limit_process, run_to_end
from strop.compat.launch.redirections import redirect_outputs
from strop.config.load.yaml_file import read_bounded
from strop.errors import ConfigError
from strop.sandbox.inside.landlock import restrict_files
from strop.sandbox.inside.seccomp import filter_shell

TIMEOUT_SECONDS = 30.0
"""Maximum time that a script may run while it is recorded."""
_MAX_COMMANDS = 1000
"""Maximum number of commands that are read of a recording."""
_MAX_OUTPUT = 2000
"""Maximum number of bytes of a script's own output that are kept."""
_MAX_ERRORS = 1_000_000
"""Maximum number of bytes of its standard error that are read, with the trace of `set -x`."""
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_TEXT_PROGRAMS = (
    *("awk", "basename", "cat", "cut", "date", "dirname", "expr", "grep", "head", "hostname", "id", "ls"),
    *("nproc", "readlink", "realpath", "sed", "seq", "sort", "tail", "tr", "uname", "uniq", "wc", "whoami"),
)
"""Programs that the script really runs. They read files and print text."""
_NAMED_PROGRAM = re.compile(
    r"(?<![\w${}/.~-])[\w.~-]*(?:/[\w.~-]+)*/(?:python[\d.]*|torchrun|ray|accelerate|trinity|trl|deepspeed)(?![\w/])"
)
_SCRIPT_PATH = re.compile(r"\$\{BASH_SOURCE(?:\[0\]|\[-1\])?(?::-\$0)?\}|\$BASH_SOURCE\b")
_RECORD_PREFIX = "record-"
"""Start of the names of the files with records; the time that follows orders them."""
_OUTPUT_FUNCTION = "__strop_output"

_FUNCTIONS = r"""
__strop_record() {
    {
        printf '%s\0' "$PWD" "$#" "$@"
        local name
        for name in $(compgen -e); do printf '%s\0' "$name=${!name}"; done
        printf 'end\0'
    } > "$__strop_scratch/record-$EPOCHREALTIME-$BASHPID"
    return 0
}
command_not_found_handle() { __strop_record "$@"; }
__strop_output() {
    case $1 in
        /dev/null|/dev/stdout|/dev/stderr) printf '%s' "$1" ;;
        /*) printf '%s/%s' "$__strop_scratch" "${1//\//%}" ;;
        *) local path=$PWD/$1; printf '%s/%s' "$__strop_scratch" "${path//\//%}" ;;
    esac
}
cd() {
    local target=
    for target; do :; done
    [[ -z $target ]] || builtin cd "$@" 2>/dev/null || echo "cd $target: there is no such folder" >&2
    return 0
}
pushd() { cd "$@"; }
popd() { cd "${OLDPWD:-.}"; }
exec() { (( $# == 0 )) || { "$@"; exit; }; }
kill() { :; }
sleep() {
    [[ $BASHPID != "$$" ]] || return 0
    [[ ${__strop_sleeper:-} == "$BASHPID" ]] || __strop_slept=0
    __strop_sleeper=$BASHPID
    (( ++__strop_slept > 3 )) || return 0
    local seconds=60
    [[ ! ${1:-} =~ ^[0-9]+$ ]] || seconds=$(( 10#$1 > 3 ? 10#$1 : 3 ))
    builtin read -r -t "$seconds" -u "$__strop_silent" || :
    return 0
}
ulimit() { builtin ulimit "$@" 2>/dev/null || :; }
tee() { cat; }
mktemp() { echo "$__strop_scratch/temporary"; }
source() { if [[ -r $1 ]]; then builtin source "$@"; else __strop_record source "$@"; fi; }
.() { source "$@"; }
export -f __strop_record __strop_output command_not_found_handle cd pushd popd exec kill sleep ulimit tee mktemp source
"""
"""Stand-ins for programs, and for builtin commands with effects."""


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """A command that the script would have run."""

    words: tuple[str, ...]
    """TrainingProgram and arguments after all expansions."""
    folder: Path
    """Current folder."""
    environment: Mapping[str, str]
    """Exported variables."""


@dataclass(frozen=True, slots=True)
class Recording:
    """All commands of a script, in order, and how the script ended."""

    commands: tuple[RecordedCommand, ...]
    files: Mapping[Path, str]
    """Files that the script would have written by redirections, with their texts."""
    exit_code: int | None
    """None if the script was stopped at a limit."""
    errors: str
    """Standard error, without the trace of `set -x`."""
    output: str = ""
    """Beginning of the text that the script prints."""
    stopped: str = ""
    """Limit at which the script was stopped, as the end of a sentence."""


def record(script: Path, arguments: Sequence[str] = ()) -> Recording:
    """Record the commands of a bash script.

    No program is started except those that only print text; files can be read, nothing outside a temporary
    folder can be written, no signal can be sent, and there is no network. Time, processes, memory, output and files
    are limited (`limits.py`), and background jobs end with the script. Raises ConfigError where the script cannot be
    read, or this machine cannot confine it.
    """
    text = read_bounded(script)
    bash = shutil.which("bash")
    if bash is None:
        raise ConfigError("strop import needs bash to read a launch script, and there is no bash in PATH.")
    with (
        tempfile.TemporaryDirectory(prefix="strop-import-") as folder,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        _silent_pipe() as silent,
    ):
        scratch, programs_folder = Path(folder, "files").resolve(), Path(folder, "bin").resolve()
        scratch.mkdir()
        programs = _link_text_programs(programs_folder)
        source = redirect_outputs(_SCRIPT_PATH.sub("$0", text), _OUTPUT_FUNCTION)
        named = sorted(set(_NAMED_PROGRAM.findall(text)))
        functions = _preamble(str(scratch), named, silent)
        try:
            process = subprocess.Popen(
                [bash, "--noprofile", "--norc", "-c", f"{functions}{source}\n", str(script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=(silent,),
                env={**os.environ, "PATH": str(programs_folder)},
                start_new_session=True,
                preexec_fn=lambda: _confine(str(scratch), [bash, *programs]),
            )
        except subprocess.SubprocessError:
            raise ConfigError(
                f"{script}: the script is not run, because this machine cannot confine it: strop import needs "
                "Linux with Landlock (5.13 or newer) and seccomp."
            ) from None
        stopped = run_to_end(process, scratch, TIMEOUT_SECONDS)
        records = sorted(scratch.glob(f"{_RECORD_PREFIX}*"))[:_MAX_COMMANDS]
        return Recording(
            tuple(command for command in map(_parse, records) if command is not None),
            _written_files(scratch),
            None if stopped else process.returncode,
            _without_trace(_beginning(errors, _MAX_ERRORS)),
            _beginning(output, _MAX_OUTPUT),
            stopped,
        )


def _preamble(scratch: str, paths: Sequence[str], silent: int) -> str:
    """The functions; `scratch` is the folder of records and of the script's output files, `paths` are the
    programs that the script names with their folders, and `silent` is a descriptor with nothing to read.

    `sleep` returns at once, but in a background job from the fourth time on it pauses for the time that it names, and
    for at least 3 s, because a job that repeats something each second or minute has no end: it is seen to wait."""
    named = "\n".join(f'function {path} {{ __strop_record {path} "$@"; }}' for path in paths)
    return f"__strop_scratch={scratch} __strop_silent={silent}\n{_FUNCTIONS}\n{named}\n"


@contextmanager
def _silent_pipe() -> Iterator[int]:
    """A descriptor to read from that never has anything to read, on which the script waits."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


def _link_text_programs(folder: Path) -> list[str]:
    """Make a folder with the text programs of this machine; returns the files."""
    folder.mkdir()
    found = []
    for name in _TEXT_PROGRAMS:
        path = shutil.which(name)
        if path is not None:
            (folder / name).symlink_to(os.path.realpath(path))
            found.append(os.path.realpath(path))
    return found


def _confine(scratch: str, executable: Sequence[str]) -> None:
    """Confine the process that becomes bash. An OSError here ends it before it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    limit_process(TIMEOUT_SECONDS)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    loaders = [str(path) for folder in ("/lib64", "/lib") for path in Path(folder).glob("ld-*.so*")]
    real = [os.path.realpath(path) for path in (*executable, *loaders)]
    restrict_files(libc, ["/"], [scratch, "/dev/null"], real)
    filter_shell(libc)


def _parse(file: Path) -> RecordedCommand | None:
    """A record: the folder, the number of words, the words, the variables, and "end".

    None for another file: the process was killed at a limit, or as a background job, while it wrote, or the script
    wrote it itself.
    """
    folder, *texts = file.read_bytes().decode("utf-8", "replace").split("\0")
    if texts[-2:] != ["end", ""] or not re.fullmatch(r"[1-9]\d{0,6}", texts[0]):
        return None
    count, texts = int(texts[0]), texts[1:-2]
    words, variables = texts[:count], texts[count:]
    if len(words) < count:
        return None
    environment = dict(variable.partition("=")[::2] for variable in variables)
    return RecordedCommand(tuple(words), Path(folder), environment)


def _beginning(file: IO[bytes], max_bytes: int) -> str:
    file.seek(0)
    return file.read(max_bytes).decode("utf-8", "replace")


def _written_files(scratch: Path) -> dict[Path, str]:
    return {
        Path(file.name.replace("%", "/")): file.read_text(encoding="utf-8", errors="replace")
        for file in scratch.iterdir()
        if file.is_file() and file.name.startswith("%")
    }


def _without_trace(errors: str) -> str:
    return "\n".join(line for line in errors.splitlines() if not line.startswith("+"))
