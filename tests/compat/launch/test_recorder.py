"""Recording of launch scripts: the commands after bash's expansions, and no effect outside a temporary folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from strop.compat.launch import recorder
from strop.compat.launch.recorder import Recording, record, redirect_outputs


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a hang reaches the time limit, also where other programs keep the machine busy."""
    monkeypatch.setattr("strop.compat.launch.recorder.TIMEOUT_SECONDS", 600.0)


def recorded(folder: Path, text: str, *arguments: str) -> Recording:
    script = folder / "launch.sh"
    script.write_text(text)
    return record(script, arguments)


SCRIPTS = [
    ('x=1; train a=$x b="$@" c=${2:-three}', ["train a=1 b=one two c=two"]),
    (
        "set -euo pipefail\nargs=(a b)\nargs+=('c d')\ntrain \"${args[@]}\" n=${#args[@]}",
        ["train a b c d n=3"],
    ),
    ("train \\\n  a=1 \\\n  b=2 2>&1 | tee -a $PWD/x.log", ["train a=1 b=2"]),
    ("train $(cat <<EOF\na=1\nEOF\n)", ["train a=1"]),
    ("cd $(dirname ${BASH_SOURCE[0]})/nowhere && train", ["train"]),
    ("for n in 1 2; do train n=$n & done; wait", ["train n=1", "train n=2"]),
    ("GPUS=8 exec train; echo never; train again", ["train"]),
    ("/opt/conda/bin/python3 -m x", ["/opt/conda/bin/python3 -m x"]),
    ("if ! ray status; then train; else ray stop; fi", ["ray status", "ray stop"]),
    ("run() { train \"$1\"; }\nrun 'a > b'", ["train a > b"]),
    ("(( 4 > 2 )) && [[ b > a ]] && train > out.log", ["train"]),
    ("# train > x\necho 'it is > here' >> log; train #more", ["train"]),
    ("train &> all.log\ntrain >| b 2>c", ["train", "train"]),
    ("set -x\nnohup train </dev/null >$HOME/nohup.out 2>&1 &\nwait", ["nohup train"]),
    ("ulimit -n 65535000 && train \\", ["train"]),
    ("until curl -s localhost; do sleep 1; done; train", ["curl -s localhost", "train"]),
]


@pytest.mark.parametrize(("script", "expected"), SCRIPTS)
def test_commands_after_expansion(tmp_path: Path, script: str, expected: list[str]) -> None:
    found = recorded(tmp_path, script, "one", "two")
    assert sorted(" ".join(each.words) for each in found.commands) == sorted(expected), found.errors
    assert found.exit_code == 0


def test_nothing_outside_the_temporary_folder_changes(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("before")
    before = sorted(tmp_path.iterdir())
    found = recorded(
        tmp_path,
        f"rm -rf {tmp_path}; /bin/rm -f {kept}\necho after > {kept}; printf x >> {tmp_path}/new\n"
        f"eval 'echo hidden > {tmp_path}/evaluated' || true; mkdir -p {tmp_path}/made\n"
        f"sed -i s/before/after/ {kept} || true; awk 'BEGIN {{ system(\"touch {tmp_path}/awk\") }}' || true\n"
        "{ echo x > /dev/tcp/127.0.0.1/9; } 2>/dev/null || true; train",
    )
    assert kept.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "launch.sh"])
    assert found.commands[-1].words == ("train",)
    assert found.files[kept] == "after\n"


def test_the_script_writes_only_where_its_files_are_counted(tmp_path: Path) -> None:
    found = recorded(
        tmp_path,
        'printf x | sed -n "w $__strop_scratch/bin/made" || train 1; cat < "$__strop_scratch/../bin/made" || train 2\n'
        'printf x | sed -n "w $__strop_scratch/../bin/made" || train 3; printf x | sort -o "$(dirname $PATH)/made"\n'
        "train",
    )
    assert [each.words for each in found.commands] == [
        ("train", "1"),
        ("train", "2"),
        ("train", "3"),
        ("train",),
    ]


def test_a_record_that_the_script_writes_itself_is_left_out(tmp_path: Path) -> None:
    for content in (r"a\0b\0end\0", r"end\0", r"a\0end\0", r"/\09\0end\0"):
        found = recorded(tmp_path, f"printf '{content}' | sed -zn \"w $__strop_scratch/record-0\"; train")
        assert ("train",) in [each.words for each in found.commands]


def test_sockets_are_denied(tmp_path: Path) -> None:
    found = recorded(tmp_path, "eval 'exec 3<>/dev/udp/127.0.0.1/9' && train")
    assert found.commands == () and "Operation not permitted" in found.errors


def test_variables_and_written_files(tmp_path: Path) -> None:
    found = recorded(tmp_path, "export MODEL=m\ncat > c.yaml <<EOF\nmodel: $MODEL > 3\nEOF\ntrain c.yaml")
    assert found.commands[0].environment["MODEL"] == "m"
    assert found.files == {Path.cwd() / "c.yaml": "model: m > 3\n"}


def test_a_script_that_fails_and_one_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(tmp_path, "set -u\ntrain $NOWHERE_SET\n")
    assert found.exit_code == 127 and "NOWHERE_SET: unbound variable" in found.errors
    monkeypatch.setattr("strop.compat.launch.recorder.TIMEOUT_SECONDS", 0.3)
    assert recorded(tmp_path, "train; while true; do :; done").exit_code is None


def test_the_environment_of_this_process_is_unchanged(tmp_path: Path) -> None:
    before = dict(os.environ)
    recorded(tmp_path, "export A_NEW_VARIABLE=1")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > b", 'a > "$(F b)"'),
        ("a 2>'b c'$d>>e", 'a 2>"$(F \'b c\'$d)">>"$(F e)"'),
        ("a >&2 2>&1 >&-", "a >&2 2>&1 >&-"),
        ("a > >(tee b)", "a > >(tee b)"),
        ('echo "a > b $(c > d)"', 'echo "a > b $(c > "$(F d)")"'),
        ("cat <<'X' > f\na > b\nX\nc > d", 'cat <<\'X\' > "$(F f)"\na > b\nX\nc > "$(F d)"'),
        ("x=${y:->} # > z", "x=${y:->} # > z"),
    ],
)
def test_redirections(text: str, expected: str) -> None:
    assert redirect_outputs(text, "F") == expected


def test_what_a_script_prints_is_kept(tmp_path: Path) -> None:
    usage = 'if [ "$#" -lt 1 ]; then echo "Usage: launch.sh GPUS"; exit 1; fi; train $1'
    recording = recorded(tmp_path, usage)
    assert (recording.output, recording.exit_code, recording.commands) == ("Usage: launch.sh GPUS\n", 1, ())
    assert recorded(tmp_path, usage, "8").commands[0].words == ("train", "8")


@pytest.mark.parametrize(
    "script",
    [
        "set -m\nwhile true; do nvidia-smi; sleep 60; done &\ntrain",
        "while true; do nvidia-smi; sleep 60; done &\nMONITOR=$!\ntrain\nbuiltin kill $MONITOR || true",
        "(setsid nothing; while :; do :; done) &\ndisown\ntrain",
        "(sleep 5; sleep 5; train) & sleep 5; sleep 5; sleep 5; sleep 5; sleep 5; wait",
    ],
    ids=["a group of its own", "a monitor", "a busy loop", "sleep"],
)
def test_background_jobs_end_with_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(recorder, "_MAX_BACKGROUND_SECONDS", 1.0)
    others = {process.pid for process in psutil.process_iter()}
    found = recorded(tmp_path, script)
    assert [each.words for each in found.commands].count(("train",)) == 1 and found.exit_code == 0, found
    assert [each.words for each in found.commands].count(("nvidia-smi",)) <= 4
    remaining = [each for each in psutil.process_iter(["cmdline", "pid"]) if each.pid not in others]
    of_script = [each for each in remaining if str(tmp_path) in " ".join(each.info["cmdline"] or ())]
    assert not psutil.wait_procs(of_script, timeout=60)[1]  # one that was killed may still be ending


@pytest.mark.parametrize(
    ("script", "limit"),
    [
        ("bomb() { bomb & bomb & while :; do :; done; }; bomb", "256 processes"),
        ("while :; do train; done", "files"),
        ("x=x; while :; do x=$x$x; echo ${#x}; done", None),
        ("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done", "MB for one file"),
        ("yes=$(seq 400000); while :; do echo \"$yes\"; done > out", "MB for one file"),
        ("yes=$(seq 400000); n=0; while :; do echo \"$yes\" > out$n; n=$((n+1)); done", "MB of files"),
    ],
    ids=["processes", "records", "memory", "output", "a file", "files"],
)  # fmt: skip
def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, limit: str | None) -> None:
    monkeypatch.setattr(recorder, "_MAX_FILES", 300)
    monkeypatch.setattr(recorder, "_MAX_FILE_BYTES", 3_000_000)
    if limit is None:
        monkeypatch.setattr(recorder, "_MAX_MEMORY_BYTES", 200_000_000)
    found = recorded(tmp_path, f"train\n{script}")
    assert ("train",) in [each.words for each in found.commands]
    if limit is not None:
        assert found.exit_code is None and limit in found.stopped
    else:
        assert found.exit_code != 0 and ("limit" in found.stopped or "allocate" in found.errors)


def test_a_command_whose_record_is_cut_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MAX_FILE_BYTES", 3_000_000)
    found = recorded(tmp_path, "train whole\ntrain cut $(seq 600000)")
    assert [each.words for each in found.commands] == [("train", "whole")]
    assert found.exit_code is None and "3 MB for one file" in found.stopped


@pytest.mark.parametrize("signal", ["-0", "-TERM", "-KILL"])
def test_no_signal_leaves_the_script(tmp_path: Path, signal: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as victim:
        found = recorded(
            tmp_path, f"builtin kill {signal} {victim.pid} && train; builtin kill {signal} -1 && train; x"
        )
        assert [each.words for each in found.commands] == [("x",)] and victim.poll() is None
        victim.kill()


@pytest.mark.parametrize("seconds", ["1", "08", "60"])
def test_a_script_that_waits_for_a_monitor_is_ended(tmp_path: Path, seconds: str) -> None:
    found = recorded(tmp_path, f"while true; do nvidia-smi; sleep {seconds}; done &\ntrain\nwait")
    assert [each.words for each in found.commands].count(("train",)) == 1
    assert [each.words for each in found.commands].count(("nvidia-smi",)) == 4
    assert (found.exit_code, found.stopped) == (None, "when all that was left of it waited")


def test_a_process_that_ran_between_two_looks_was_not_idle() -> None:
    """It waits at both of them."""
    with subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as cat:
        assert cat.stdin is not None and cat.stdout is not None

        def look() -> recorder._Usage:
            """The usage while it waits, which on a busy machine it soon does."""
            while not (seen := recorder._usage(cat.pid)).is_waiting:
                os.sched_yield()
            return seen

        cat.stdin.write(b"a\n")
        cat.stdin.flush()
        cat.stdout.readline()
        first = look()
        assert not first.is_idle_since(None) and look().is_idle_since(first)
        cat.stdin.write(b"b\n")
        cat.stdin.flush()
        cat.stdout.readline()
        assert not look().is_idle_since(first)


def test_a_file_that_is_gone_when_it_is_measured_has_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sed -i` writes a temporary file, which it renames."""
    (tmp_path / "kept").write_bytes(bytes(10))
    (tmp_path / "gone").touch()
    scan = os.scandir

    @contextlib.contextmanager
    def late(folder: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scan(folder) as entries:
            found = list(entries)
        (tmp_path / "gone").unlink()
        yield found

    monkeypatch.setattr(os, "scandir", late)
    monkeypatch.setattr(recorder, "_MAX_TOTAL_BYTES", 9)
    assert recorder._exceeded(recorder._Usage({}, 0, True), tmp_path) == "at the limit of 0 MB of files"
