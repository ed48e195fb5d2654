"""Makes a small random model, and digits to guess.

python examples/verl/make.py runs/verl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from strop.models.tiny import make_model

TEMPLATE = Path(__file__).parents[1] / "workflows" / "tools.jinja"


def make(folder: Path) -> None:
    """Write `model/` and `digits.jsonl`."""
    make_model(folder / "model", ["Higher. Lower."], vocab_size=300, hidden_size=64, layers=2, heads=4)
    (folder / "model" / "chat_template.jinja").write_text(TEMPLATE.read_text())
    rows = [
        {
            "data_source": "digits",
            "prompt": [{"role": "user", "content": "Guess my digit."}],
            "reward_model": {"style": "rule", "ground_truth": digit},
            "extra_info": {
                "need_tools_kwargs": True,
                "tools_kwargs": {"parity": {"create_kwargs": {"digit": digit}}},
                "interaction_kwargs": {"name": "guess", "digit": digit},
            },
        }
        for digit in "0123456789"
    ]
    (folder / "digits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/verl"))
