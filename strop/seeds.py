"""Random seeds for single draws, derived from the run's seed."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *path: int | str) -> int:
    """A 64-bit seed for one draw of a run, identified by a path such as (seed, "train", step, task, index).

    The seed is a hash of the path, so no state has to be saved, and it does not depend on the order in which
    draws are made.
    """
    text = "\x1f".join(map(str, (seed, *path)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
