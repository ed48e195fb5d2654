"""Does it learn? Every algorithm's run file on the quickstart's task, from one warm start.

    make evidence ARGS=learning                                             # into docs/algorithms/learning.md
    .venv/bin/python benchmarks/learning.py --only ppo remax --seeds 1      # these alone, to the screen

What learns from rollouts is run with three seeds, what learns from given answers with the first of them.
Each run is `strop train` in a process of its own, whose CPU-seconds are counted, imports and evaluations
included. What was measured is kept in `--out`, and only what is missing there is run. Data, model and warm
start are made once, as the quickstart makes them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "algorithms"
PICTURE = ROOT / "docs" / "algorithms" / "learning.png"
SEEDS = (1, 2, 3)
ACCURACY = "eval/held-out/reward"


@dataclass(frozen=True)
class Subject:
    """What is trained, for how long, and by what it is judged."""

    steps: int | None = 40
    """None: as long as the run file says."""
    metrics: tuple[str, ...] = (ACCURACY,)


FROM_ROLLOUTS = {
    "grpo": Subject(),
    "dr_grpo": Subject(),
    "grpo_passk": Subject(metrics=("eval/held-out/pass@4",)),
    "rloo": Subject(),
    "opo": Subject(),
    "gpg": Subject(),
    # Its loss is the plain policy gradient's by half, in one update a step: it takes longer.
    "opmd": Subject(steps=80),
    "reinforce_plus_plus": Subject(),
    "reinforce_plus_plus_baseline": Subject(),
    "remax": Subject(),
    # Its critic has to learn first.
    "ppo": Subject(steps=100),
    "gspo": Subject(),
    "cispo": Subject(),
    "dapo": Subject(),
}
FROM_GIVEN_ANSWERS = {
    "sft": Subject(steps=None, metrics=("eval/held-out/loss", ACCURACY)),
    "dpo": Subject(steps=None, metrics=("eval/held-out/dpo/margin", "eval/held-out/dpo/accuracy")),
    "mix": Subject(steps=None, metrics=(ACCURACY, "sft_loss")),
}
SUBJECTS = FROM_ROLLOUTS | FROM_GIVEN_ANSWERS


@dataclass(frozen=True)
class Measured:
    """One run: where it was measured, and what came out."""

    steps: list[int]
    values: dict[str, list[float]]
    """By metric, at these steps; of a training metric the mean of the steps since the last one."""
    cpu_seconds: float

    def before(self, metric: str) -> float:
        """The first measurement."""
        return self.values[metric][0]

    def after(self, metric: str) -> float:
        """The last one."""
        return self.values[metric][-1]


def prepare(folder: Path) -> None:
    """The quickstart's data, model and warm start, and the preference pairs, unless they are there."""
    if (folder / "pairs-test.jsonl").is_file():
        return
    sys.path.insert(0, str(ROOT / "examples" / "quickstart"))
    from quickstart import prepare as prepare_quickstart

    folder.mkdir(parents=True, exist_ok=True)
    os.environ["QUICKSTART"] = str(folder)
    prepare_quickstart(folder, seed=1)
    subprocess.run([sys.executable, EXAMPLES / "pairs.py"], check=True)


def measure(name: str, seed: int, folder: Path) -> Measured:
    """Run, or read what an earlier run left."""
    kept = folder / "measured" / f"{name}-{seed}.json"
    if kept.is_file():
        return Measured(**json.loads(kept.read_text()))
    subject = SUBJECTS[name]
    overrides = [f"seed={seed}", f"output={folder}", "project=runs", f"name={name}-{seed}", "resume=never"]
    overrides += ["record.report=false", "record.monitors=[console]"]
    if subject.steps is not None:
        overrides += [f"trainer.duration={subject.steps} steps", "evaluate.every=5 steps"]
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "strop", "train", str(EXAMPLES / f"{name}.yaml"), *overrides]
    environment = os.environ | {"QUICKSTART": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime
    metrics = folder / "runs" / f"{name}-{seed}" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    measured = collect(rows, subject.metrics, cpu)
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(asdict(measured)) + "\n")
    return measured


def collect(rows: Sequence[dict[str, float]], metrics: Sequence[str], cpu_seconds: float) -> Measured:
    """What a run's rows say of these metrics, at the steps that were evaluated."""
    looks = [i for i, row in enumerate(rows) if any(name.startswith("eval/") for name in row)]
    values: dict[str, list[float]] = {}
    for metric in metrics:
        if metric.startswith("eval/"):
            values[metric] = [rows[i][metric] for i in looks]
        else:
            spans = zip([1, *(i + 1 for i in looks[1:-1])], (i + 1 for i in looks[1:]), strict=True)
            means = [_mean([row[metric] for row in rows[a:b]]) for a, b in spans]
            values[metric] = [rows[1][metric], *means]
    return Measured([int(rows[i]["step"]) for i in looks], values, cpu_seconds)


def table_of_rollouts(found: dict[str, list[Measured]], seeds: Sequence[int]) -> str:
    """A row for each algorithm, before and after for each seed."""
    titles = ["run file", "steps", *(f"seed {seed}" for seed in seeds), "least lift", "CPU-seconds a run"]
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for name, runs in found.items():
        metric = FROM_ROLLOUTS[name].metrics[0]
        lifts = [run.after(metric) - run.before(metric) for run in runs]
        label = _link(name) + (" (pass@4)" if "pass@" in metric else "")
        cells = [f"{run.before(metric):.3f} → {run.after(metric):.3f}" for run in runs]
        cpu = f"{_mean([run.cpu_seconds for run in runs]):.0f}"
        lines.append(f"| {' | '.join([label, str(runs[0].steps[-1]), *cells, f'+{min(lifts):.3f}', cpu])} |")
    return "\n".join(lines)


def table_of_answers(found: dict[str, Measured]) -> str:
    """A row for each metric of sft, dpo and mix."""
    lines = ["| run file | what | steps | before → after | CPU-seconds |", f"|{' --- |' * 5}"]
    for name, run in found.items():
        for metric in FROM_GIVEN_ANSWERS[name].metrics:
            change = f"{run.before(metric):.3f} → {run.after(metric):.3f}"
            cells = [_link(name), f"`{metric}`", str(run.steps[-1]), change, f"{run.cpu_seconds:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(found: dict[str, list[Measured]], to: Path) -> None:
    """One panel for each algorithm: the mean over seeds, between the lowest and the highest of them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 5
    figure, axes = pyplot.subplots(-(-len(found) // columns), columns, figsize=(12, 7), sharey=True)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, (name, runs) in zip(axes.flat, found.items(), strict=False):
        metric = FROM_ROLLOUTS[name].metrics[0]
        curves = [run.values[metric] for run in runs]
        at_each = list(zip(*curves, strict=True))
        steps = runs[0].steps
        axis.fill_between(steps, [min(v) for v in at_each], [max(v) for v in at_each], alpha=0.25, lw=0)
        axis.plot(steps, [_mean(values) for values in at_each])
        axis.set_title(name + (", pass@4" if "pass@" in metric else ""), fontsize=9)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=8)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("held-out accuracy", fontsize=9)
    figure.tight_layout()
    figure.savefig(to, dpi=100)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _link(name: str) -> str:
    return f"[{name}](../../examples/algorithms/{name}.yaml)"


def main() -> None:
    """The command line. With no choice of names and seeds, the picture in the docs is drawn anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=list(SUBJECTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "learning")
    args = parser.parse_args()
    folder = args.out.absolute()
    prepare(folder)
    rollouts: dict[str, list[Measured]] = {name: [] for name in args.only if name in FROM_ROLLOUTS}
    for seed in args.seeds:
        for name, runs in rollouts.items():
            runs.append(measure(name, seed, folder))
    answers = {name: measure(name, args.seeds[0], folder) for name in args.only if name in FROM_GIVEN_ANSWERS}
    if rollouts:
        print(table_of_rollouts(rollouts, args.seeds))
    if answers:
        print("\n" + table_of_answers(answers))
    if args.only == list(SUBJECTS) and args.seeds == list(SEEDS):
        draw(rollouts, PICTURE)


if __name__ == "__main__":
    main()
