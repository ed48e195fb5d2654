"""Held-out accuracy before and after training, for each algorithm's run file on the quickstart's task.

    make evidence ARGS=learning                                             # updates docs/results.md
    .venv/bin/python benchmarks/learning.py --only ppo remax --seeds 1      # prints these only

Algorithms that train on rollouts run with three seeds, and algorithms that train on demonstrations with the first
seed. Each run is `strop train` in a separate process, whose CPU-seconds include imports and evaluations. Results
are stored in `--out`, and only missing runs are executed. Data, model and warm start are made once, as in the
quickstart.
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
PLOT = ROOT / "docs" / "learning.png"
SEEDS = (1, 2, 3)
ACCURACY = "eval/held-out/reward"


@dataclass(frozen=True)
class RunSpec:
    """Length and metrics of the runs of one algorithm."""

    steps: int | None = 40
    """Number of steps; None for the run file's duration."""
    metrics: tuple[str, ...] = (ACCURACY,)
    """Metrics of the table."""
    policy_loss: str | None = None
    """Policy loss in place of that of the run file, which is then grpo's; options follow its name."""
    teacher: str | None = None
    """Algorithm whose model the run file reads as `TEACHER`; None for none."""


def with_loss(policy_loss: str) -> RunSpec:
    """GRPO's run file with another policy loss."""
    return RunSpec(policy_loss=policy_loss)


ON_ROLLOUTS = {
    "grpo": RunSpec(),
    "dr_grpo": RunSpec(),
    "grpo_passk": RunSpec(metrics=("eval/held-out/pass@4",)),
    "rloo": RunSpec(),
    "opo": RunSpec(),
    "gpg": RunSpec(),
    # It needs more steps: one update per step, with half the norm of the plain policy gradient.
    "opmd": RunSpec(steps=80),
    "reinforce_plus_plus": RunSpec(),
    "reinforce_plus_plus_baseline": RunSpec(),
    "remax": RunSpec(),
    # It needs more steps, because its critic has to be trained first.
    "ppo": RunSpec(steps=100),
    "gspo": RunSpec(),
    "cispo": RunSpec(),
    "dapo": RunSpec(),
    "reinforce": RunSpec(),
    "raft": RunSpec(),
    "asymre": RunSpec(),
    "prime": RunSpec(),
    "gvpo": RunSpec(),
    "self_play": RunSpec(),
    "online_dpo": RunSpec(),
    "gmpo": with_loss("{type: gmpo}"),
    "sapo": with_loss("{type: sapo}"),
    "dppo_tv": with_loss("{type: dppo_tv}"),
    "dppo_kl": with_loss("{type: dppo_kl}"),
    "importance_sampling": with_loss("{type: importance_sampling}"),
    "clip_cov": with_loss("{type: clip_cov, token_fraction: 0.02}"),
    "kl_cov": RunSpec(),
    "topr": with_loss("{type: topr}"),
    "sppo": with_loss("{type: sppo}"),
    "rec": with_loss("{type: rec, clipping: one_side, weight: ratio}"),
    "dro": with_loss("{type: dro}"),
    "m2po": with_loss("{type: m2po}"),
    "gkd": RunSpec(metrics=(ACCURACY, "distillation_loss/divergence", "demonstration_loss"), teacher="sft"),
    "distillation": RunSpec(metrics=(ACCURACY, "distillation_loss/divergence"), teacher="sft"),
}
ON_DEMONSTRATIONS = {
    "sft": RunSpec(steps=None, metrics=("eval/held-out/loss", ACCURACY)),
    **dict.fromkeys(
        ("dpo", "tr_dpo", "simpo", "orpo"),
        RunSpec(steps=None, metrics=("eval/held-out/pairs/margin", "eval/held-out/pairs/accuracy")),
    ),
    **dict.fromkeys(
        ("kto", "bco"),
        RunSpec(steps=None, metrics=("eval/held-out/labels/margin", "eval/held-out/labels/accuracy")),
    ),
    "reward_model": RunSpec(
        steps=None,
        metrics=(
            "eval/held-out/loss",
            "eval/held-out/pairs/accuracy",
            "eval/held-out/pairs/calibration_error",
        ),
    ),
    "mix": RunSpec(steps=None, metrics=(ACCURACY, "sft_loss")),
}
ALGORITHMS = ON_ROLLOUTS | ON_DEMONSTRATIONS


@dataclass(frozen=True)
class Measured:
    """Measurement of one run."""

    steps: list[int]
    """Evaluated steps."""
    values: dict[str, list[float]]
    """Values of each metric at these steps; for a training metric the mean over the steps since the previous one."""
    cpu_seconds: float
    """CPU time of the whole run in seconds."""

    def before(self, metric: str) -> float:
        """Return the first value of a metric."""
        return self.values[metric][0]

    def after(self, metric: str) -> float:
        """Return the last value of a metric."""
        return self.values[metric][-1]


def prepare(folder: Path) -> None:
    """Write the quickstart's data, model and warm start, the preference pairs and labels, unless they exist."""
    if (folder / "labels-test.jsonl").is_file():
        return
    sys.path.insert(0, str(ROOT / "examples" / "quickstart"))
    from quickstart import prepare as prepare_quickstart

    folder.mkdir(parents=True, exist_ok=True)
    os.environ["QUICKSTART"] = str(folder)
    prepare_quickstart(folder, seed=1)
    subprocess.run([sys.executable, EXAMPLES / "pairs.py"], check=True)


def measure(name: str, seed: int, folder: Path) -> Measured:
    """Run an algorithm, or read the result of an earlier run."""
    result = folder / "measured" / f"{name}-{seed}.json"
    if result.is_file():
        return Measured(**json.loads(result.read_text()))
    spec = ALGORITHMS[name]
    overrides = [f"seed={seed}", f"output={folder}", "project=runs", f"name={name}-{seed}", "resume=never"]
    overrides += ["record.report=false", "record.monitors=[console]"]
    if spec.steps is not None:
        overrides += [f"trainer.duration={spec.steps} steps", "evaluate.every=5 steps"]
    environment = os.environ | {"QUICKSTART": str(folder), "OMP_NUM_THREADS": "1"}
    if spec.teacher is not None:
        measure(spec.teacher, seed, folder)
        environment["TEACHER"] = str(folder / "runs" / f"{spec.teacher}-{seed}" / "model")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if spec.policy_loss is not None:
        overrides.append(f"algorithm.policy_loss={spec.policy_loss}")
    command = [sys.executable, "-m", "strop", "train", str(_run_file(name)), *overrides]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    metrics = folder / "runs" / f"{name}-{seed}" / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    measured = collect(rows, spec.metrics, cpu)
    result.parent.mkdir(exist_ok=True)
    result.write_text(json.dumps(asdict(measured)) + "\n")
    return measured


def collect(rows: Sequence[dict[str, float]], metrics: Sequence[str], cpu_seconds: float) -> Measured:
    """Collect metrics from the rows of the evaluated steps."""
    evaluated = [i for i, row in enumerate(rows) if any(name.startswith("eval/") for name in row)]
    values: dict[str, list[float]] = {}
    for metric in metrics:
        if metric.startswith("eval/"):
            values[metric] = [rows[i][metric] for i in evaluated]
        else:
            begins, ends = [1, *(i + 1 for i in evaluated[1:-1])], [i + 1 for i in evaluated[1:]]
            spans = zip(begins, ends, strict=True)
            means = [_mean([row[metric] for row in rows[begin:end]]) for begin, end in spans]
            values[metric] = [rows[1][metric], *means]
    return Measured([int(rows[i]["step"]) for i in evaluated], values, cpu_seconds)


def rollout_table(results: dict[str, list[Measured]], seeds: Sequence[int]) -> str:
    """Format a row for each algorithm: the accuracy before and after training for each seed, and its mean, lowest
    and highest value after training."""
    titles = ["run file", "steps", *(f"seed {seed}" for seed in seeds), "mean (range) after", "minimum gain"]
    titles.append("CPU-seconds per run")
    lines = [f"| {' | '.join(titles)} |", f"|{' --- |' * len(titles)}"]
    for name, runs in results.items():
        metric = ON_ROLLOUTS[name].metrics[0]
        gains = [run.after(metric) - run.before(metric) for run in runs]
        after = [run.after(metric) for run in runs]
        spread = f"{_mean(after):.3f} ({min(after):.3f} to {max(after):.3f})"
        label = _link(name) + (" (pass@4)" if "pass@" in metric else "")
        cells = [f"{run.before(metric):.3f} → {run.after(metric):.3f}" for run in runs]
        cpu = f"{_mean([run.cpu_seconds for run in runs]):.0f}"
        row = [label, str(runs[0].steps[-1]), *cells, spread, f"+{min(gains):.3f}", cpu]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def demonstration_table(results: dict[str, Measured]) -> str:
    """Format a row for each metric of runs on given responses and of mix."""
    lines = ["| run file | metric | steps | before → after | CPU-seconds |", f"|{' --- |' * 5}"]
    for name, run in results.items():
        for metric in ON_DEMONSTRATIONS[name].metrics:
            change = f"{run.before(metric):.3f} → {run.after(metric):.3f}"
            cells = [_link(name), f"`{metric}`", str(run.steps[-1]), change, f"{run.cpu_seconds:.0f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: dict[str, list[Measured]], path: Path) -> None:
    """Draw a panel for each algorithm: mean over seeds, in a band from the minimum to the maximum."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 5
    lines = -(-len(results) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(12, 2.3 * lines), sharey=True)
    for axis in axes.flat[len(results) :]:
        axis.set_visible(False)
    for axis, (name, runs) in zip(axes.flat, results.items(), strict=False):
        metric = ON_ROLLOUTS[name].metrics[0]
        curves = [run.values[metric] for run in runs]
        by_step = list(zip(*curves, strict=True))
        steps = runs[0].steps
        axis.fill_between(steps, [min(v) for v in by_step], [max(v) for v in by_step], alpha=0.25, lw=0)
        axis.plot(steps, [_mean(values) for values in by_step])
        axis.set_title(name + (", pass@4" if "pass@" in metric else ""), fontsize=9)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=8)
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("held-out accuracy", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _run_file(name: str) -> Path:
    return EXAMPLES / f"{name if ALGORITHMS[name].policy_loss is None else 'grpo'}.yaml"


def _link(name: str) -> str:
    file, loss = _run_file(name), ALGORITHMS[name].policy_loss
    link = f"[{file.stem}](../../examples/algorithms/{file.name})"
    return link if loss is None else f"{link}, `policy_loss: {loss}`"


def main() -> None:
    """Run the command line. With all algorithms and seeds, the plot in the docs is drawn again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "learning")
    args = parser.parse_args()
    folder = args.out.absolute()
    prepare(folder)
    rollouts: dict[str, list[Measured]] = {name: [] for name in args.only if name in ON_ROLLOUTS}
    for seed in args.seeds:
        for name, runs in rollouts.items():
            runs.append(measure(name, seed, folder))
    demonstrations = {
        name: measure(name, args.seeds[0], folder) for name in args.only if name in ON_DEMONSTRATIONS
    }
    if rollouts:
        print(rollout_table(rollouts, args.seeds))
    if demonstrations:
        print("\n" + demonstration_table(demonstrations))
    if args.only == list(ALGORITHMS) and args.seeds == list(SEEDS):
        draw(rollouts, PLOT)


if __name__ == "__main__":
    main()
