"""The documentation: links lead somewhere, run files load, and commands have the names and options that it shows."""

from __future__ import annotations

import json
import re
import sqlite3
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import typer
import yaml
from omegaconf import OmegaConf

import strop
from strop.cli.main import app
from strop.compat.reference import pages as generated_pages
from strop.config.load.loader import load_values
from strop.errors import TroubleshootingSection
from strop.models.tiny import make_model

ROOT = Path(__file__).parents[1]
GENERATED = {ROOT / page: text for page, text in generated_pages().items()}
FOLDERS = ("docs", "examples", "benchmarks", "components")
PAGES = sorted(
    {*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))}
    | GENERATED.keys()
)
_CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_YAML = re.compile(r"^```yaml\n(.*?)^```|^cat > \w+\.yaml <<'END'\n(.*?)^END", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"^    [a-z]\w*:(?: [{\[].*)?\n(?:^ {4,}.*\n)*", re.MULTILINE)
_KEY = re.compile(r" *([\w.]+):")
_COMMAND = re.compile(r"^(?: {4}|)(?:\$ |\S*/|)strop ((?:.*\\\n)*.*)$|`strop ([a-z][^`]*)`", re.MULTILINE)
_FREE = ("component", "trl", "merge")
"""Commands and groups of commands whose keys look like options."""


def _is_whole(text: str) -> bool:
    """Else it is a part of a run file."""
    return all(re.search(rf"^{section}:", text, re.MULTILINE) for section in ("model", "data"))


def _variants(lines: list[str]) -> list[list[str]]:
    """The texts that a block shows in one, where a key that stands again is an alternative."""
    lines = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    entries: list[list[str]] = []
    for line in lines:
        if line[indent] != " ":
            entries.append([])
        entries[-1].append(line)
    alternatives: dict[str, list[list[str]]] = {}
    for number, (head, *rest) in enumerate(entries):
        key = _KEY.match(head)
        variants = [[head, *each] for each in (_variants(rest) if rest else [[]])]
        alternatives.setdefault(key[1] if key else str(number), []).extend(variants)
    return [
        [line for each in alternatives.values() for line in each[min(number, len(each) - 1)]]
        for number in range(max(map(len, alternatives.values()), default=0))
    ]


TEXTS = GENERATED | {page: page.read_text(encoding="utf-8") for page in PAGES if page not in GENERATED}
FILES = [(page, fenced or here) for page, text in TEXTS.items() for fenced, here in _YAML.findall(text)]
RUN_FILES = [(page, text) for page, text in FILES if _is_whole(text)]
COMMANDS = [(page, line or named) for page, text in TEXTS.items() for line, named in _COMMAND.findall(text)]


@pytest.mark.parametrize(("page", "text"), RUN_FILES, ids=lambda it: getattr(it, "name", ""))
def test_every_run_file_in_the_pages_loads(page: Path, text: str) -> None:
    load_values(yaml.safe_load(text.replace("e-", ".0e-")), origin=str(page.relative_to(ROOT)))


IS_PART_OF = {"teachers": "algorithm.distillation", "rejection": "algorithm", "elastic": "trainer"}
"""Section of a block that shows the key of a section alone."""
AROUND = {
    "teachers:\n  - {path: math": [
        "algorithm.type=distillation",
        "algorithm.distillation.reward.coef=1",
        "data.train.source=kind",
    ],
    "packing:": ["data.train.text=text"],
    "elastic:": ["trainer.engine.type=fsdp2", "trainer.engine.ranks=8"],
    "reuse_cooldown_seconds": ["synchronizer.style=bounded"],
    "mode: bench": ["data.eval=[{path: held_out.jsonl}]"],
    "stream:": ["trainer.duration=10 steps"],
    "model: helper": ["rollout.auxiliary_models=[{name: helper, path: helper}]"],
    **{f"# {each}": [f"algorithm.type={each}"] for each in ("sft", "dpo", "kto")},
}
"""Values of the run file around a block, which the text of its page names and the block does not."""
FILES_OF_TOOLS = ("tools", "interaction")
"""First keys of verl's files of tools, which tests/workflows/test_docs.py reads."""
PARTS = [
    (page, "\n".join(variant))
    for page, text in TEXTS.items()
    for block in [
        *(block for found, block in FILES if found == page and not _is_whole(block)),
        *(textwrap.dedent(block) for block in _INDENTED.findall(_CODE.sub("", text))),
    ]
    if not block.startswith(FILES_OF_TOOLS)
    for variant in _variants(block.splitlines())
]


@pytest.mark.parametrize(("page", "text"), PARTS, ids=lambda it: getattr(it, "name", ""))
def test_every_part_of_a_run_file_in_the_pages_is_valid(
    page: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alternative, in a run file that is otherwise valid."""
    monkeypatch.setenv("PGPASSWORD", "secret")
    values = yaml.safe_load(text)
    for section in reversed(IS_PART_OF.get(next(iter(values)), "").split(".")):
        values = {section: values} if section else values
    around = ["model.path=model", *(each for part, keys in AROUND.items() if part in text for each in keys)]
    if not re.search(r"^  train:$", text, re.MULTILINE):
        around.append("data.train.path=tasks.jsonl")
    whole = OmegaConf.merge(OmegaConf.from_dotlist(around), values)
    load_values(cast(dict[str, Any], OmegaConf.to_container(whole)), origin=str(page.relative_to(ROOT)))


@pytest.mark.parametrize(
    ("page", "line"), COMMANDS, ids=lambda it: it[:30] if isinstance(it, str) else it.name
)
def test_every_command_in_the_pages_is_one(page: Path, line: str) -> None:
    first = re.sub(r"\\\|[\w\\|]+", "", line)  # of `verl ppo\\|sft`
    words = first.replace("\\\n", " ").partition("#")[0].partition(" -- ")[0].split()
    command, names = typer.main.get_command(app), []
    while words and words[0] in (inside := getattr(command, "commands", {})):
        names.append(words.pop(0))
        command = inside[names[-1]]
    assert not words or not hasattr(command, "commands"), f"strop has no command {words[0]!r}"
    known = {name for parameter in command.params for name in parameter.opts}
    if not {*names} & {*_FREE}:
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= {*known, "--help"}


RUN_ELSEWHERE = {
    "library.md": "tests/library/test_page.py",
    "service.md": "tests/test_page_commands.py, against the service of the page",
    "workflows.md": "tests/workflows/test_docs.py, tests/learning/test_tutorials.py",
    **dict.fromkeys(("own-data-and-reward.md", "ranks.md"), "tests/learning/test_tutorials.py"),
    **dict.fromkeys(("verl.md", "trl.md", "trinity.md"), "tests/learning/test_tutorials.py"),
}
CODE = [
    (page, block)
    for page, text in TEXTS.items()
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    if page.name not in RUN_ELSEWHERE
]


@pytest.mark.nightly
@pytest.mark.parametrize(("page", "code"), CODE, ids=lambda it: getattr(it, "name", ""))
def test_code_in_the_pages_runs(
    page: Path, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with a small model, the README's run file on small data, and a buffer of no groups."""
    monkeypatch.chdir(tmp_path)
    make_model(Path("model"), ["12+34=46"], vocab_size=300, hidden_size=16)
    rows = "".join(json.dumps({"prompt": f"{a}+1=", "answer": str(a + 1)}) + "\n" for a in range(8))
    Path("rows.jsonl").write_text(rows)
    trainer = {"duration": "2 steps", "tasks_per_step": 2}
    data = {"train": {"path": "rows.jsonl"}, "max_prompt_tokens": 16, "max_response_tokens": 4}
    run = {"name": "page", "model": {"path": "model"}, "data": data, "trainer": trainer}
    Path("run.yaml").write_text(yaml.safe_dump(run))
    Path("runs/p/n").mkdir(parents=True)
    with sqlite3.connect("runs/p/n/buffer.db") as database:
        database.execute("CREATE TABLE strop_groups (content BLOB, state TEXT)")
    for shown, small in (
        ("Qwen/Qwen2.5-0.5B-Instruct", "model"),
        ("20 steps", "1 steps"),
        ('20, "steps"', '1, "steps"'),
    ):
        code = code.replace(shown, small)
    exec(compile(code, str(page), "exec"), {"strop": strop, "__name__": "page"})


@cache
def _prose(page: Path) -> str:
    return _CODE.sub("", TEXTS[page] if page in TEXTS else page.read_text(encoding="utf-8"))


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of headings, and explicit anchors."""
    titles = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)">', _prose(page)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for link in _LINK.findall(_prose(page)):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists() or target in GENERATED, f"{link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in _anchors(target), f"{link}: {target.name} has no such heading"


def test_messages_name_headings_of_the_troubleshooting_page() -> None:
    assert set(get_args(TroubleshootingSection)) <= _anchors(ROOT / "docs" / "troubleshooting.md")


def test_every_page_of_the_docs_is_listed() -> None:
    listed = "".join(_prose(page) for page in PAGES if page.name == "README.md")
    unlisted = {p.name for p in PAGES if p.parent.name != "parity"} - set(re.findall(r"[\w.-]+\.md", listed))
    site_only = {"index.md", "contributing.md", "changelog.md"}
    assert unlisted <= {"README.md", "CHANGELOG.md"} | site_only


def test_the_conda_recipe_agrees_with_the_package() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = package["project"]
    wanted = {re.sub(r"\[.*\]", "", each).replace("torch>", "pytorch>") for each in project["dependencies"]}
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text(encoding="utf-8"))
    run = {each.replace(" ", "") for each in recipe["requirements"]["run"]}
    assert wanted == run - {"aiohttp", "python>=${{python_min}}"}
    host = {*recipe["requirements"]["host"]} - {"python ${{ python_min }}.*", "pip"}
    assert host == {*package["build-system"]["requires"]}
    ((name, start),) = project["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [f"{name} = {start}"]
    assert (recipe["about"]["license"], recipe["package"]["name"]) == (project["license"], project["name"])
