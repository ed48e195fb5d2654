"""docs/library.md: its code blocks run, one after another, as a reader would run them."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "library.md"


@pytest.mark.slow
def test_the_code_of_the_page_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "model")
    page = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", page)
    text = PAGE.read_text(encoding="utf-8")
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        line = text[: block.start(1)].count("\n")
        code = compile("\n" * line + block[1], str(PAGE), "exec")
        exec(code, vars(page))
    assert vars(page)["loaded"].run.model.lora.rank == 16
    assert Path("trained/model.safetensors").is_file()
