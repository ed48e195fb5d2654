"""Changes of a reference model towards the policy."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def sync_reference(reference: nn.Module, policy: nn.Module, policy_weight: float) -> None:
    """Set each weight of the reference to policy_weight * policy + (1 - policy_weight) * reference.

    The soft update of Gorbatovski et al., arXiv 2404.09656, with policy_weight as alpha. The modules have the same
    parameters; the result has the dtype of the reference.
    """
    own = dict(policy.named_parameters())
    for name, weight in reference.named_parameters():
        weight.lerp_(own[name].to(weight.dtype), policy_weight)
