"""Wall time of a step whose reward takes 0.2 s per rollout, with scoring after or during sampling.

    .venv/bin/python benchmarks/rollout_overlap.py [--before FOLDER]

Measures Strop only, with one thread: 8 tasks x 8 rollouts of up to 256 tokens by a random model (hidden 128, 4
layers), which end at random, after 40 tokens on average. The reward is a function that sleeps for 0.2 s, in 8
worker processes, or a judge: a fake server on this machine that replies after 0.2 s, with 8 concurrent requests.
`--before` names a checkout of an older version of Strop, which is measured as well. A figure is the median of 3
steps after one warm-up step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SECONDS = 0.2
CONCURRENT = 8
STEPS = 3
COLUMNS = ("time/step_seconds", "time/sample_seconds", "time/reward_seconds", "time/update_seconds")


def slow_reward(completion: str) -> float:
    """Return the fraction of vowels, after 0.2 s."""
    time.sleep(SECONDS)
    return sum(letter in "aeiou" for letter in completion) / max(1, len(completion))


@contextmanager
def fake_judge() -> Iterator[str]:
    """Serve OpenAI's protocol with replies after 0.2 s that have a score from 0 to 10; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"data": []})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(SECONDS)
            self._send(
                {"choices": [{"message": {"role": "assistant", "content": f"Score: {len(body) % 11}"}}]}
            )

        def _send(self, content: dict[str, Any]) -> None:
            raw = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def measure(folder: Path, kind: str) -> dict[str, float]:
    """Return the median durations of a step. Runs in a separate process."""
    import strop

    def values(reward: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": kind,
            "output": str(folder / "runs"),
            "resume": "never",
            "model": {"path": str(folder / "model")},
            "data": {
                "train": {"path": str(folder / "prompts.jsonl"), "answer": None},
                "max_prompt_tokens": 256,
                "max_response_tokens": 256,
            },
            "reward": reward,
            # 1 of 40 tokens ends a response.
            "rollout": {"sampling": {"stop_token_ids": list(range(10, 320, 40))}},
            "algorithm": {"type": "grpo", "rollouts_per_task": 8},
            "trainer": {"duration": f"{STEPS + 1} steps", "tasks_per_step": 8},
            "record": {"monitors": [], "report": False},
        }

    if kind == "function":
        function = f"{Path(__file__).resolve()}:slow_reward"
        result = strop.train(
            strop.load(values({"functions": [{"function": function}], "workers": CONCURRENT}))
        )
    else:
        with fake_judge() as url:
            judge = {"url": url, "model": "fake"}
            # `calls` is the deprecated name of `judge_calls`; older versions of Strop have no other.
            result = strop.train(
                strop.load(values({"judges": [judge], "calls": {"concurrency": CONCURRENT}}))
            )
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()][-STEPS:]
    return {name: statistics.median(row[name] for row in rows) for name in COLUMNS}


def prepare(folder: Path) -> None:
    """Write the model and the prompts."""
    from strop.models.tiny import make_model

    prompts = [f"tell me about {number} and {number * 7 % 64}" for number in range(64)]
    make_model(folder / "model", prompts, vocab_size=320, hidden_size=128, layers=4, heads=4, kv_heads=2)
    rows = ({"prompt": [{"role": "user", "content": text}]} for text in prompts)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """Run the command line: print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--before", type=Path, help="checkout of an older version of Strop")
    parser.add_argument("--child", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        kind, folder = arguments.child
        print(json.dumps(measure(Path(folder), kind)))
        return
    versions = {"after": Path(__file__).resolve().parents[1]}
    if arguments.before:
        versions = {"before": arguments.before.resolve(), **versions}
    print("| reward | version | step s | sample s | reward s | update s |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary))
        for kind, label in (("function", "function, 0.2 s"), ("judge", "judge over HTTP, 0.2 s")):
            for version, tree in versions.items():
                environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
                command = [sys.executable, __file__, "--child", kind, temporary]
                output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                figures = json.loads(output.stdout.splitlines()[-1])
                print(
                    f"| {label} | {version} | "
                    + " | ".join(f"{figures[name]:.2f}" for name in COLUMNS)
                    + " |"
                )


if __name__ == "__main__":
    main()
