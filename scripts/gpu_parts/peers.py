"""Part `peers`: a GRPO step of Strop, TRL and verl."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_parts.measuring import installed, print_table
from gpu_parts.options import Options
from gpu_parts.runs import absolute, engines, quickstart_run, run_command

_PEERS = Path(__file__).resolve().parents[1] / "gpu_peers.py"


def run_peers(options: Options) -> None:
    """The same GRPO step by Strop, TRL and verl: seconds, and peak memory of the training process."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = quickstart_run(options, folder, "native", steps=4)
        data, rollouts = settings["data"], settings["algorithm"]["rollouts_per_task"]
        settings |= {"reward": f"{_PEERS}:vowels", "data": absolute(data, folder)}
        for engine, section in engines(options).items():
            (folder / engine).mkdir()
            steps = run_command(folder / engine, settings | {"rollout": {"engine": section}})[1:]
            seconds = statistics.median(each["time/step_seconds"] for each in steps)
            rows.append((f"Strop, {engine}", f"{seconds:.2f}", "see memory"))
        questions = (
            json.loads(line)["question"] for line in (folder / "sums.jsonl").read_text().splitlines()
        )
        prompts = ({"prompt": [{"role": "user", "content": question}]} for question in questions)
        (folder / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in prompts))
        if not (folder / "model").exists():
            (folder / "model").symlink_to(Path(settings["model"]["path"]).resolve())
        sizes = {
            "--folder": folder,
            "--device": options.device.type,
            "--prompts": settings["trainer"]["tasks_per_step"],
            "--rollouts": rollouts,
            "--tokens": data["max_response_tokens"],
        }
        for peer in ("trl", "verl"):
            if not installed(peer):
                print(f"\npeers: {peer} is not installed.")
            elif peer == "verl" and options.device.type == "cpu":
                print("\npeers: verl completes no training step without a GPU.")
            else:
                rows.append(peer_row(peer, sizes))
    print_table("A GRPO step of each tool", ("tool", "seconds", "peak GiB"), rows)


def peer_row(peer: str, sizes: dict[str, object]) -> tuple[str, str, str]:
    """The row of TRL or verl, which `gpu_peers.py` runs in a process of its own with these arguments."""
    arguments = [str(each) for pair in sizes.items() for each in pair]
    command = [sys.executable, str(_PEERS), peer, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{peer} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    gib = "-" if found["gib"] is None else f"{found['gib']:.2f}"
    return peer, f"{statistics.median(found['seconds']):.2f}", gib
