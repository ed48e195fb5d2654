"""Names of Trinity's keys, read from the YAML fragments and bullet lists of its seed page."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

COPY = Path(__file__).parent / "pages" / "trinity.yaml"
PAGE = Path(__file__).parents[2] / ".." / "shared" / "seeds" / "trinity_config.md"
_END = "Adding New Config Entries for the Config Generator"
_YAML = re.compile(r"^\s*(?:# )?(?:- )?([a-z_]+):(?: .*|)$")
_BULLET = re.compile(r"^\s*• ([a-z_.0-9]+):", re.MULTILINE)
NO_KEYS = {
    # values of an option, explained in bullets of their own
    *("both", "train", "explore", "bench", "wandb", "tensorboard", "mlflow", "file", "queue", "sql"),
    *("plaintext", "messages", "nccl", "checkpoint", "unrestricted"),
    *("single_thread", "single_process", "single_node"),
    # names and arguments that a user chooses
    *("buffer_1", "buffer_2", "sft_dataset", "other_buffer", "eval_taskset"),
    *("api_or_hf_model", "min_score", "input_keys", "field_names", "config_path"),
    *("reward_shaping_configs", "stats_key", "op_type", "weight"),
}


def page_copy() -> list[str]:
    """The names from the copy in this folder."""
    return yaml.safe_load(COPY.read_text())


def page_names(text: str) -> list[str]:
    """Each name once, in the order of first occurrence."""
    part = text.split(_END)[0]
    found = [m[1] for line in part.splitlines() if (m := _YAML.match(line))]
    found += [name for dotted in _BULLET.findall(part) for name in dotted.split(".")]
    return [name for name in dict.fromkeys(found) if name not in NO_KEYS]
