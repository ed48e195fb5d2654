"""The public names with their signatures, which change on purpose only; types; and an import without torch."""

from __future__ import annotations

import inspect
import os
import pkgutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import BaseModel

import strop

SURFACE = Path(__file__).with_name("api.txt")
"""Written by `UPDATE_API=1 pytest tests/library/test_api.py`."""


def described(name: str) -> list[str]:
    """A line for a name, and one for each method and property of a class."""
    thing = getattr(strop, name)
    if not callable(thing):
        return [name]
    if not inspect.isclass(thing) or issubclass(thing, BaseModel) or issubclass(thing, BaseException):
        kind = "class " if inspect.isclass(thing) else ""
        return [kind + name + ("" if kind else shown(thing))]
    lines = [f"class {name}{shown(thing)}"]
    for member, value in sorted(vars(thing).items()):
        if not member.startswith("_"):
            value = inspect.unwrap(value.__func__ if isinstance(value, classmethod) else value)
            lines.append(f"    {member}{shown(value) if inspect.isfunction(value) else ''}")
    return lines


def shown(thing: object) -> str:
    parameters = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    return str(inspect.Signature([each.replace(annotation=each.empty) for each in parameters]))


def test_the_public_surface_is_the_recorded_one() -> None:
    text = "".join(f"{line}\n" for name in strop.__all__ for line in described(name))
    if os.environ.get("UPDATE_API"):
        SURFACE.write_text(text, encoding="utf-8")
    assert text == SURFACE.read_text(encoding="utf-8"), "a public name or signature changed"


def test_each_name_is_documented_and_is_no_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(strop.__path__)}
    for name in strop.__all__:
        thing = getattr(strop, name)
        assert isinstance(thing, str) or inspect.getdoc(thing), name
    assert not modules & {*strop.__all__}, "an import of the module would replace the name"
    assert strop.__version__ == version("strop")
    assert not hasattr(strop, "trian"), "an unknown name is an AttributeError"


def test_importing_strop_does_not_import_torch() -> None:
    code = "import sys, strop; strop.load; strop.Run; strop.open_run; strop.Grpo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PROGRAM = """
import strop

run = strop.Run(
    model=strop.Model(path="m", lora=strop.Lora(rank=8)),
    algorithm=strop.Grpo(rollouts_per_task=8),
    trainer=strop.Trainer(duration=strop.Amount(1, "epochs"), optimizer=strop.AdamW(lr=1e-5)),
)


def reward(completion: str, answer: str) -> float:
    return float(completion == answer)


reveal_type(strop.train(run, data=[{"prompt": "1"}], reward=[reward, strop.Reward(reward, weight=0.5)]))
reveal_type(strop.open_run("runs/a").metrics.rows)
policy = strop.Policy("m", lora=8)
groups = strop.score(policy.sample(["1"], n=2), reward)
reveal_type(groups)
batch = strop.make_batch(groups, [[0.0, 1.0]])
reveal_type(policy.forward_backward(batch, loss="grpo"))
reveal_type(policy.step(lr=1e-5))
strop.Grpo(rollouts_per_task="many")
policy.step(rate=1)
"""


@pytest.mark.nightly
def test_mypy_sees_the_types_of_a_users_program(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--config-file=",
        "program.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    revealed = [line.partition('"')[2].rstrip('"') for line in done.stdout.splitlines() if "Revealed" in line]
    assert [name.rpartition(".")[2] for name in revealed] == [
        "RunResult",
        "list[dict[str, float]]",
        "RolloutGroup]",
        "dict[str, float]",
        "float",
    ], done.stdout
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 2 and 'incompatible type "str"' in errors[0] and '"rate"' in errors[1], done.stdout
