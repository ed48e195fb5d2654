"""Makes what the run files here need: a small random model, sums, and numbers to guess.

python examples/workflows/make.py runs/workflows
WORKFLOWS=runs/workflows strop train examples/workflows/agent.yaml
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from strop.models.tiny import make_model


def make(folder: Path) -> None:
    """Write `model/`, `sums.jsonl` and `numbers.jsonl`."""
    make_model(folder / "model", ["12+34=46"], vocab_size=300, hidden_size=64, layers=2, heads=4, kv_heads=4)
    sums = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(8) for b in range(8)]
    numbers = [{"prompt": "Guess a digit.", "answer": str(number)} for number in range(10)] * 4
    for name, rows in (("sums", sums), ("numbers", numbers)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/workflows"))
