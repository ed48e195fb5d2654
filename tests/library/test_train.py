"""`strop.train` on data, models and functions in memory; runs built in Python; reading of the run's folder."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pandas
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import strop
from strop.library.inputs import to_table
from strop.library.run_view import LiveLine, step_line
from tests.command import run_strop
from tests.files import digest
from tests.library.rewards import digits

ROWS = [{"prompt": f"{a}", "answer": str(a)} for a in range(4)]
TOOLS = Path(__file__).parents[2] / "examples" / "workflows"


def make_run(out: Path, model: Path | None, **sections: Any) -> strop.Run:
    values: dict[str, Any] = {
        "output": str(out),
        "model": strop.Model() if model is None else strop.Model(path=str(model)),
        "data": strop.Data(max_prompt_tokens=64, max_response_tokens=4),
        "algorithm": strop.Grpo(rollouts_per_task=2),
        "trainer": strop.Trainer(
            tasks_per_step=2, duration=strop.Amount(2, "steps"), optimizer=strop.AdamW(lr=1e-3)
        ),
        "checkpoint": strop.Checkpoint(every=strop.Amount(1, "steps")),
        "record": strop.Record(report=False),
    }
    return strop.Run(**(values | sections))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> strop.RunResult:
    out = tmp_path_factory.mktemp("runs")
    return strop.train(make_run(out, folder), data=ROWS, eval={"held": ROWS[:2]}, reward=digits)


FORMS = {
    "dataset": lambda: datasets.Dataset.from_list(ROWS),
    "iterable": lambda: datasets.IterableDataset.from_generator(lambda: iter(ROWS)),
    "pandas": lambda: pandas.DataFrame(ROWS),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_trains_the_same_model(form, tmp_path, folder, trained):
    result = strop.train(
        make_run(tmp_path, folder), data=FORMS[form](), eval={"held": ROWS[:2]}, reward=digits
    )
    assert digest(result.model / "model.safetensors") == digest(trained.model / "model.safetensors")


@pytest.mark.slow
def test_the_folder_has_data_and_functions_by_path_so_that_the_command_line_continues(
    tmp_path, folder, trained
):
    view = strop.open_run(trained.folder)
    values = view.configuration
    assert values["reward"]["functions"][0]["function"] == "tests.library.rewards.digits"
    assert Path(values["data"]["train"]["path"]).parent == trained.folder / "inputs"
    done = run_strop("train", trained.folder, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    again = strop.train(
        make_run(trained.folder.parents[1], folder), data=ROWS, eval={"held": ROWS[:2]}, reward=digits
    )
    assert again.steps == 2


def test_rows_of_any_library_with_arrows_interface():
    table = to_table(ROWS, "data")
    polars = type("DataFrame", (), {"to_arrow": lambda self: table, "__module__": "polars.dataframe"})
    other = type(
        "Relation", (), {"__arrow_c_stream__": lambda self, schema=None: table.__arrow_c_stream__(schema)}
    )
    for frame in (polars(), other()):
        assert to_table(frame, "data").to_pylist() == ROWS


def test_other_rows_are_another_run(folder, trained):
    with pytest.raises(strop.RunFolderError, match=r"data\.train"):
        strop.train(
            make_run(trained.folder.parents[1], folder), data=ROWS[:3], eval={"held": ROWS[:2]}, reward=digits
        )
    assert strop.open_run(trained.folder).step == 2


@pytest.mark.slow
def test_a_new_start_keeps_the_inputs(tmp_path, folder):
    for _ in range(2):
        result = strop.train(make_run(tmp_path, folder, resume="never"), data=ROWS, reward=digits)
    assert result.steps == 2 and len(list(result.folder.parent.iterdir())) == 2


@pytest.mark.slow
def test_a_lambda_runs_here_and_its_folder_says_so(tmp_path, folder):
    run = make_run(tmp_path, folder)
    reward = strop.Reward(lambda completion: 1.0 if "1" in completion else 0.0, name="one", weight=0.5)
    result = strop.train(run, data=ROWS, reward=[reward, digits])
    assert {"reward/part/one", "reward/part/digits"} <= result.metrics.keys()
    only = strop.train(make_run(tmp_path, folder, name="only"), data=ROWS, reward=reward)
    record = json.loads((only.folder / "inputs" / "python.json").read_text())
    assert "<lambda>" in record["reward"][0]
    with pytest.raises(strop.RunFolderError, match="was started from Python with the reward"):
        strop.train(only.folder)


@pytest.mark.slow
def test_a_loaded_model_is_written_and_a_model_without_tokenizer_refused(tmp_path, folder, trained):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    run, evaluated = make_run(tmp_path, None), {"held": ROWS[:2]}
    result = strop.train(run, data=ROWS, eval=evaluated, model=model, tokenizer=tokenizer, reward=digits)
    assert digest(result.model / "model.safetensors") == digest(trained.model / "model.safetensors")
    with pytest.raises(strop.ModelError, match="has no tokenizer"):
        strop.train(run, data=ROWS, model=model, reward=digits)


@pytest.mark.slow
def test_loss_advantages_workflow_and_tools_are_functions(tmp_path, folder):
    def loss(micro_batch, outputs, counts):
        targets = torch.from_numpy(micro_batch.targets)
        value = -(outputs.logprobs[targets] * micro_batch.advantages[targets]).sum() / counts.tokens
        return strop.LossOutput(value, {"seen": value.detach()})

    def advantages(batch):
        return batch.rewards - batch.rewards.mean()

    async def workflow(task, chat):
        await chat.reply()
        return digits(chat.response)

    run = make_run(tmp_path, folder, algorithm=None)
    given = {"advantages": advantages, "loss": loss, "workflow": workflow}
    result = strop.train(run, data=ROWS, **given)
    assert "custom/seen" in result.metrics
    assert strop.train(run, data=ROWS, **given).steps == 2, "the same call continues"
    said = run_strop("train", result.folder).stderr
    assert "only that program has it" in " ".join(said.split())


@pytest.mark.slow
def test_tools_are_functions_that_the_model_sees(tmp_path, folder):
    def rotate(text: str) -> str:
        """Move the first character to the end.

        Args:
            text: Any text.
        """
        return text[1:] + text[:1]

    data = strop.Data(max_prompt_tokens=64, max_response_tokens=4, chat_template=str(TOOLS / "tools.jinja"))
    run = make_run(tmp_path, folder, data=data, rollout=strop.RolloutConfig(max_sequence_tokens=2000))
    view = strop.open_run(
        strop.train(run, data=ROWS, tools=[rotate, f"{TOOLS / 'weather.py'}:weather"], reward=digits).folder
    )
    prompts = {rollout["model_prompt"] for rollout in view.rollouts}
    assert prompts and all(
        '"name": "rotate"' in prompt and '"name": "weather"' in prompt for prompt in prompts
    )
    record = json.loads((view.folder / "inputs" / "python.json").read_text())
    assert "rotate" in str(record) and "weather" not in str(record)


@pytest.mark.parametrize(
    ("sections", "place"),
    [
        ({"trainer": strop.Trainer(engine=strop.Fsdp2Engine(ranks=2))}, "trainer.engine: fsdp2"),
        ({"synchronizer": {"type": "checkpoint"}}, "synchronizer: checkpoint"),
    ],
)
def test_other_processes_cannot_have_a_function_of_this_one(tmp_path, folder, sections, place):
    run = make_run(tmp_path, folder, algorithm=None, **sections)
    with pytest.raises(strop.ConfigError, match=place) as raised:
        strop.train(run, data=ROWS, reward=digits, loss=lambda m, o, c: o.logprobs.sum())
    assert "\n" not in str(raised.value) and "algorithm.loss: mine.py:function" in str(raised.value)


BAD_DATA = {
    "empty": ([], "has no rows"),
    "keys": ([{"prompt": "1"}, {"question": "2"}], "other keys than data"),
    "row": (["1"], "is of type str"),
    "path": ("data.jsonl", "data.train.path"),
    "number": (3, "is of type int"),
    "lazy": (
        type("LazyFrame", (), {"collect": lambda self: ROWS, "__module__": "polars.lazyframe.frame"})(),
        r"data=frame\.collect\(\)",
    ),
    "column": (datasets.Dataset.from_list([{"question": "1"}]), "no column 'prompt'"),
    "split": (datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)), r"data=dataset\['train'\]"),
    "types": ([{"prompt": "1"}, {"prompt": 2}], "different types"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_is_one_paragraph(case, tmp_path, folder):
    data, message = BAD_DATA[case]
    with pytest.raises(strop.DataError, match=message) as raised:
        strop.train(make_run(tmp_path, folder), data=data, reward=digits)
    assert "\n" not in str(raised.value) and not any(tmp_path.iterdir())


BAD_ARGUMENTS = {
    "workflow and tools": ({"workflow": digits, "tools": [digits]}, strop.ConfigError, "exclude each other"),
    "no tools": ({"tools": []}, strop.ConfigError, "tools is empty"),
    "loss of grpo": ({"loss": digits}, strop.ConfigError, "algorithm.type: grpo"),
    "tokenizer": ({"tokenizer": object()}, strop.ConfigError, "belongs to a loaded model"),
    "reward": ({"reward": "gsm8k"}, strop.RewardError, "reward is a str"),
    "callbacks": (
        {"callbacks": [object()]},
        strop.ConfigError,
        r"without a method of strop\.Callback: on_start",
    ),
    "no list of callbacks": ({"callbacks": "on_step"}, strop.ConfigError, "Write a list"),
    "class": ({"callbacks": [strop.Callback]}, strop.ConfigError, r"Write an object: Callback\(\)"),
    "eval": ({"eval": {}}, strop.DataError, "eval is an empty dict"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments_are_one_paragraph(case, tmp_path, folder):
    arguments, error, message = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=message) as raised:
        strop.train(make_run(tmp_path, folder), data=ROWS, **({"reward": digits} | arguments))
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("returned", ["1", None, math.nan, [1.0, 2.0]])
def test_a_reward_that_is_no_number_stops_the_run(returned, tmp_path, folder):
    with pytest.raises(strop.RolloutError, match=r"returned|number"):
        strop.train(make_run(tmp_path, folder), data=ROWS, reward=lambda completion: returned)


def test_a_run_is_saved_as_a_run_file_if_everything_has_a_path(tmp_path, folder):
    data = strop.Data(train=strop.Taskset(path="train.jsonl", prompt="question"))
    file = make_run(tmp_path, folder, data=data, reward=digits).save(tmp_path / "run.yaml")
    loaded = strop.load(file).run
    assert loaded.data.train.prompt == "question" and loaded.algorithm == strop.Grpo(rollouts_per_task=2)
    assert loaded.reward.functions[0].function == "tests.library.rewards.digits"
    with pytest.raises(strop.ConfigError) as raised:
        make_run(tmp_path, None, reward=lambda completion: 1.0).save(tmp_path / "other.yaml")
    for part in ("model has no path", "data.train has no path", "<lambda> cannot be imported"):
        assert part in str(raised.value)
    assert not (tmp_path / "other.yaml").exists()


def test_a_wrong_value_of_a_run_is_a_config_error():
    with pytest.raises(strop.ConfigError, match="seed"):
        strop.Run(seed="x")
    with pytest.raises(strop.ConfigError, match="no field 'modelx'; did you mean 'model'"):
        strop.Run(modelx=strop.Model(path="model"))


def test_open_run_reads_the_folder(trained, tmp_path):
    view = strop.open_run(trained.folder)
    assert (view.status, view.step, view.steps, view.error) == ("finished", 2, 2, None)
    frame = view.metrics.to_pandas()
    assert list(frame.index) == [0, 1, 2] and view.metrics["reward/mean"] == list(
        frame["reward/mean"].dropna()
    )
    assert len(view.rollouts) == sum(1 for _ in view.rollouts) == len(view.rollouts.to_pandas())
    assert view.rollouts.at_step(view.rollouts.steps()[0])[0]["step"] == view.rollouts.steps()[0]
    assert [*view.checkpoints] == [1, 2] and view.model == trained.model and "held" in view.evaluations
    assert "<td>finished</td>" in view._repr_html_() and "finished, step 2 of 2" in repr(view)
    with pytest.raises(KeyError, match="no step has"):
        view.metrics["reward/men"]
    with pytest.raises(strop.RunFolderError, match="not a run folder"):
        strop.open_run(tmp_path)
    with pytest.raises(strop.RunFolderError, match="takes the path of a run's folder"):
        strop.open_run(5)


def test_the_live_line_of_a_notebook_is_replaced(monkeypatch):
    shown = []
    handle = SimpleNamespace(update=shown.append)

    def display(line: str, display_id: bool) -> SimpleNamespace:
        shown.append(line)
        return handle

    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    line = LiveLine()
    for step in (1, 2):
        line.on_step({"step": step, "reward/mean": 0.5})
    assert shown == [f"<code>{step_line({'step': step, 'reward/mean': 0.5})}</code>" for step in (1, 2)]
