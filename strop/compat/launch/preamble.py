"""Bash functions that stand in for programs and for builtin commands with effects, while a script is recorded."""

from __future__ import annotations

from collections.abc import Sequence

RECORD_PREFIX = "record-"
"""Start of the names of the files with records; the time that follows orders them."""
OUTPUT_FUNCTION = "__strop_output"

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


def preamble(scratch: str, paths: Sequence[str], silent: int) -> str:
    """The functions; `scratch` is the folder of records and of the script's output files, `paths` are the
    programs that the script names with their folders, and `silent` is a descriptor with nothing to read.

    `sleep` returns at once, but in a background job from the fourth time on it pauses for the time that it names, and
    for at least 3 s, because a job that repeats something each second or minute has no end: it is seen to wait."""
    named = "\n".join(f'function {path} {{ __strop_record {path} "$@"; }}' for path in paths)
    return f"__strop_scratch={scratch} __strop_silent={silent}\n{_FUNCTIONS}\n{named}\n"
