"""Measurements of Strop on a GPU, as tables: correctness first, then speed and memory.

    .venv/bin/python scripts/gpu_evidence.py                       # all parts
    .venv/bin/python scripts/gpu_evidence.py kernels update        # some of them
    .venv/bin/python scripts/gpu_evidence.py --device cpu --small  # that the script itself works

| part | measures |
| --- | --- |
| suites | tests of models and training, with torch's own choice of devices |
| kernels | attention of each kernel, forward and gradient, against blocks of scores in float32; milliseconds |
| update | forward and backward of a packed micro-batch: no wait for the device, FLOP utilization, peak memory |
| step | phases of a GRPO step, sampled tokens per second, log-prob gap: native, and vLLM where it is installed |
| peers | a GRPO step of Strop, TRL and verl, where these are installed, on the same model, prompts and lengths |
| memory | peak of a run in one process against the plan |
| learning | reward by step of `--model` on `--data`, such as Qwen2.5-0.5B-Instruct on GSM8K; left out without them |

Models are random unless `--model` names a folder. Each part runs in a process of its own, so that one that fails does
not hide the others; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strop.models.packed_attention.attention import PackedLayout, attention, choose_kernel
from strop.models.packed_attention.block_kernel import block_attention
from strop.models.packed_attention.options import AttentionOptions
from strop.models.packed_attention.segments import PackedSegments

HERE = Path(__file__).resolve().parent.parent
DENSE_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12}
"""Peak of dense bfloat16 products, by a part of the GPU's name, from NVIDIA's data sheets."""
PHASES = ("sample", "reward", "update", "publish")
"""Phases of a step whose seconds are in a run's metrics."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the script."""

    device: torch.device
    small: bool
    """Sizes with which the script runs on a CPU in seconds."""
    model: Path | None
    data: Path | None


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table under a title."""
    print(f"\n{title}\n\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def milliseconds(device: torch.device, call: Callable[[], object], repeat: int = 10) -> float:
    """Median duration of a call, after two calls to warm up."""
    found = []
    for number in range(repeat + 2):
        wait_for(device)
        started = time.perf_counter()
        call()
        wait_for(device)
        if number >= 2:
            found.append(1000 * (time.perf_counter() - started))
    return statistics.median(found)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def no_waits(device: torch.device) -> Iterator[None]:
    """Raise an error at every operation that waits for the GPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def run_suites(options: Options) -> None:
    """The tests of models and training that CI runs on a CPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not (slow or faults or learning or evidence)"]
    tests = ["tests/models/test_gpu_kernels.py"] if options.small else ["tests/models", "tests/training"]
    done = subprocess.run([*command, *tests], cwd=HERE, capture_output=True, text=True, check=False)
    print_table("Suites", ("tests", "result"), [(" ".join(tests), done.stdout.strip().splitlines()[-1])])
    if done.returncode:
        sys.exit(done.stdout[-4000:])


def segments_of(groups: int, rollouts: int, prompt: int, response: int) -> PackedSegments:
    """Groups of responses to one shared prompt each."""
    lengths, prefix_of = [], []
    for _ in range(groups):
        shared = len(lengths)
        lengths += [prompt, *[response] * rollouts]
        prefix_of += [-1, *[shared] * rollouts]
    return PackedSegments(tuple(np.cumsum([0, *lengths]).tolist()), tuple(prefix_of))


def run_kernels(options: Options) -> None:
    """Every kernel on this device against blocks of scores in float32, whose CPU tests are the reference."""
    shapes = [(1, 2, 5, 3)] if options.small else [(4, 8, 512, 512), (1, 16, 2048, 1024)]
    rows = []
    for groups, rollouts, prompt, response in shapes:
        segments = segments_of(groups, rollouts, prompt, response)
        for dtype, window, softcap in (
            (torch.bfloat16, None, None),
            (torch.bfloat16, 256, None),
            (torch.float32, None, None),
            (torch.bfloat16, None, 50.0),
        ):
            torch.manual_seed(0)
            sizes = [(segments.tokens, heads, 64) for heads in (8, 2, 2)]
            inputs = [torch.randn(size, device=options.device).requires_grad_() for size in sizes]
            cast = [each.detach().to(dtype).requires_grad_() for each in inputs]
            attention_options = AttentionOptions(64**-0.5, window, softcap)
            layout = PackedLayout(segments, options.device)
            grad = torch.randn(sizes[0], device=options.device)
            expected = block_attention(*inputs, layout.blocks, attention_options)
            found = attention(*cast, layout, attention_options)
            gaps = [relative_gap(found, expected)]
            theirs = torch.autograd.grad(expected, inputs, grad)
            ours = torch.autograd.grad(found, cast, grad.to(dtype))
            gaps += [relative_gap(one, other) for one, other in zip(ours, theirs, strict=True)]

            took = milliseconds(
                options.device, partial(forward_and_backward, cast, layout, attention_options, grad.to(dtype))
            )
            kernel = choose_kernel(cast[0], cast[2], segments, attention_options)
            name = f"{groups} x {rollouts}, {prompt} + {response}"
            rows.append(
                (
                    name,
                    str(dtype)[6:],
                    window,
                    softcap,
                    kernel,
                    *(f"{gap:.1e}" for gap in gaps),
                    f"{took:.2f}",
                )
            )
    header = (
        "groups x rollouts, tokens",
        "dtype",
        "window",
        "softcap",
        "kernel",
        "output",
        "dq",
        "dk",
        "dv",
        "ms",
    )
    print_table(
        "Attention: relative gap to blocks in float32, and time of forward and backward", header, rows
    )


def forward_and_backward(
    inputs: Sequence[Tensor], layout: PackedLayout, options: AttentionOptions, grad: Tensor
) -> None:
    """One call of attention with its gradient."""
    torch.autograd.grad(attention(*inputs, layout, options), inputs, grad)


def relative_gap(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of the expected tensor."""
    one, other = found.detach().float(), expected.detach().float()
    return float((one - other).norm() / other.norm())


def model_folder(options: Options, folder: Path) -> Path:
    """The model of `--model`, or a random Qwen2 of about the shape of its 0.5B."""
    if options.model is not None:
        return options.model
    from strop.models.tiny import make_model

    sizes: dict[str, Any] = {"hidden_size": 64, "layers": 2, "vocab_size": 400}
    if not options.small:
        sizes = {"hidden_size": 896, "layers": 24, "heads": 14, "vocab_size": 600, "max_tokens": 8192}
        sizes["intermediate_size"] = 4864
    return make_model(folder / "model", ["one and one is two"], **sizes)


def run_update(options: Options) -> None:
    """Forward and backward of packed micro-batches, with an error at every wait for the GPU."""
    from transformers import AutoModelForCausalLM

    from strop.algorithms.registry import make_loss_fn
    from strop.config.schema.group_baselines import GrpoConfig
    from strop.config.units import Amount
    from strop.data.packing import pack
    from strop.models.logprobs import token_outputs
    from strop.models.packed_attention.forward import can_share_prompts, enable_packed_attention
    from strop.types import GlobalCounts, TrainingBatch

    groups, rollouts, prompt, response = (1, 2, 5, 3) if options.small else (4, 8, 256, 512)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = model_folder(options, Path(name))
        for dtype in (torch.float32, torch.bfloat16):
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(options.device)
            enable_packed_attention(model)
            supported, obstacle = can_share_prompts(model)
            if not supported:
                sys.exit(
                    f"packed attention on {options.device} does not give the model's own states: {obstacle}"
                )
            experiences = random_experiences(groups, rollouts, prompt, response)
            batch = TrainingBatch(experiences, advantages=[1.0] * len(experiences))
            (micro_batch,) = pack(
                batch, Amount(1_000_000, "tokens"), share_prompts=True, device=options.device
            )
            loss_fn, counts = (
                make_loss_fn(GrpoConfig(), max_response_tokens=response),
                GlobalCounts.of(experiences),
            )

            def step(model=model, micro_batch=micro_batch, loss_fn=loss_fn, counts=counts) -> None:
                outputs = token_outputs(model, micro_batch, entropy=False)
                loss_fn(micro_batch, outputs, counts).loss.backward()

            if options.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            step()
            with no_waits(options.device):
                step()
            took = milliseconds(options.device, step, repeat=5)
            tokens = len(micro_batch.token_ids)
            flops = 6 * sum(p.numel() for p in model.parameters()) * tokens
            peak = DENSE_FLOPS.get(gpu_name(options.device), 0.0)
            memory = torch.cuda.max_memory_allocated() / 2**30 if options.device.type == "cuda" else 0.0
            utilization = f"{flops / (took / 1000) / peak:.0%}" if peak and dtype == torch.bfloat16 else "-"
            rows.append((str(dtype)[6:], tokens, f"{took:.1f}", utilization, f"{memory:.2f}"))
            del model, step  # the next row's peak is without them
    header = ("dtype", "tokens", "ms", "model FLOP utilization, without attention", "peak GiB")
    print_table("Forward and backward of one micro-batch, with no wait for the device", header, rows)


def random_experiences(groups: int, rollouts: int, prompt: int, response: int) -> list[Any]:
    """Random tokens with shared prompts."""
    from strop.types import Experience

    draw = np.random.default_rng(0)
    found = []
    for group in range(groups):
        shared = draw.integers(3, 200, prompt)
        for index in range(rollouts):
            tokens = np.concatenate([shared, draw.integers(3, 200, response)]).astype(np.int32)
            zeros = np.zeros(len(tokens), dtype=np.float32)
            found.append(
                Experience(
                    id=f"{group}-{index}",
                    task_id=f"{group}",
                    group=f"{group}",
                    index=index,
                    turn=0,
                    token_ids=tokens,
                    loss_mask=np.arange(len(tokens)) >= prompt,
                    sampler_logprobs=zeros,
                    policy_logprobs=zeros,
                    reward=0.0,
                    status="ok",
                    temperature=1.0,
                    versions=(0,),
                )
            )
    return found


def gpu_name(device: torch.device) -> str:
    """The key of `DENSE_FLOPS` for a GPU; empty for a CPU or an unknown one."""
    if device.type != "cuda":
        return ""
    name = torch.cuda.get_device_name(device)
    return next((key for key in DENSE_FLOPS if key in name), "")


def run_command(folder: Path, overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of each step of a run with these settings."""
    import yaml

    (folder / "run.yaml").write_text(yaml.safe_dump(overrides))
    command = [sys.executable, "-m", "strop", "train", "run.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"strop train failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    (metrics,) = folder.glob("runs/**/metrics.jsonl")
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def quickstart_run(options: Options, folder: Path, engine: Any, steps: int) -> dict[str, Any]:
    """Settings of a run on sums in words."""
    rows = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(20) for b in range(20)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "name": "gpu",
        "output": "runs",
        "model": {"path": str(model_folder(options, folder)), "compute_dtype": "bfloat16"},
        "data": {
            "train": {"path": "sums.jsonl", "prompt": "question", "answer": "answer"},
            "max_prompt_tokens": 128,
            "max_response_tokens": 16 if options.small else 256,
        },
        "reward": "exact",
        "algorithm": {"type": "grpo", "rollouts_per_task": 4 if options.small else 16},
        "rollout": {"engine": engine},
        "trainer": {
            "duration": f"{steps} steps",
            "tasks_per_step": 2 if options.small else 32,
            "engine": {"type": "local", "device": options.device.type},
        },
        "record": {"monitors": [], "report": False},
    }


def run_step(options: Options) -> None:
    """Phases of a step by engine, sampled tokens per second, and the log-prob gap of every load."""
    rows = []
    for engine in ("native", *(["vllm"] if installed("vllm") else [])):
        with tempfile.TemporaryDirectory() as name:
            steps = run_command(Path(name), quickstart_run(options, Path(name), engine, steps=4))[1:]
            phases = [statistics.median(each[f"time/{phase}_seconds"] for each in steps) for phase in PHASES]
            gap = max(each.get("engine/logprob_gap", 0.0) for each in steps)
            difference = max(each.get("logprob_diff/mean_abs", 0.0) for each in steps)
            rate = statistics.median(each["sampled_tokens"] / each["time/sample_seconds"] for each in steps)
            times = (f"{each:.3f}" for each in phases)
            rows.append((engine, *times, f"{rate:.0f}", f"{gap:.1e}", f"{difference:.1e}"))
    seconds = (f"{each} s" for each in PHASES)
    print_table("A GRPO step", ("engine", *seconds, "tokens/s", "probe's gap", "logprob_diff"), rows)


def installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    import importlib.util

    return importlib.util.find_spec(package) is not None


def run_peers(options: Options) -> None:
    """The same GRPO step by Strop, TRL and verl: seconds, and peak memory of the training process."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = quickstart_run(options, folder, "native", steps=4)
        data, rollouts = settings["data"], settings["algorithm"]["rollouts_per_task"]
        settings |= {"reward": f"{HERE / 'scripts' / 'gpu_peers.py'}:vowels"}
        steps = run_command(folder, settings)[1:]
        seconds = statistics.median(each["time/step_seconds"] for each in steps)
        rows.append(("Strop, native sampler", f"{seconds:.2f}", "see memory"))
        if installed("vllm"):
            vllm = folder / "vllm"
            vllm.mkdir()
            steps = run_command(
                vllm, settings | {"rollout": {"engine": "vllm"}, "data": absolute(data, folder)}
            )[1:]
            seconds = statistics.median(each["time/step_seconds"] for each in steps)
            rows.append(("Strop, vLLM", f"{seconds:.2f}", "see memory"))
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
    command = [sys.executable, str(HERE / "scripts" / "gpu_peers.py"), peer, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{peer} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    gib = "-" if found["gib"] is None else f"{found['gib']:.2f}"
    return peer, f"{statistics.median(found['seconds']):.2f}", gib


def absolute(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The section `data` for a run in another folder."""
    return data | {"train": data["train"] | {"path": str(folder / data["train"]["path"])}}


def run_memory(options: Options) -> None:
    """Peak memory of a run in this process, trainer and native sampler together, against the plan."""
    import strop
    from strop.config.plan.budget import needed_memory
    from strop.config.plan.machine import this_machine
    from strop.run.recording.environment import peak_memory_mb

    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = quickstart_run(options, folder, "native", steps=2)
        settings |= {"output": str(folder / "runs"), "data": absolute(settings["data"], folder)}
        run = strop.load(settings)
        planned = needed_memory(run.run, this_machine())
        strop.train(run)
        peak = 1e6 * peak_memory_mb()
        if options.device.type == "cuda":
            peak = float(torch.cuda.max_memory_allocated())
        shown = "unknown" if planned is None else f"{planned / 2**30:.2f}"
        rows.append((str(run.run.trainer.microbatch), shown, f"{peak / 2**30:.2f}"))
    print_table("Peak memory of a run", ("micro-batch", "planned GiB", "measured GiB"), rows)


def run_learning(options: Options) -> None:
    """Training reward of `--model` on `--data`, a file with the columns `question` and `answer`."""
    if options.model is None or options.data is None:
        print("\nlearning: left out, since --model and --data are not both given.")
        return
    with tempfile.TemporaryDirectory() as name:
        settings = quickstart_run(options, Path(name), "auto", steps=100)
        data = {"path": str(options.data.resolve()), "prompt": "question", "answer": "answer"}
        settings |= {"reward": "gsm8k"}
        settings["data"] |= {"train": data, "max_prompt_tokens": 512, "max_response_tokens": 512}
        settings["trainer"]["optimizer"] = {"type": "adamw", "lr": 1e-6}
        steps = run_command(Path(name), settings)
    rows = [(each["step"], f"{each['reward/mean']:.3f}") for each in steps[:: max(1, len(steps) // 20)]]
    print_table("Training reward", ("step", "reward"), rows)


RUNNERS = {
    "suites": run_suites,
    "kernels": run_kernels,
    "update": run_update,
    "step": run_step,
    "peers": run_peers,
    "memory": run_memory,
    "learning": run_learning,
}


def main() -> None:
    """Run the parts, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(RUNNERS)}; all without any")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    parser.add_argument("--model", type=Path, help="folder of a real model")
    parser.add_argument("--data", type=Path, help="JSON Lines file with the columns question and answer")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := [part for part in args.parts if part not in RUNNERS]:
        parser.error(f"unknown part {unknown[0]!r}; the parts are {', '.join(RUNNERS)}")
    options = Options(torch.device(args.device), args.small, args.model, args.data)
    if args.in_this_process:
        RUNNERS[args.parts[0]](options)
        return
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU on this machine; --device cpu --small tries the script itself.")
    where = torch.cuda.get_device_name() if args.device == "cuda" else "the CPU"
    print(f"torch {torch.__version__} on {where}", flush=True)
    failed = []
    for part in args.parts or RUNNERS:
        arguments = [each for each in sys.argv[1:] if each not in RUNNERS]
        command = [sys.executable, __file__, part, *arguments, "--in-this-process"]
        if subprocess.run(command, check=False).returncode:
            failed.append(part)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
