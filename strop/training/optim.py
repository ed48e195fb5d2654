"""Optimizers, from the run file's section."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from strop.config.schema.trainer import AdamW


def build_optimizer(section: AdamW, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer over `params`, all in one group: weight decay is on all of them alike."""
    return torch.optim.AdamW(
        params,
        lr=section.lr,
        betas=section.betas,
        eps=section.eps,
        weight_decay=section.weight_decay,
        fused=True,
    )
