"""Recording of a shell script: bash runs it with recorders in place of programs, confined to reading files and to
limits of time, processes, memory and files; output files are redirected into a folder.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from strop.config.load.yaml_file import read_bounded
from strop.errors import ConfigError
from strop.sandbox.inside.landlock import restrict_files
from strop.sandbox.inside.seccomp import filter_shell

_MAX_PROCESSES = 256
_MAX_MEMORY_BYTES = 1_000_000_000
_MAX_FILE_BYTES = 16_000_000
_MAX_FILES, _MAX_TOTAL_BYTES = 10_000, 64_000_000
_POLL_SECONDS = 0.03
_IDLE_SECONDS = 0.5
"""Time without any work of the background jobs, after the script's end, at which they are ended."""
_WAITING_SECONDS = 2.0
"""Time without any work, before the script's end, at which it is ended, because it waits for its background jobs."""
_MAX_BACKGROUND_SECONDS = 5.0
"""Time after the script's end at which background jobs are ended in any case."""


@dataclass(frozen=True, slots=True)
class _Usage:
    """Usage of a group of processes."""

    switches: Mapping[int, int]
    """Number of times that each living process, by its id, has given up a processor so far."""
    memory_bytes: int
    is_waiting: bool
    """Whether each process waited at the moment at which it was looked at."""

    def is_idle_since(self, before: _Usage | None) -> bool:
        """Whether no process has run since an earlier look: one that waits at both looks, and was not switched off in
        between, has not run. A single look is not enough, because it sees one process after the other."""
        return before is not None and self.is_waiting and self.switches == before.switches


def limit_process(timeout_seconds: float) -> None:
    """Limit this process and each process that it will start."""
    for kind, limit in (
        (resource.RLIMIT_AS, _MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(timeout_seconds) + 1),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def run_to_end(process: subprocess.Popen[bytes], scratch: Path, timeout_seconds: float) -> str:
    """Wait for a process that leads its group, and for its background jobs, and end all that is left of the group.

    Returns the limit at which the script was stopped, as the end of a sentence; empty if it ended on its own.
    """
    now = time.monotonic()
    deadline, ended, idle_since = now + timeout_seconds, None, None
    stopped, before = "", None
    try:
        while not stopped:
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            if ended is None and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                ended = now
            usage = _usage(process.pid)
            idle_since = (idle_since or now) if usage.is_idle_since(before) else None
            before = usage
            if ended is not None and (
                not usage.switches
                or now - ended > _MAX_BACKGROUND_SECONDS
                or (idle_since is not None and now - max(ended, idle_since) > _IDLE_SECONDS)
            ):
                break
            stopped = _exceeded(usage, scratch)
            if not stopped and idle_since is not None and now - idle_since > _WAITING_SECONDS:
                stopped = "when all that was left of it waited"
            if now > deadline:
                stopped = f"after {timeout_seconds:.0f} seconds"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # until `wait`, the number is not given away
        process.wait()
    if process.returncode == -signal.SIGXFSZ:
        stopped = f"at the limit of {_MAX_FILE_BYTES // 1_000_000} MB for one file or its output"
    return stopped


def _exceeded(usage: _Usage, scratch: Path) -> str:
    if len(usage.switches) > _MAX_PROCESSES:
        return f"at the limit of {_MAX_PROCESSES} processes"
    if usage.memory_bytes > _MAX_MEMORY_BYTES:
        return f"at the limit of {_MAX_MEMORY_BYTES // 1_000_000} MB of memory"
    sizes = []
    with os.scandir(scratch) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # `sed -i` has renamed its temporary file
                sizes.append(entry.stat(follow_symlinks=False).st_size)
    if len(sizes) > _MAX_FILES:
        return f"at the limit of {_MAX_FILES} commands and files"
    if sum(sizes) > _MAX_TOTAL_BYTES:
        return f"at the limit of {_MAX_TOTAL_BYTES // 1_000_000} MB of files"
    return ""


def _usage(group: int) -> _Usage:
    """Sum over the living processes of a group."""
    switches, pages, is_waiting = {}, 0, True
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            state, owner, rss = fields[0], int(fields[2]), int(fields[21])
            if owner == group and state not in "ZX":
                switches[int(entry.name)] = _switches(entry)
                pages += rss
                is_waiting = is_waiting and state == "S"
        except OSError:  # it has ended
            continue
    return _Usage(switches, pages * resource.getpagesize(), is_waiting)


def _switches(process: Path) -> int:
    """Number of context switches of a process; each time that it waits is one."""
    counts = re.findall(r"ctxt_switches:\s+(\d+)", (process / "status").read_text(errors="replace"))
    return sum(map(int, counts))


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
