"""Page that composes a configuration: a form for beginners, one with every field, the text, its faults and its plan."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strop.compat.convert import convert as convert_job
from strop.config.first_run import FirstRun, yaml_value
from strop.config.load.config_tree import split_key
from strop.config.machine import this_machine
from strop.config.redact import safe_text
from strop.config.save import folder_mode, yaml_text
from strop.errors import ConfigError
from strop.plan.request import has_fast_bfloat16
from strop.studio.checking import EDITABLE, CheckedText, check_text
from strop.studio.completion import key_options, place_at, value_options
from strop.studio.documents import remove_value, set_value
from strop.studio.fields import FormField, FormSection, all_fields, run_file_sections
from strop.studio.files import default_name, digest, document_name, open_file, save_file
from strop.studio.planning import plan_for
from strop.studio.preferences import pairs_run_file, preference_file, read_preferences
from strop.studio.processes import prepare_processes, start_process, start_strop
from strop.studio.questions import asked_questions, question_section, value_at
from strop.studio.rendering import html, render, url
from strop.studio.requests import cache_of, json_action, name_of, run_path, settings_of, text_in
from strop.studio.suggestions import suggest
from strop.studio.trinity_fields import trinity_sections

_CHECK_SECONDS = 300.0
_MAX_CHECKS = 2
"""Maximum number of complete checks at the same time, each of which is a process."""
_checks = threading.BoundedSemaphore(_MAX_CHECKS)
_SAME_COLUMNS = {
    "data.train.prompt": "data.eval.0.prompt",
    "data.train.answer": "data.eval.0.answer",
    "data.train.response": "data.eval.0.response",
    "data.train.chosen": "data.eval.0.chosen",
    "data.train.rejected": "data.eval.0.rejected",
}
"""Columns of the training data that the beginner's form gives to the held-out data too."""
_HELD_OUT = "data.eval.0.path"
_TRAIN_PATHS = {"strop": "data.train.path", "trinity": "buffer.explorer_input.taskset.path"}


def _first_run() -> FirstRun:
    """A new run file, without the answers that it needs."""
    return FirstRun(
        model="",
        train="",
        prompt="prompt",
        answer="answer",
        reward="",
        eval=None,
        steps=100,
        lora=False,
        max_response_tokens=256,
        chat=True,
        bfloat16=has_fast_bfloat16(this_machine()),
    )


def page(request: Request) -> Response:
    """The page with a new run file, a file (`file=`), that of a run (`run=`), or DPO on preferences (`pairs=`)."""
    prepare_processes()
    name, known = request.query_params.get("file", ""), ""
    if name:
        text = open_file(name, settings_of(request))
        known = digest(text)
    elif "pairs" in request.query_params:
        path = preference_file(request.query_params["pairs"], settings_of(request))
        name = default_name("preferences")
        values = cache_of(request).read(run_path(request)).configuration()
        text = pairs_run_file(values, path, len(read_preferences(path)))
    elif "run" in request.query_params:
        text, name = open_file(str(run_path(request) / "run.yaml"), settings_of(request)), default_name("run")
    else:
        text, name = _first_run().text(), default_name("run")
    mode = "expert" if request.query_params.get("mode") == "expert" else "beginner"
    checked = check_text(text, name)
    if checked.dialect not in EDITABLE:
        raise ConfigError(
            f"{name} is a configuration of {checked.dialect}. Studio edits run files and files of Trinity-RFT: convert "
            f"it with strop convert {name} --output run.yaml."
        )
    return html(
        "compose",
        title="Compose",
        area="compose",
        text=text,
        file=name,
        known=known,
        mode=mode,
        checked=checked,
        form=_form(checked, mode),
    )


def check(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Check the text, and fill in the form."""
    return _answer(values, text_in(values, "text"))


def assign(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Set a value of the text, or remove it if the new value is empty."""
    text, key, value = text_in(values, "text"), text_in(values, "key"), values.get("value")
    try:
        for name, new in _edits(values, text, key, None if value in (None, "") else str(value)).items():
            keys = split_key(name)
            text = remove_value(text, keys) if new is None else set_value(text, keys, new)
    except RecursionError:
        raise ConfigError("The text is nested too deeply; remove brackets or dashes.") from None
    return _answer(values, text)


def plan(request: Request, values: dict[str, Any]) -> Response:
    """The plan of what the text configures."""
    checked = _check(values, text_in(values, "text"))
    stages = checked.job.loaded.runs if checked.job else ()
    return html("compose_plan", plans=[plan_for(stage) for stage in stages])


def convert(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """The text in another dialect, with what that dialect cannot express."""
    checked, to = _check(values, text_in(values, "text")), text_in(values, "to")
    if checked.job is None:
        raise ConfigError("A configuration with faults is not converted. Mend what the list of faults names.")
    conversion = convert_job(checked.job, to)
    text = f"# From {text_in(values, 'name')}, by Strop Studio.\n{yaml_text(conversion.values)}"
    return {"text": text, "html": render("compose_conversion", conversion=conversion, to=to, text=text)}


def save(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Save the text."""
    name, text, known = text_in(values, "name"), text_in(values, "text"), str(values.get("known", ""))
    return {"known": save_file(name, text, known, settings_of(request))}


def start(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Save the text, and start its run in a process of its own."""
    checked = _check(values, text_in(values, "text"))
    if checked.job is None or checked.faults:
        raise ConfigError(*(fault.message for fault in checked.faults))
    saved = save(request, values)
    run = checked.job.loaded.runs[0].run
    arguments = ["train", text_in(values, "name"), *(["--here"] if values.get("here") else [])]
    start_process(arguments, run.folder_path, folder_mode(run))
    return {**saved, "location": url("/run", run=name_of(request, run.folder_path))}


def complete_check(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Output of `strop check`, which reads the data and looks for the reward, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="strop-studio-") as folder:
        path = Path(folder) / document_name(text_in(values, "name"))
        path.write_text(text_in(values, "text"), encoding="utf-8")
        arguments = ["check", str(path), *(["--here"] if values.get("here") else [])]
        if not _checks.acquire(blocking=False):
            raise ConfigError(f"{_MAX_CHECKS} checks are running; wait for one of them.")
        try:
            with tempfile.TemporaryFile() as file:
                done = start_strop(
                    arguments, cwd=str(Path.cwd()), stdout=file.fileno(), stderr=subprocess.STDOUT
                )
                try:
                    code = done.wait(_CHECK_SECONDS)
                except subprocess.TimeoutExpired:
                    done.kill()
                    done.wait()
                    raise ConfigError(
                        f"The check has taken more than {_CHECK_SECONDS:.0f} seconds and was ended. Run strop check."
                    ) from None
                file.seek(0)
                output = file.read().decode("utf-8", "replace")
        finally:
            _checks.release()
    text = safe_text(output.replace(str(path), text_in(values, "name")))
    shown = render("compose_check", output=text, can_start=code == 0)
    return {"html": shown, "text": text_in(values, "text")}


def suggestions(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Suggestions for a text field."""
    kind = str(values.get("kind", ""))
    written = _check(values, text_in(values, "text")).values if kind == "column" else {}
    return {"suggestions": _suggestions(request, kind, written)}


def completions(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Keys or values that fit at the cursor of the editor, and where the word that they replace begins."""
    place = place_at(text_in(values, "before"), text_in(values, "after"))
    if place is None:
        return {"word": "", "options": []}
    checked = _check(values, place.text)
    form = _every_field(checked)
    if not place.is_value:
        written = value_at(checked.values, place.keys) if place.keys else checked.values
        options = key_options(form, place.keys, written if isinstance(written, dict) else {})
        return {"word": place.word, "options": options}
    key = ".".join("0" if name.isdigit() else name for name in place.keys)
    kinds = {one.key: one.suggestions for one in asked_questions(checked.dialect)}
    found = value_options(form, place.keys)
    found = found or (_suggestions(request, kinds[key], checked.values) if kinds.get(key) else [])
    return {"word": place.word, "options": [{"label": value} for value in found]}


def _suggestions(request: Request, kind: str, written: Mapping[str, Any]) -> list[str]:
    path: Any = ""
    if kind == "column":
        keys = _TRAIN_PATHS["trinity" if "buffer" in written else "strop"]
        path = value_at(written, split_key(keys))
        path = path[0] if isinstance(path, list) and path else path
    return suggest(kind, str(path or ""), settings_of(request).runs)


def _check(values: dict[str, Any], text: str) -> CheckedText:
    dialect = values.get("dialect")
    return check_text(
        text,
        str(values.get("name", "")),
        dialect=dialect if dialect in EDITABLE else None,
        here=bool(values.get("here")),
    )


def _edits(values: dict[str, Any], text: str, key: str, value: str | None) -> Mapping[str, str | None]:
    """New values by key, None for one to remove: in the beginner's form the held-out data has the training columns."""
    if values.get("mode") != "beginner" or (key not in _SAME_COLUMNS and key != _HELD_OUT):
        return {key: value}
    written = _check(values, text).values
    has_held_out = isinstance(value_at(written, ("data", "eval", "0")), dict)
    if key in _SAME_COLUMNS:
        return {key: value, _SAME_COLUMNS[key]: value} if has_held_out else {key: value}
    if value is None:
        return {"data.eval.0": None}
    if has_held_out:
        return {key: value}
    columns = {same: value_at(written, split_key(column)) for column, same in _SAME_COLUMNS.items()}
    return {key: value} | {
        same: yaml_value(column) for same, column in columns.items() if isinstance(column, str)
    }


def _answer(values: dict[str, Any], text: str) -> dict[str, Any]:
    checked, mode = _check(values, text), str(values.get("mode"))
    form = _form(checked, mode)
    structure = structure_of(form)
    answer: dict[str, Any] = {
        "text": text,
        "values": {one.key: one.value for one in all_fields(form)},
        "faults": [asdict(one) for one in checked.faults],
        "status": render("compose_status", checked=checked),
        "differences": render("compose_differences", fields=_differences(checked)),
        "structure": structure,
        "loads": checked.job is not None,
    }
    if structure != values.get("structure"):
        answer["form"] = render("compose_form", form=form, mode=mode)
    return answer


def _form(checked: CheckedText, mode: str) -> list[FormSection]:
    if mode != "expert":
        return [question_section(checked.dialect, checked.values)]
    return _every_field(checked)


def _every_field(checked: CheckedText) -> list[FormSection]:
    return (
        trinity_sections(checked.values)
        if checked.dialect == "trinity"
        else run_file_sections(checked.values)
    )


def structure_of(form: Sequence[FormSection]) -> str:
    """Digest of the fields that a form has."""
    names = (name for section in form for name in section.names())
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _differences(checked: CheckedText) -> list[FormField]:
    """Fields whose written value differs from the default."""
    return [one for one in all_fields(_every_field(checked)) if one.value and one.value != one.default]


ROUTES = [
    Route("/compose", page),
    *(
        Route(f"/compose/{name}", json_action(work), methods=["POST"])
        for name, work in (
            ("check", check),
            ("set", assign),
            ("plan", plan),
            ("convert", convert),
            ("save", save),
            ("start", start),
            ("complete-check", complete_check),
            ("suggestions", suggestions),
            ("completions", completions),
        )
    ),
]
