"""Studio in a real browser: compose, check, start, watch, stop, resume; keyboard and narrow window."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright", reason="comes with strop[dev]")

from playwright.sync_api import Page, Route, expect, sync_playwright

from strop.models.tiny import make_model
from strop.pipelines.human_feedback import AnnotationQueue, Answer
from strop.studio.processes import started_process
from strop.studio.server import _entrance
from tests.studio.conftest import record_runs


def find_chromium() -> str | None:
    """Path of a Chromium: the one that `STROP_CHROMIUM` names, else the first one on PATH."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("STROP_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


CHROMIUM = find_chromium()
WITHOUT = "no Chromium on this machine: apt-get install chromium, or write the path of one to STROP_CHROMIUM"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason=WITHOUT)]
LIMIT = 600_000
"""Milliseconds that only a hang takes."""
expect.set_options(timeout=LIMIT)


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """URL of a Studio, and its folder, which has a model and tasks."""
    folder = tmp_path_factory.mktemp("studio")
    environment = pytest.MonkeyPatch()
    environment.setenv("XDG_STATE_HOME", str(folder / "state"))
    make_model(folder / "m", ["1+1=2"], vocab_size=300, hidden_size=16)
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(64)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "strop", "studio", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1], folder
        finally:
            server.terminate()
            for run in map(started_process, folder.glob("runs/*/*")):
                if run is not None:
                    run.terminate()
            environment.undo()


@pytest.fixture
def page(studio: tuple[str, Path], request: pytest.FixtureRequest) -> Iterator[Page]:
    """Page that was opened with the token."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=LIMIT)
        opened = browser.new_page(**getattr(request, "param", {}))
        opened.set_default_timeout(LIMIT)
        errors: list[str] = []
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.goto(studio[0])
        opened.wait_for_url("**/runs")
        yield opened
        browser.close()
        assert errors == []


def answer(page: Page, key: str, value: str) -> None:
    """Answer a question as a person does, and wait until the text has the answer."""
    with page.expect_response("**/compose/set"):
        page.locator(f'[data-key="{key}"]').fill(value)
        page.locator(f'[data-key="{key}"]').press("Tab")


def test_compose_check_start_watch_stop_and_resume(page: Page) -> None:
    page.get_by_role("link", name="Compose", exact=True).click()
    expect(page.locator("#status")).to_contain_text("3 answers are missing")
    expect(page.locator(".fault-text")).to_have_count(0)
    expect(page.locator("#start")).to_be_disabled()
    answers = {"model.path": "m", "data.train.path": "train.jsonl", "reward": "exact"}
    answers |= {"trainer.duration": "3000 steps", "trainer.tasks_per_step": "4"}
    answers |= {"data.max_prompt_tokens": "16", "data.max_response_tokens": "4"}
    for key, value in answers.items():
        answer(page, key, value)
    with page.expect_response("**/compose/set"):
        page.locator('[data-key="data.chat_template"]').select_option("none")
    expect(page.locator("#status")).to_contain_text("No faults")
    answer(page, "trainer.tasks_per_step", "four")
    fault = page.locator('[data-field="trainer.tasks_per_step"] .fault-text')
    expect(fault).to_contain_text("expected an integer")
    answer(page, "trainer.tasks_per_step", "4")
    page.locator("#complete-check").click()
    expect(page.locator("#check-output")).to_contain_text("The run can start")
    stale = page.get_by_text("The text has changed since this check")
    expect(stale).to_be_hidden()
    answer(page, "project", "other")
    expect(stale).to_be_visible()
    answer(page, "project", "strop")
    expect(stale).to_be_hidden()
    page.locator("#start").click()
    page.wait_for_url(re.compile(r"/run\?run="))
    steps = page.locator("#curves").get_by_text(re.compile(r"Step [1-9]\d* of 3000"))
    expect(steps).to_be_visible()
    first = steps.inner_text()
    expect(page.locator("#curves canvas").first).to_be_visible()
    expect(page.locator("#curves").get_by_text(first)).to_have_count(0)  # the curves move
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#state")).to_have_text("interrupted")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    stopped = int(re.findall(r"\d+", steps.inner_text())[0])
    page.get_by_role("button", name="Resume").click()
    page.wait_for_url(re.compile(r"/run/logs"))
    page.get_by_role("link", name="Curves", exact=True).click()
    page.wait_for_url(re.compile(r"/run\?run="))
    page.wait_for_function(
        "step => Number(document.body.innerText.match(/Step (\\d+) of/)?.[1]) > step", arg=stopped
    )  # the curves continue
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#state")).to_have_text("interrupted")
    page.get_by_role("link", name="Log", exact=True).click()
    expect(page.locator("pre.log")).to_contain_text("the same command continues from there")


@pytest.mark.parametrize("page", [{"viewport": {"width": 360, "height": 640}}], indirect=True)
def test_keyboard_alone_in_a_narrow_window(page: Page) -> None:
    page.goto(page.url.replace("/runs", "/compose"))
    expect(page.locator("#status")).to_contain_text("missing")
    page.locator("[data-mode-tab=beginner]").focus()
    page.keyboard.press("ArrowRight")  # the tab with every field
    expect(page.locator("#search")).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("peak learning rate")
    expect(page.locator('[data-key="trainer.optimizer.lr"]')).to_be_visible()
    expect(page.locator('[data-key="model.path"]')).to_be_hidden()
    page.locator('[data-key="trainer.optimizer.lr"]').focus()
    with page.expect_response("**/compose/set"):
        page.keyboard.press("Control+a")
        page.keyboard.type("2e-5")
        page.keyboard.press("Tab")
    expect(page.locator("#text")).to_contain_text("lr: 2e-5")
    page.locator("[data-fault-key='model.path']").focus()
    page.keyboard.press("Enter")
    expect(page.locator('[data-key="model.path"]')).to_be_focused()
    for path in ("/compose", "/runs", "/rate"):
        page.goto(re.sub(r"(:\d+/[^/]+)/.*", rf"\1{path}", page.url))
        width: Any = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, path


def test_search_finds_sections_and_fields_of_missing_ones(page: Page) -> None:
    page.goto(page.url.replace("/runs", "/compose?mode=expert"))
    search = page.locator("#search")
    section = page.locator('[data-section="algorithm.kl_loss"]')
    for words in ("kl_loss", "estimator"):
        search.fill(words)
        expect(section).to_be_visible()
        expect(section.get_by_text("algorithm.kl_loss.estimator")).to_be_visible()
    search.fill("stop_when")
    page.get_by_role("button", name="Add stop_when").click()
    expect(page.locator('[data-key="evaluate.stop_when.patience"]')).to_be_visible()
    search.fill("nowhere to be found")
    expect(page.locator("#nothing-found")).to_be_visible()


def test_what_is_typed_while_the_server_answers_stays(page: Page) -> None:
    """A first check's answer, and that of a field, whose answer changes the text, wait until the user has typed on."""
    requests: list[Route] = []
    page.route(re.compile("/compose/(check|set)$"), lambda route: requests.append(route))
    content = page.get_by_role("textbox", name="Text of the configuration")

    def answer_after(words: str = "") -> None:
        while not requests:
            page.wait_for_timeout(10)
        if words:
            content.click()
            page.keyboard.press("Control+End")
            page.keyboard.type(words)
        requests.pop().continue_()

    page.goto(page.url.replace("/runs", "/compose"))
    answer_after("# typed first\n")
    answer_after()
    path = page.locator('[data-key="model.path"]')
    path.fill("somewhere")
    path.blur()
    answer_after("# typed second\n")
    expect(content).to_contain_text("path: 'somewhere'")
    answer_after()
    expect(content).to_contain_text("# typed first# typed second")
    expect(path).to_have_value("somewhere")


OPTIONS = ".cm-tooltip-autocomplete:not(.cm-tooltip-autocomplete-disabled) li"
"""Completions of the editor, except those shown while newer ones are on their way, which CodeMirror does not accept."""


def accept(page: Page) -> None:
    """Accept the selected completion, which CodeMirror does not within 75 ms of showing it."""
    page.wait_for_timeout(100)
    page.locator(OPTIONS).first.wait_for()
    page.keyboard.press("Enter")


def test_the_editor_completes_keys_and_values_and_marks_faults(page: Page) -> None:
    page.goto(page.url.replace("/runs", "/compose"))
    content = page.get_by_role("textbox", name="Text of the configuration")
    content.click()
    page.keyboard.press("Control+End")
    page.keyboard.type("evaluate: {stop_when: {mo")
    options = page.locator(OPTIONS)
    expect(options).to_have_count(1)
    expect(options).to_contain_text("mode")
    accept(page)
    expect(content).to_contain_text("evaluate: {stop_when: {mode: }}")
    page.keyboard.press("Control+Space")
    expect(options).to_have_count(2)
    page.keyboard.type("mi")
    expect(options).to_have_count(1)
    accept(page)
    expect(content).to_contain_text("evaluate: {stop_when: {mode: min}}")
    expect(page.locator("#status")).to_contain_text("write value, patience or both")
    expect(page.locator(".cm-lintRange-error").first).to_be_visible()
    expect(page.locator(".tok-propertyName").first).to_be_visible()


SCREENS = (
    "/runs",
    "/compose",
    "/compose?mode=expert",
    "/compose?file=plan.yaml",
    "/run?run=sums/first",
    "/run/rollouts?run=sums/first",
    "/run/rollouts?run=sums/first&tokens=logprob",
    "/run/rollouts?run=sums/first&view=groups",
    "/run/group?run=sums/first&set=training&step=3&group=t0",
    "/run/chat?run=sums/first",
    "/run/configuration?run=sums/first",
    "/run/logs?run=sums/first",
    "/compare?run=sums/first&run=sums/second",
    "/rate",
    "/rate?run=sums/first",
    "/run?run=none",
)


@pytest.fixture
def screens(page: Page, studio: tuple[str, Path]) -> Callable[[], Iterator[str]]:
    """Opens each screen in turn, with two recorded runs, and gives its path."""
    if not (studio[1] / "runs/sums/second").exists():
        record_runs(studio[1] / "runs/sums")
        (studio[1] / "plan.yaml").write_text(
            "model: {path: m}\ndata: {train: {path: train.jsonl}}\nreward: exact\n"
        )

    def opened() -> Iterator[str]:
        for path in SCREENS:
            page.goto(re.sub(r"(:\d+/[^/]+)/.*", rf"\1{path}", page.url))
            page.wait_for_load_state("networkidle")
            if path.endswith("plan.yaml"):
                page.get_by_role("tab", name="Plan").click()
                expect(page.get_by_text("Memory on")).to_be_visible()
            yield path

    return opened


_REACHABLE = """() => {
  const found = [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex], [contenteditable=true]")];
  const shown = found.filter((each) => each.tabIndex >= 0 && !each.disabled && each.type !== "hidden"
    && each.checkVisibility({visibilityProperty: true}) && each.getClientRects().length);
  shown.forEach((each, number) => { each.dataset.reach = each.type === "radio" ? `radio ${each.name}` : number; });
  return Object.fromEntries(shown.map((each) => [each.dataset.reach, each.outerHTML.slice(0, 200)]));
}"""
"""Elements that are used by keyboard, by number, with their HTML; the buttons of a radio group are one."""
_FOCUSED = """async () => {
  await new Promise(requestAnimationFrame);
  const element = document.activeElement, frames = [element, element.closest(".cm-editor")].filter(Boolean);
  const isSeen = frames.map(getComputedStyle).some((style) => style.boxShadow !== "none"
    || (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0));
  return [element.dataset.reach ?? null, isSeen];
}"""
"""Number of the element that has the focus, and whether one sees that."""


@pytest.mark.nightly
def test_every_element_of_every_screen_is_reached_by_tab_and_shows_it(
    page: Page, screens: Callable[[], Iterator[str]]
) -> None:
    """Tab goes through a screen without a trap, and each focus is visible."""
    missed, unseen = {}, {}
    for path in screens():
        waiting: dict[str, str] = page.evaluate(_REACHABLE)
        for _ in range(2 * len(waiting) + 10):
            page.keyboard.press("Tab")
            number, is_seen = page.evaluate(_FOCUSED)
            if number in waiting:
                html = waiting.pop(number)
                unseen |= {} if is_seen else {path: html}
            if not waiting:
                break
        missed |= {path: waiting} if waiting else {}
    assert (missed, unseen) == ({}, {})


@pytest.mark.nightly
@pytest.mark.parametrize("page", [{"color_scheme": theme} for theme in ("light", "dark")], indirect=True)
def test_every_screen_is_accessible_and_fits_a_phone(
    page: Page, screens: Callable[[], Iterator[str]]
) -> None:
    """No finding of axe-core that it calls serious or critical."""
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    console, found = page.context.new_cdp_session(page), {}
    for width in (1280, 420):
        page.set_viewport_size({"width": width, "height": 900})
        for path in screens():
            # The pages allow no script of another origin.
            console.send("Runtime.evaluate", {"expression": axe})
            violations = page.evaluate("axe.run().then((result) => result.violations)")
            bad = [each for each in violations if each["impact"] in ("serious", "critical")]
            found |= {f"{path} at {width}: {each['id']}": each["nodes"][0]["html"] for each in bad}
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
    assert found == {}


def test_questions_of_a_run_are_answered(page: Page, studio: tuple[str, Path]) -> None:
    """By mouse, by key, and by key again for a question that comes while the page waits."""
    responses = [{"index": index, "text": text, "messages": None} for index, text in ((0, "4"), (3, "5"))]
    shown = {"prompt": "2+2?", "images": [], "answer": "4", "responses": responses}
    _, folder = studio
    queue = AnnotationQueue(folder / "runs" / "asking" / "annotations")
    queue.ask({"id": "q-1", "question": "score", **shown})
    queue.ask({"id": "q-2", "question": "preference", **shown})
    page.goto(page.url.replace("/runs", "/rate?run=asking&set=questions"))
    page.locator('input[name="score-3"][value="0.25"]').check()
    page.get_by_role("button", name="Submit").click()
    expect(page.locator('[data-question="q-2"]')).to_be_visible()
    page.keyboard.press("2")
    expect(page.locator("#no-question")).to_be_visible()
    queue.ask({"id": "q-3", "question": "score", **shown})
    expect(page.locator('[data-question="q-3"]')).to_be_visible()
    page.keyboard.press("s")
    expect(page.locator("#no-question")).to_be_visible()
    scored, preferred = Answer("answered", {3: 0.25}), Answer("answered", {3: 1.0, 0: 0.0})
    found = [queue.find_answer(f"q-{number}") for number in (1, 2, 3)]
    assert found == [scored, preferred, Answer("skipped", {})]


def test_a_file_leads_to_the_pages_and_the_cookie_reaches_no_other_path(
    page: Page, studio: tuple[str, Path]
) -> None:
    """As `--open` does: the navigation begins at a file, which is another site than the pages."""
    page.context.clear_cookies()
    with _entrance(studio[0]) as file:
        page.goto(file.as_uri())
        page.wait_for_url("**/runs")
    expect(page.get_by_role("link", name="Compose", exact=True)).to_be_visible()
    (cookie,) = page.context.cookies()
    assert cookie["path"] == re.findall(r":\d+(/[^/]+/)", page.url)[0] and cookie["httpOnly"]
    sent = page.request.get(re.sub(r"(:\d+)/.*", r"\1/runs", page.url), timeout=LIMIT)
    assert sent.status == 403
