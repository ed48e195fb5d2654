"""Makes the small random model that the run files here train, and the tasks of `openenv.yaml`.

python examples/environments/make.py runs/environments
ENVIRONMENTS=runs/environments strop train examples/environments/reasoning_gym.yaml
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from strop.models.tiny import make_model

TEXTS = ["Calculate 1 + 2 - 3.", "Say 0 and nothing else.", "4 5 6 7 8 9"]
GAMES = [{"prompt": "Play.", "answer": str(n), "reset": {"number": n}} for n in (2, 7)] * 4


def make(folder: Path) -> None:
    """Write `model/` and `games.jsonl`."""
    make_model(folder / "model", TEXTS, vocab_size=290, hidden_size=64, layers=2, heads=4, kv_heads=4)
    (folder / "games.jsonl").write_text("".join(f"{json.dumps(game)}\n" for game in GAMES))


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/environments"))
