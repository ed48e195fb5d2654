"""Members of a sweep: one run for each combination of values and each seed."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.config.load.loader import LoadedRun, load_run
from strop.config.save import resolved_text
from strop.errors import ConfigError, RunFolderError
from strop.runs.folder import RunFolder
from strop.runs.overview import run_state
from strop.runs.reader import read_run

_MAX_NAME = 100
"""Maximum length of a run's name."""
_MAX_RUNS = 1000
"""Maximum number of runs of a sweep."""
_NOT_IN_NAMES = re.compile(r"[^\w .+=,@-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class SweepMember:
    """One run of a sweep."""

    setting: str
    """Overrides that only some members have, without the seed: `trainer.optimizer.lr=1e-5`."""
    seed: int | None
    """Seed; None for that of the run file."""
    overrides: tuple[str, ...]
    """All overrides of the run, with its name."""
    loaded: LoadedRun

    @property
    def folder(self) -> RunFolder:
        """Folder of the run, of its last stage."""
        return RunFolder.of(self.loaded.run)

    @property
    def is_finished(self) -> bool:
        """Whether the run has reached its end, with the configuration that it would be started with."""
        file = self.folder.run_file
        if not file.is_file() or file.read_text(encoding="utf-8") != resolved_text(self.loaded.run):
            return False
        try:
            return run_state(read_run(self.folder.path)) == "finished"
        except RunFolderError:
            return False  # its start names the damage


def sweep_members(
    run: Path, overrides: Sequence[str], seeds: Sequence[int], *, here: bool
) -> list[SweepMember]:
    """The runs of a sweep, in the order of the values, seeds last. `key=a,b` has one run for each value, as in Hydra.

    Raises ConfigError for a run file that any of them cannot be loaded from, and for members that share a folder.
    """
    choices = [_choices(text) for text in overrides]
    if math.prod(map(len, choices)) * max(len(seeds), 1) > _MAX_RUNS:
        raise ConfigError(f"The sweep has more than {_MAX_RUNS} runs: write fewer values or seeds.")
    base = load_run(run, [values[0] for values in choices], here=here).run.name
    members = []
    for chosen in itertools.product(*choices):
        varied = [text for text, values in zip(chosen, choices, strict=True) if len(values) > 1]
        for seed in seeds or (None,):
            seeded = [] if seed is None else [f"seed={seed}"]
            name = _name(base, [*varied, *seeded])
            given = (*chosen, *seeded, f"name='{name}'")
            members.append(SweepMember(" ".join(varied), seed, given, load_run(run, given, here=here)))
    if len(members) < 2:
        raise ConfigError(
            "A sweep has several values of a key, or several seeds: write trainer.optimizer.lr=1e-5,3e-5, or "
            "--seeds 1,2,3."
        )
    if len({member.folder.path for member in members}) < len(members):
        raise ConfigError(
            "Several runs of the sweep would have one folder. Leave `folder` out of the run file, so that each has "
            "<output>/<project>/<name>, and write no value twice."
        )
    return members


def parse_seeds(text: str | None) -> list[int]:
    """Seeds of `1,2,3`. Raises ConfigError for another text."""
    if text is None:
        return []
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise ConfigError(f"--seeds {text!r}: write numbers with commas between them, such as 1,2,3.")
    return list(dict.fromkeys(map(int, text.split(","))))


def _choices(text: str) -> list[str]:
    """The overrides that a sweep override stands for; the override itself if it has one value. Raises ConfigError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(text)
        if not override.is_sweep_override():
            return [text]
        if not override.is_discrete_sweep():
            raise ConfigError(
                f"override {text!r}: write the values of a sweep, such as key=a,b, and no interval."
            )
        values = itertools.islice(override.sweep_string_iterator(), _MAX_RUNS + 1)
        return [f"{override.get_key_element()}={value}" for value in values]
    except HydraException:
        return [text]  # loading the run reports the fault


def _name(base: str, varied: Sequence[str]) -> str:
    """Name of a member: the run's, and the last part of each key that varies, with its value."""
    parts = [
        f"{key.rpartition('.')[2].lstrip('+')}={value}"
        for key, _, value in (text.partition("=") for text in varied)
    ]
    name = _NOT_IN_NAMES.sub("-", "_".join([base, *parts]))
    if len(name) <= _MAX_NAME and len(set(parts)) == len(parts):
        return name
    digest = hashlib.sha256(" ".join(varied).encode()).hexdigest()[:8]
    return f"{name[: _MAX_NAME - 9]}_{digest}"
