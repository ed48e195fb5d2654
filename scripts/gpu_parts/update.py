"""Part `update`: forward and backward of a packed micro-batch."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from gpu_parts.measuring import DENSE_FLOPS, gpu_name, milliseconds, no_waits, print_table
from gpu_parts.options import Options
from gpu_parts.runs import model_folder
from strop.algorithms.registry import make_loss_fn
from strop.config.schema.algorithm import GrpoConfig
from strop.config.units import Amount
from strop.data.packing import pack
from strop.models.logprobs import token_outputs
from strop.models.packed_attention.forward import can_share_prompts, enable_packed_attention
from strop.types import Experience, GlobalCounts, TrainingBatch


def run_update(options: Options) -> None:
    """Forward and backward of packed micro-batches, with an error at every wait for the GPU."""
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


def random_experiences(groups: int, rollouts: int, prompt: int, response: int) -> list[Experience]:
    """Random tokens with shared prompts."""
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
