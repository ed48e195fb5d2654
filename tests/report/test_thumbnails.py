"""Images of prompts in the report."""

from __future__ import annotations

import base64
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from PIL import Image

from strop.data.images.store import ImageStore
from strop.report.build import write_report
from strop.report.thumbnails import make_thumbnails
from strop.runs.folder import RunFolder
from tests.data.images.pictures import encoded
from tests.report.run_folders import group, open_recorder


def test_a_thumbnail_is_small_and_has_the_proportions(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(size=(900, 300)))
    (tmp_path / "b.png").write_bytes(b"damaged")
    found = make_thumbnails(tmp_path, ["a.png", "b.png", "gone.png", "a.png"])
    assert list(found) == ["a.png"]
    data = base64.b64decode(found["a.png"].removeprefix("data:image/webp;base64,"))
    assert Image.open(BytesIO(data)).size == (240, 80)


def test_the_report_shows_the_images_of_a_prompt(tmp_path: Path) -> None:
    store = ImageStore(RunFolder(tmp_path).images)
    shown, gone = (store.add(encoded(color, (60, 40)), "row 1") for color in ("red", "blue"))
    gone.path.unlink()
    one = group(0, ["a red square"], [1.0])
    content = [
        {"type": "image", "image": shown},
        {"type": "image", "image": gone},
        {"type": "text", "text": "What?"},
    ]
    task = replace(one.task, messages=({"role": "user", "content": content},), media=(shown, gone))
    with open_recorder(tmp_path) as record:
        record.log_evaluation("shapes", 0, [replace(one, task=task)])
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "&lt;image&gt;&lt;image&gt;What?" in page
    assert f'<a href="images/{shown.path.name}"><img src="data:image/webp;base64,' in page
    assert f">{gone.path.name}</a>" in page
