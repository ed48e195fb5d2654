"""Rows per second of task pipelines: Strop's, Data-Juicer's own runner, and `datasets` with `map` and `filter`.

    python benchmarks/pipelines.py --rows 100000 --juicer .venv-datajuicer/bin/python

Rows like GSM8K's, as JSON Lines, with every tenth one a copy. Each runner does the same work in one process, from the
file to a dataset on disk, with an empty cache: `words` keeps questions of 20 to 60 words, `exact` removes equal
questions, `minhash` removes similar ones (word 5-grams, 128 permutations, similarity 0.8), `all` is the three in this
order. The runners take turns; each figure is that of the repetition with the fewest CPU-seconds, without imports.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CASES = {
    "words": ("words",),
    "exact": ("exact",),
    "minhash": ("minhash",),
    "all": ("words", "exact", "minhash"),
}
RUNNERS = ("strop", "data-juicer", "datasets")
_STROP: dict[str, dict[str, Any]] = {
    "words": {"type": "length", "column": "question", "unit": "words", "min": 20, "max": 60},
    "exact": {"type": "deduplicate", "columns": ["question"], "method": "exact"},
    "minhash": {"type": "deduplicate", "columns": ["question"], "method": "minhash", "similarity": 0.8},
}
_JUICER: dict[str, dict[str, Any]] = {
    "words": {"words_num_filter": {"min_num": 20, "max_num": 60, "text_key": "question"}},
    "exact": {"document_deduplicator": {"text_key": "question"}},
    "minhash": {
        "document_minhash_deduplicator": {
            "text_key": "question",
            "tokenization": "space",
            "window_size": 5,
            "num_permutations": 128,
            "jaccard_threshold": 0.8,
        }
    },
}
Finish = Callable[[], int]
"""Runs the operators, and returns the number of rows that are left."""


def strop_runner(file: Path, folder: Path, operators: Sequence[str]) -> Finish:
    """`data.pipeline`, as `strop data run` executes it."""
    import datasets  # noqa: F401 - imported before the measurement
    import datasketch  # noqa: F401

    import strop
    from strop.run.entry.prepare_data import prepare_data

    values = {
        "model": {"path": "unused"},
        "data": {
            "train": {"path": str(file), "prompt": "question", "answer": "answer"},
            "pipeline": {"operators": [_STROP[name] for name in operators], "cache": str(folder / "strop")},
        },
        "reward": "gsm8k",
        "output": str(folder / "runs"),
    }
    run = strop.load(values).run

    def finish() -> int:
        result = prepare_data(run)
        assert result is not None
        return int(result.manifest["rows_out"])

    return finish


def juicer_runner(file: Path, folder: Path, operators: Sequence[str]) -> Finish:
    """Data-Juicer's `DefaultExecutor`, as `dj-process` executes it."""
    config = importlib.import_module("data_juicer.config")
    core = importlib.import_module("data_juicer.core")
    for name in operators:
        importlib.import_module("data_juicer.ops").load_ops([_JUICER[name]])
    out = folder / "juicer" / "out.jsonl"
    recipe = {
        "dataset_path": str(file),
        "export_path": str(out),
        "work_dir": str(out.parent),
        "text_keys": "question",
        "np": 1,
        "process": [_JUICER[name] for name in operators],
    }
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe))

    def finish() -> int:
        core.DefaultExecutor(config.init_configs(["--config", str(path)])).run(skip_return=True)
        return sum(1 for _ in out.open("rb"))

    return finish


def datasets_runner(file: Path, folder: Path, operators: Sequence[str]) -> Finish:
    """`datasets` alone: `load_dataset`, `filter`, `map`, `save_to_disk`."""
    import datasets
    from datasketch import MinHash, MinHashLSH

    def words(row: dict[str, Any]) -> bool:
        return 20 <= len(row["question"].split()) <= 60

    def signatures(batch: dict[str, Any]) -> dict[str, Any]:
        grams = []
        for text in batch["question"]:
            parts = text.lower().split()
            grams.append([" ".join(parts[n : n + 5]).encode() for n in range(max(1, len(parts) - 4))])
        return {"signature": [made.hashvalues for made in MinHash.bulk(grams, num_perm=128)]}

    def similar(rows: Any) -> list[int]:
        index, kept = MinHashLSH(threshold=0.8, num_perm=128), {}
        scheme = MinHash(num_perm=128).scheme
        for number, values in enumerate(rows.with_format("numpy")["signature"]):
            made = MinHash(num_perm=128, hashvalues=values, scheme=scheme)
            if not any(kept[found].jaccard(made) >= 0.8 for found in index.query(made)):
                index.insert(number, made)
                kept[number] = made
        return list(kept)

    def finish() -> int:
        rows = datasets.load_dataset(
            "json", data_files=str(file), split="train", cache_dir=str(folder / "cache")
        )
        for name in operators:
            if name == "words":
                rows = rows.filter(words)
            elif name == "exact":
                known: set[str] = set()
                first = [not (text in known or known.add(text)) for text in rows["question"]]  # type: ignore[func-returns-value]
                rows = rows.select([number for number, keep in enumerate(first) if keep])
            else:
                rows = rows.map(signatures, batched=True)
                rows = rows.select(similar(rows))
        rows.save_to_disk(str(folder / "result"))
        return len(rows)

    return finish


_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
_MAKERS = {"strop": strop_runner, "data-juicer": juicer_runner, "datasets": datasets_runner}


def measure(runner: str, case: str, file: Path) -> None:
    """Run one case in this process, and print the measurements as JSON."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(sys.stderr):
        finish = _MAKERS[runner](file, Path(name), CASES[case])
        started, before = time.perf_counter(), _cpu_seconds()
        left = finish()
        cpu, wall = _cpu_seconds() - before, time.perf_counter() - started
        kilobytes = max(resource.getrusage(who).ru_maxrss for who in _WHO)
    print(json.dumps({"cpu": cpu, "wall": wall, "left": left, "megabytes": kilobytes / 1024}))


def _cpu_seconds() -> float:
    """CPU-seconds of this process and of its children; Data-Juicer forks one for an operator."""
    usages = [resource.getrusage(who) for who in _WHO]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def write_rows(file: Path, count: int) -> None:
    """Write the rows; every tenth one is a copy of an earlier one."""
    from tasksets import write_rows as write_distinct

    write_distinct(file, count)
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[9::10] = [lines[number // 2] for number in range(9, len(lines), 10)]
    file.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Print a table of all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument(
        "--juicer", default=".venv-datajuicer/bin/python", help="interpreter with py-data-juicer"
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        runner, case, file = options.measure
        measure(runner, case, Path(file))
        return
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "train.jsonl"
        write_rows(file, options.rows)
        environment = os.environ | {
            "STROP_CACHE": f"{name}/cache",
            "HF_HOME": f"{name}/hf",
            "OMP_NUM_THREADS": "1",
        }
        print(
            "| operators | runner | rows left | CPU-seconds | rows per CPU-second | rate against Strop's | peak MB |"
        )
        print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
        for case in options.cases:
            best: dict[str, dict[str, float]] = {}
            for _ in range(options.repeat):
                for runner in RUNNERS:
                    python = options.juicer if runner == "data-juicer" else sys.executable
                    command = [python, __file__, "--measure", runner, case, str(file)]
                    done = subprocess.run(
                        command, env=environment, capture_output=True, text=True, check=False
                    )
                    if done.returncode:
                        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
                    found = json.loads(done.stdout.splitlines()[-1])
                    if runner not in best or found["cpu"] < best[runner]["cpu"]:
                        best[runner] = found
            for runner, found in best.items():
                print(
                    f"| {case} | {runner} | {found['left']} | {found['cpu']:.1f} | {options.rows / found['cpu']:,.0f} "
                    f"| {best['strop']['cpu'] / found['cpu']:.2f} | {found['megabytes']:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
