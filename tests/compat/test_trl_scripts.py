"""Scripts of TRL and unsloth, which are run up to `train()`: what they pass is the run, or is refused by name.

Expectations are what Python does with the script, and the fields and defaults of TRL 1.16.0's classes.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import PreTrainedModel

from strop.compat.convert import convert
from strop.compat.ledger.key_mapping import no_key_owner
from strop.compat.trl.reader import read_trl_arguments
from strop.compat.trl.script.configurations import (
    CONFIGURATIONS,
    ModelConfig,
    ScriptArguments,
    default_of,
    plain,
)
from strop.compat.trl.script.run import read_trl_script, run_trl_script
from strop.config.load.loader import Job, LoadedRun
from strop.config.schema.model import QuantizationConfig
from strop.errors import ConfigError
from strop.reading import read_any
from strop.run.entry.start import RunResult

from .key_tables import value_of

ROWS = [{"prompt": [{"role": "user", "content": f"{n}+{n}?"}], "answer": str(2 * n)} for n in range(8)]
PAIRS = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4
HEAD = """
from datasets import Dataset, DatasetDict, load_dataset
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, SFTConfig, SFTTrainer
from rewards import right, short
data = load_dataset("json", data_files="train.jsonl", split="train")
"""
GRPO = 'GRPOTrainer("model", right, GRPOConfig("out", num_generations=4), data{}).train()'


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for name, rows in (("train", ROWS), ("test", ROWS[:3]), ("pairs", PAIRS)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("rewards.py").write_text(
        "def right(completions, answer, **kwargs):\n    return [1.0]\n"
        "def short(completions, **kwargs):\n    return [0.5]\n"
    )


def job_of(text: str, *arguments: str, head: str = HEAD) -> Job:
    Path("train.py").write_text(head + text)
    return read_any(Path("train.py"), arguments)


def run_of(text: str, *arguments: str, head: str = HEAD) -> LoadedRun:
    return job_of(text, *arguments, head=head).loaded


def rows_of(path: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = datasets.Dataset.from_parquet(str(path)).to_list()
    return rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            GRPO.format(""), {"data.train.path": "train.jsonl", "model.path": "model"}, id="positional"
        ),
        pytest.param(GRPO.format(""), {"folder": "out", "trainer.optimizer.lr": 1e-6}, id="first argument"),
        pytest.param(
            'GRPOTrainer("org/model", right, train_dataset=data).train()',
            {"folder": "model-GRPO"},
            id="no configuration",
        ),
        pytest.param(
            "args = GRPOConfig(num_generations=4, output_dir='out')\nargs.learning_rate = 5e-4\nargs.beta = 0.1\n"
            "args.temperature = 0.7\nGRPOTrainer('model', right, args, data).train()",
            {
                "trainer.optimizer.lr": 5e-4,
                "algorithm.kl_loss.coef": 0.1,
                "rollout.sampling.temperature": 0.7,
            },
            id="assigned",
        ),
        pytest.param(
            "t = GRPOTrainer('model', right, GRPOConfig('out', num_generations=4), data)\nt.args.learning_rate = 1e-3\n"
            "t.train()",
            {"trainer.optimizer.lr": 1e-3},
            id="assigned after the trainer",
        ),
        pytest.param(
            "rate: float = 1e-6\nrate *= 100\ncount = 4\ndef main(count=2):\n"
            "    args = GRPOConfig('out', learning_rate=float(str(rate)), num_generations=count,\n"
            "        per_device_train_batch_size=2 * 4)\n"
            "    GRPOTrainer('model', right, args, data).train()\nmain()",
            {
                "trainer.optimizer.lr": 1e-6 * 100,
                "algorithm.rollouts_per_task": 2,
                "trainer.tasks_per_step": 4,
            },
            id="computed",
        ),
        pytest.param(
            "import dataclasses\nargs = dataclasses.replace(GRPOConfig('out', num_generations=4), beta=0.2)\n"
            "GRPOTrainer('model', right, args, data).train()",
            {"folder": "out", "algorithm.kl_loss.coef": 0.2, "algorithm.rollouts_per_task": 4},
            id="replaced",
        ),
        pytest.param(
            "from transformers.trainer_utils import SchedulerType\nimport numpy as np\n"
            "args = GRPOConfig('out', lr_scheduler_type=SchedulerType.COSINE, learning_rate=np.float32(0.5),\n"
            "    beta=np.int64(1))\n"
            "GRPOTrainer('model', right, args, data).train()",
            {"trainer.schedule.type": "cosine", "trainer.optimizer.lr": 0.5, "algorithm.kl_loss.coef": 1},
            id="enumerations and NumPy numbers",
        ),
        pytest.param(
            "options = {'dtype': 'bfloat16', 'revision': 'main', 'attn_implementation': None}\n"
            "args = GRPOConfig('out', model_init_kwargs=options)\n"
            "GRPOTrainer('model', right, args, data).train()",
            {"model.dtype": "bfloat16"},
            id="model_init_kwargs",
        ),
        pytest.param(
            "from peft import LoraConfig\n"
            + GRPO.format(", peft_config=LoraConfig(r=4, target_modules=['q_proj'])"),
            {
                "model.lora.rank": 4,
                "model.lora.alpha": 8,
                "model.lora.dropout": 0.0,
                "model.lora.targets": ("q_proj",),
            },
            id="adapter",
        ),
        pytest.param(
            GRPO.format(
                ", eval_dataset=load_dataset('json', data_files='test.jsonl', split='train')"
            ).replace("4)", "4, eval_strategy='steps', eval_steps=2)"),
            {
                "data.eval.0.path": "test.jsonl",
                "data.eval.0.name": "eval",
                "data.eval.0.rollouts_per_task": 4,
            },
            id="evaluation on another file",
        ),
        pytest.param(
            "data = load_dataset('json', data_files={'train': 'train.jsonl', 'test': 'test.jsonl'})\n"
            "args = GRPOConfig('out', eval_strategy='epoch')\n"
            "GRPOTrainer('model', right, args, data['train'], {'a': data['test'], 'b': data['train']}).train()",
            {
                "data.train.path": "train.jsonl",
                "data.eval.0.path": "test.jsonl",
                "data.eval.1.path": "train.jsonl",
            }
            | {"data.eval.0.name": "a", "data.eval.1.name": "b"},
            id="files by split, several evaluations",
        ),
        pytest.param(
            "RLOOTrainer('model', right, RLOOConfig('out', num_generations=4), data).train()",
            {"algorithm.type": "rloo", "algorithm.rollouts_per_task": 4, "algorithm.kl_reward.coef": 0.05},
            id="rloo",
        ),
        pytest.param(
            "pairs = load_dataset('json', data_files='pairs.jsonl', split='train')\n"
            "DPOTrainer('model', None, DPOConfig('out', beta=0.3), train_dataset=pairs).train()",
            {"algorithm.type": "dpo", "algorithm.beta": 0.3, "data.train.path": "pairs.jsonl"},
            id="dpo",
        ),
        pytest.param(
            "from trl import KTOConfig, KTOTrainer\n"
            "rows = Dataset.from_list([{'prompt': 'a', 'completion': 'b', 'label': i < 2} for i in range(4)])\n"
            "KTOTrainer('model', None, KTOConfig('out', desirable_weight=2.0), train_dataset=rows).train()",
            {
                "algorithm.type": "kto",
                "algorithm.desirable_weight": 2.0,
                "data.train.response": "completion",
                "data.train.label": "label",
                "data.train.chosen": None,
                "data.shuffle": False,
                "trainer.optimizer.lr": 1e-6,
            },
            id="kto",
        ),
        pytest.param(
            "from trl import KTOConfig, KTOTrainer\n"
            "pairs = load_dataset('json', data_files='pairs.jsonl', split='train')\n"
            "KTOTrainer('model', args=KTOConfig('out'), train_dataset=pairs).train()",
            {"algorithm.type": "kto", "data.train.chosen": "chosen", "data.train.label": None},
            id="kto on pairs",
        ),
        pytest.param(
            "from peft import LoraConfig\nfrom trl import RewardConfig, RewardTrainer\n"
            "rows = Dataset.from_list([{'prompt': 'a', 'chosen': 'b', 'rejected': 'c', 'margin': 0.5}] * 4)\n"
            "args = RewardConfig('out', center_rewards_coefficient=0.01)\n"
            "lora = LoraConfig(target_modules='all-linear', modules_to_save=['score'])\n"
            "RewardTrainer('model', args, train_dataset=rows, peft_config=lora).train()",
            {
                "algorithm.type": "reward_model",
                "algorithm.loss": "bradley_terry",
                "algorithm.centering_coef": 0.01,
                "algorithm.head": "normal",
                "algorithm.append_eos": True,
                "data.train.margin": "margin",
                "data.overlong": "filter",
                "model.lora.rank": 8,
                "trainer.optimizer.lr": 1e-4,
            },
            id="reward",
        ),
        pytest.param(
            "from trl.experimental.cpo import CPOConfig, CPOTrainer\n"
            "pairs = load_dataset('json', data_files='pairs.jsonl', split='train')\n"
            "args = CPOConfig('out', loss_type='simpo', simpo_gamma=1.0, cpo_alpha=0.0, beta=2.0)\n"
            "CPOTrainer('model', args, train_dataset=pairs).train()",
            {
                "algorithm.type": "cpo",
                "algorithm.loss": "simpo",
                "algorithm.margin": 1.0,
                "algorithm.sft_weight": 0.0,
                "algorithm.beta": 2.0,
                "data.train.chosen": "chosen",
                "data.shuffle": True,
            },
            id="cpo",
        ),
        pytest.param(
            "from trl.experimental.orpo import ORPOConfig, ORPOTrainer\n"
            "pairs = load_dataset('json', data_files='pairs.jsonl', split='train')\n"
            "ORPOTrainer('model', ORPOConfig('out', beta=0.2), train_dataset=pairs).train()",
            {"algorithm.type": "orpo", "algorithm.beta": 0.2, "data.train.rejected": "rejected"},
            id="orpo",
        ),
        pytest.param(
            "rows = Dataset.from_list([{'prompt': 'a', 'completion': 'b'}] * 4)\n"
            "SFTTrainer('model', SFTConfig('out'), train_dataset=rows).train()",
            {"algorithm.type": "sft", "data.train.response": "completion", "trainer.optimizer.lr": 2e-5},
            id="sft",
        ),
    ],
)
def test_the_run_is_what_the_program_passes(text: str, expected: dict[str, Any]) -> None:
    loaded = run_of(text)
    assert {key: value_of(loaded, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("load_dataset('json', data_files='train.jsonl', split='train[:4]')", ROWS[:4]),
        ("data.select(range(2))", ROWS[:2]),
        ("data.filter(lambda row: row['answer'] == '6')", [ROWS[3]]),
        (
            "data.map(lambda row: {'prompt': row['answer']})",
            [row | {"prompt": row["answer"]} for row in ROWS],
        ),
        ("data.remove_columns('answer')", [{"prompt": row["prompt"]} for row in ROWS]),
        ("Dataset.from_list([{'prompt': 'x', 'answer': None}])", [{"prompt": "x", "answer": None}]),
        (
            "load_dataset('json', data_files=['test.jsonl', 'test.jsonl'], split='train')",
            [*ROWS[:3], *ROWS[:3]],
        ),
    ],
)
def test_changed_rows_are_written_as_they_are(text: str, expected: list[dict[str, Any]]) -> None:
    path = Path(value_of(run_of(f"data = {text}\n" + GRPO.format("")), "data.train.path"))
    assert path.parent == Path("out.data") and rows_of(path) == expected


@pytest.mark.parametrize("column", ["text", "body"])
def test_texts_of_sft_are_trained_whole(column: str) -> None:
    loaded = run_of(
        f"rows = Dataset.from_list([{{'{column}': 'a b', 'other': 1}}])\n"
        f"SFTTrainer('model', SFTConfig('out', dataset_text_field='{column}'), train_dataset=rows).train()"
    )
    expected = {"data.train.text": column, "data.train.response": None, "data.overlong": "right"}
    assert {key: value_of(loaded, key) for key in expected} == expected


def test_texts_of_the_hub_are_known_by_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = datasets.Dataset.from_list([{"text": "a b"}])
    monkeypatch.setattr(datasets, "load_dataset", lambda path, **options: rows)
    loaded = run_of("SFTTrainer('m', train_dataset=load_dataset('org/texts', split='train')).train()")
    expected = {"data.train.path": "org/texts", "data.train.text": "text"}
    assert {key: value_of(loaded, key) for key in expected} == expected


def test_all_tokens_of_conversations_are_trained_as_in_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of the Hub are not known later, so that the rows are written to a file."""
    rows = datasets.Dataset.from_list([{"messages": [{"role": "user", "content": "a"}]}])
    monkeypatch.setattr(datasets, "load_dataset", lambda path, **options: rows)
    for option, trained in (("", True), ("SFTConfig('o', assistant_only_loss=True), ", False)):
        loaded = run_of(
            f"SFTTrainer('m', {option}train_dataset=load_dataset('org/chats', split='train')).train()"
        )
        expected = {"data.train.response": "messages", "data.train.train_on_prompt": trained}
        assert {key: value_of(loaded, key) for key in expected} == expected
        assert (value_of(loaded, "data.train.path") == "org/chats") is not trained


def test_a_formatting_function_makes_the_texts_of_both_data_sets() -> None:
    loaded = run_of(
        "rows = Dataset.from_list([{'q': 'a', 'r': 'b'}, {'q': 'c', 'r': 'd'}])\n"
        "SFTTrainer('model', SFTConfig('out', eval_strategy='epoch'), train_dataset=rows,\n"
        "    eval_dataset=rows.select([1]), formatting_func=lambda row: row['q'] + ': ' + row['r']).train()"
    )
    assert rows_of(value_of(loaded, "data.train.path")) == [{"text": "a: b"}, {"text": "c: d"}]
    assert rows_of(value_of(loaded, "data.eval.0.path")) == [{"text": "c: d"}]
    assert value_of(loaded, "data.train.text") == value_of(loaded, "data.eval.0.text") == "text"


def test_packing_of_a_script_counts_sequences() -> None:
    """trl/trainer/sft_trainer.py: the batch sizes count the sequences that pack_dataset makes."""
    loaded = run_of(
        "rows = Dataset.from_list([{'prompt': 'a', 'completion': 'b'}] * 4)\n"
        "args = SFTConfig('out', packing=True, packing_strategy='bfd', max_length=64, shuffle_dataset=True,\n"
        "    per_device_train_batch_size=2, gradient_accumulation_steps=3)\n"
        "SFTTrainer('model', args, train_dataset=rows).train()"
    )
    expected = {"data.packing.strategy": "bfd", "data.packing.shuffle": True, "trainer.tasks_per_step": 6}
    expected |= {"trainer.microbatch.count": 128, "trainer.microbatch.unit": "tokens"}
    assert {key: value_of(loaded, key) for key in expected} == expected


def test_files_of_rows_are_named_by_their_content() -> None:
    first = value_of(run_of("data = data.select(range(2))\n" + GRPO.format("")), "data.train.path")
    same = value_of(
        run_of("data = data.filter(lambda row: int(row['answer']) < 4)\n" + GRPO.format("")),
        "data.train.path",
    )
    other = value_of(run_of("data = data.select(range(3))\n" + GRPO.format("")), "data.train.path")
    assert first == same != other


def test_a_data_set_of_the_hub_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(
        path: str, name: str | None = None, split: str | None = None, **options: Any
    ) -> datasets.Dataset:
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    loaded = run_of(
        "args = GRPOConfig('out', eval_strategy='epoch')\n"
        "GRPOTrainer('model', right, args, load_dataset('org/train', 'hard', split='train'),\n"
        "    load_dataset('org/test', split='validation')).train()"
    )
    expected = {"data.train.path": "org/train", "data.train.subset": "hard", "data.train.split": "train"}
    expected |= {
        "data.eval.0.path": "org/test",
        "data.eval.0.subset": None,
        "data.eval.0.split": "validation",
    }
    assert {key: value_of(loaded, key) for key in expected} == expected


def test_rewards_are_files_where_they_can_be_imported_and_objects_otherwise() -> None:
    loaded = run_of(
        "from functools import partial\nfrom trl.rewards import get_soft_overlong_punishment, think_format_reward\n"
        "def own(completions, **kwargs):\n    return [len(completions)]\n"
        "args = GRPOConfig('out', reward_weights=[1, 2, 3, 4, 5, 6])\n"
        "rewards = [right, own, 'org/scorer', partial(own), think_format_reward, get_soft_overlong_punishment(8, 2)]\n"
        "GRPOTrainer('model', rewards, args, data).train()"
    )
    functions = [(part.function, part.weight) for part in loaded.run.reward.functions]
    assert functions == [("rewards.py:right", 1.0), ("strop.compat.trl.rewards.think_format_reward", 5.0)]
    assert [(part.path, part.weight) for part in loaded.run.reward.models] == [("org/scorer", 3.0)]
    objects = [(part.name, part.weight) for part in loaded.rewards]
    assert objects == [("own", 2.0), ("own_2", 4.0), ("soft_overlong_punishment_reward", 6.0)]
    assert loaded.rewards[0].function(["a", "b"]) == [2]


def test_modules_of_a_script_are_those_next_to_it() -> None:
    """As with `python scripts/train.py`, whose path begins with the script's folder."""
    Path("scripts").mkdir()
    Path("scripts/mine.py").write_text("def near(completions, **kwargs): ...\n")
    text = HEAD.replace("from rewards import right, short", "from mine import near") + GRPO.format(
        ""
    ).replace("right", "near")
    Path("scripts/train.py").write_text(text)
    functions = read_trl_script(Path("scripts/train.py")).loaded.run.reward.functions
    assert [part.function for part in functions] == ["scripts/mine.py:near"]
    assert not {"mine", "trl", "trl.rewards"} & {*sys.modules}


PARSED = """
from trl import ModelConfig, ScriptArguments, TrlParser, get_peft_config, get_quantization_config
parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
script_args, args, model_args = parser.parse_args_and_config()
args.model_init_kwargs = dict(revision=model_args.model_revision, dtype=model_args.dtype)
data = load_dataset("json", data_files=script_args.dataset_name, split=script_args.dataset_train_split)
GRPOTrainer(model_args.model_name_or_path, right, args, data, peft_config=get_peft_config(model_args),
    quantization_config=get_quantization_config(model_args)).train()
"""
WORDS = (
    *("--model_name_or_path", "model", "--dataset_name", "train.jsonl", "--learning_rate", "1e-4"),
    *(
        "--num_generations",
        "4",
        "--lr_scheduler_kwargs",
        '{"num_cycles": 1}',
        "--lr_scheduler_type",
        "cosine",
    ),
    *(
        "--use_peft",
        "--lora_target_modules",
        "q_proj",
        "v_proj",
        "--scale_rewards",
        "batch",
        "--bf16",
        "False",
    ),
)


def test_arguments_of_a_script_are_those_of_the_command_line() -> None:
    """The same words configure `trl grpo`."""
    loaded = run_of(PARSED, *WORDS)
    program = read_trl_arguments("grpo", [*WORDS, "--reward_funcs", "rewards.right"])
    assert loaded.run == program.run
    Path("c.yaml").write_text(
        "learning_rate: 1.0e-4\nnum_generations: 4\nenv: {SOME_VARIABLE: x}\nreward_weights: [2]\n"
    )
    given = run_of(PARSED, *WORDS[:4], "--config", "c.yaml", "--num_generations", "2")
    assert (
        value_of(given, "trainer.optimizer.lr") == 1e-4
        and value_of(given, "algorithm.rollouts_per_task") == 2
    )
    assert given.run.reward.functions[0].weight == 2


NESTED_ALIASES = "l0: &l0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 8)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NESTED_ALIASES, "more than 10,000 values"),
        ("learning_rate: [", "cannot be read"),
    ],
    ids=["aliases", "syntax"],
)
def test_a_config_file_beyond_the_limits_is_refused(text: str, reason: str) -> None:
    Path("c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=reason):
        run_of(PARSED, *WORDS[:4], "--config", "c.yaml")


@pytest.mark.parametrize("parser", ["trl import TrlParser", "transformers import HfArgumentParser"])
def test_every_field_has_a_type_that_parsers_read(parser: str) -> None:
    """Without words the fields have their defaults."""
    configs = "GRPOConfig, RLOOConfig, SFTConfig, DPOConfig, ModelConfig, ScriptArguments"
    loaded = run_of(
        f"from {parser} as Parser\nfrom trl import {configs}\nfor kind in ({configs}):\n"
        "    (args,) = Parser(kind).parse_args_into_dataclasses(args=[])\n    assert not list(args.written())\n"
        + GRPO.format("")
    )
    assert value_of(loaded, "algorithm.rollouts_per_task") == 4


OF_EARLIER_VERSIONS = ("max_prompt_length", "reference_free", "rpo_alpha", "warmup_ratio")
"""Fields that TRL 1.16 and its transformers do not have any more, and that Strop still reads."""


def trl_fields(name: str) -> dict[str, Any]:
    """Fields and defaults of a class of TRL: of the installed one, or as 1.16.0 has them (trl_fields.json)."""
    if find_spec("trl") is None:
        recorded = json.loads(Path(__file__).with_name("trl_fields.json").read_text())
        shared = recorded["all"] if name not in ("ModelConfig", "ScriptArguments") else {}
        own = recorded[name]
        lacking = own.get("without", ())
        return {key: default for key, default in (shared | own).items() if key not in ("without", *lacking)}
    module = {"CPOConfig": "trl.experimental.cpo", "ORPOConfig": "trl.experimental.orpo"}.get(name, "trl")
    fields = [field for field in dataclasses.fields(getattr(import_module(module), name)) if field.init]
    return {field.name: plain(default_of(field), field.name) for field in fields}


@pytest.mark.parametrize(
    "config", [*CONFIGURATIONS.values(), ModelConfig, ScriptArguments], ids=lambda config: config.__name__
)
def test_fields_and_defaults_are_those_of_the_classes(config: type[Any]) -> None:
    own = {field.name: default_of(field) for field in dataclasses.fields(config)}
    expected = trl_fields(config.__name__)
    earlier = [name for name in OF_EARLIER_VERSIONS if name not in expected]
    assert {name: default for name, default in own.items() if name not in earlier} == expected


def test_values_have_the_line_that_set_them() -> None:
    loaded = run_of(
        "args = GRPOConfig('out',\n    num_generations=4)\nargs.learning_rate = 1e-3\n\n"
        "GRPOTrainer('model', right, args, data).train()"
    )
    places = {
        key: str(loaded.sources[key]).partition(" ")[0] for key in ("trainer.optimizer.lr", "data.train.path")
    }
    assert places == {"trainer.optimizer.lr": "train.py:8", "data.train.path": "train.py:10"}
    assert str(loaded.sources["algorithm.rollouts_per_task"]).startswith("train.py:6")


def saved_model(folder: str, dtype: str = "bfloat16", template: str = "{{ messages }}") -> None:
    """A folder with the files of a model that reading needs."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    Path(folder).mkdir(exist_ok=True)
    Path(folder, "config.json").write_text(json.dumps({"model_type": "qwen2", "dtype": dtype}))
    tokens = Tokenizer(WordLevel({"a": 0, "<e>": 1, "<p>": 2}, unk_token="a"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token="<e>", pad_token="<e>")
    fast.chat_template = template
    fast.save_pretrained(folder)


LOADED = """
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("saved"{options})
tokenizer = AutoTokenizer.from_pretrained("saved")
{more}
GRPOTrainer(model, right, GRPOConfig("out"), data, processing_class=tokenizer{last}).train()
"""


ADAPTED = (
    "from peft import LoraConfig, get_peft_model\n"
    "model = get_peft_model(model, LoraConfig(target_modules='all-linear'))"
)


def loaded_model(options: str = "", more: str = "", last: str = "") -> LoadedRun:
    saved_model("saved")
    return run_of(LOADED.format(options=options, more=more, last=last))


@pytest.mark.parametrize(
    ("options", "more", "expected"),
    [
        ("", "", {"model.path": "saved", "model.dtype": "bfloat16", "data.chat_template": "tokenizer"}),
        (", dtype='float32'", "", {"model.dtype": "float32"}),
        (", torch_dtype=__import__('torch').bfloat16", "", {"model.dtype": "bfloat16"}),
        (", trust_remote_code=True", "", {"model.trust_remote_code": True}),
        ("", "model.config.use_cache = False", {"model.path": "saved"}),
        ("", "tokenizer.chat_template = '{{ messages[0] }}'", {"data.chat_template": "{{ messages[0] }}"}),
        ("", "tokenizer.pad_token = '<p>'\ntokenizer.padding_side = 'left'", {"model.tokenizer": None}),
        (
            "",
            "from peft import LoraConfig, get_peft_model\nmodel = get_peft_model(model, LoraConfig(r=2))",
            {"model.lora.rank": 2, "model.lora.targets": ("q_proj", "v_proj")},
        ),
        (
            "",
            "from peft import LoraConfig, get_peft_model\n"
            "more = dict(bias='none', init_lora_weights=True, rank_pattern={})\n"
            "model = get_peft_model(model, LoraConfig(use_rslora=True, target_modules='all-linear', **more))",
            {"model.lora.use_rslora": True, "model.lora.targets": "all-linear"},
        ),
        (
            ", quantization_config={'load_in_4bit': True, 'bnb_4bit_use_double_quant': True}",
            ADAPTED,
            {
                "model.quantization.bits": 4,
                "model.quantization.type": "fp4",
                "model.quantization.double": True,
            },
        ),
        (", load_in_8bit=True", ADAPTED, {"model.quantization.bits": 8}),
    ],
)
def test_a_loaded_model_is_its_name_and_arguments(options: str, more: str, expected: dict[str, Any]) -> None:
    before = PreTrainedModel.from_pretrained.__func__
    loaded = loaded_model(options, more)
    assert {key: value_of(loaded, key) for key in expected} == expected
    assert PreTrainedModel.from_pretrained.__func__ is before


@pytest.mark.parametrize(
    ("options", "more", "last", "said"),
    [
        (", quantization_config={'quant_method': 'gptq'}", "", "", "have the formats of bitsandbytes"),
        (
            ", quantization_config={'load_in_8bit': True, 'llm_int8_skip_modules': ['q']}",
            "",
            "",
            "llm_int8_skip_modules=['q']: Strop quantizes all linear layers",
        ),
        (", revision='abc'", "", "", "model_revision='abc' is not supported"),
        (", subfolder='x'", "", "", "from_pretrained has subfolder='x'"),
        ("", "model.resize_token_embeddings(10)", "", "model.resize_token_embeddings is not available"),
        ("", "model.config.rope_theta = 5.0", "", "model.config.rope_theta was changed to 5.0"),
        ("", "tokenizer.add_tokens(['new'])", "", "has other tokens than saved"),
        ("", "tokenizer.eos_token = '<p>'", "", "end-of-sequence token '<p>'"),
        ("", "", ", ref_model=model", "GRPOTrainer has the argument ref_model"),
        (
            "",
            "from peft import LoraConfig as L",
            ", peft_config=L(target_modules=['q'], bias='all')",
            "bias='all'",
        ),
        (
            "",
            "from peft import LoraConfig as L",
            ", peft_config=L(target_modules=['q'], use_dora=True)",
            "use_dora=True",
        ),
        ("", "from peft import IA3Config as L", ", peft_config=L()", "peft_config is a IA3Config"),
        *(
            (
                "",
                "from peft import LoraConfig as L",
                f", peft_config=L(target_modules=['q'], {argument})",
                said,
            )
            for argument, said in (
                ("rank_pattern={'q_proj': 8}", "write model.lora.rank_pattern there"),
                ("exclude_modules=['lm_head']", "write model.lora.exclude there"),
                ("layers_to_transform=[0]", "write target_modules as a regular expression"),
                ("init_lora_weights='pissa'", "a new adapter starts with PEFT's default factors"),
                ("trainable_token_indices=[3]", "such an adapter trains embeddings of tokens"),
                ("modules_to_save=['lm_head']", "lora_modules_to_save"),
                ("target_parameters=['experts.gate_up_proj']", "Strop adapts modules"),
            )
        ),
    ],
)
def test_a_loaded_model_that_is_another_one_is_refused(options: str, more: str, last: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded_model(options, more, last)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("GRPOConfig(zzz=1)", "GRPOConfig has no argument 'zzz'"),
        ("GRPOConfig('out', 4)", "2 arguments without names"),
        (
            "GRPOConfig(beta='x', output_dir='out')\n"
            + GRPO.format("").replace("GRPOConfig(", "GRPOConfig(beta='x', output_dir="),
            "beta",
        ),
        (
            "args = GRPOConfig('out')\nargs.learning_rat = 1",
            "has no field 'learning_rat'; did you mean 'learning_rate'?",
        ),
        ("from trl.experimental.bco import BCOConfig", "BCOConfig is not supported: TRL 1.16 has no BCO"),
        ("from trl import GKDTrainer", "samples and compares at one temperature"),
        ("import trl\ntrl.experimental.gold", "trl.experimental is not supported"),
        ("from trl import setup_chat_format", "name the folder"),
        (GRPO.format(", tools=[print]"), "GRPOTrainer has tools, which Strop does not have"),
        (GRPO.format(", environment_factory=dict"), "GRPOTrainer has environment_factory"),
        (GRPO.format(", rollout_func=print"), "GRPOTrainer has rollout_func"),
        (GRPO.format(", optimizers=(1, None)"), "GRPOTrainer has optimizers"),
        (GRPO.format(", zzz=1"), "GRPOTrainer has the argument zzz"),
        (
            "SFTTrainer('m', train_dataset=data, compute_metrics=print)",
            "SFTTrainer has compute_metrics, which Strop",
        ),
        (
            "DPOTrainer('m', train_dataset=data, data_collator=print)",
            "DPOTrainer has data_collator, which Strop",
        ),
        ("from trl import DistillationTrainer", "write a run file with algorithm: {type: distillation"),
        (
            GRPO.format("").replace("right", "[right, short]").replace("4)", "4, reward_weights=[1])"),
            "1 numbers for 2 rewards",
        ),
        (GRPO.format("").replace("right", "None"), "reward_funcs is missing"),
        (
            GRPO.format("").replace("GRPOConfig", "SFTConfig").replace(", num_generations=4", ""),
            "args is a SFTConfig",
        ),
        (GRPO.format("").replace("data)", "DatasetDict(a=data))"), "train_dataset has the splits 'a'"),
        (GRPO.format("").replace("data)", "[1])"), "train_dataset is a list"),
        (GRPO.format("").replace("data)", "data.to_iterable_dataset())"), "train_dataset is streamed"),
        (GRPO.format("").replace(", data)", ")"), "train_dataset is missing"),
        (GRPO.format("").replace("4)", "4, eval_strategy='epoch')"), "there is no eval_dataset"),
        (
            GRPO.format("").replace("train()", "train(resume_from_checkpoint='out/checkpoint-2')"),
            "no checkpoint of Strop",
        ),
        (
            "class Mine(GRPOTrainer):\n    def compute_loss(self): ...",
            "the method compute_loss, which Strop does not call",
        ),
        ("raise KeyError('x')", "train.py:6: the script raised KeyError: 'x'"),
        (
            "[bytearray(10**16)]",
            "train.py:6: the script raised MemoryError. It has taken all memory of this machine that was free",
        ),
        ("import sys; sys.exit(3)", "ended with exit code 3"),
        ("print('done')", "ended without a call of train()"),
        (
            "trainer = " + GRPO.format("").replace(".train()", ".model.generate()"),
            "model.generate is not available",
        ),
        (
            GRPO.format("").replace(".train()", ".create_optimizer()"),
            "trainer.create_optimizer is not available",
        ),
        (
            "from transformers import TrainerCallback\n"
            "class C(TrainerCallback):\n    def on_epoch_end(self, *a, **k): ...\n"
            + GRPO.format(", callbacks=[C()]"),
            "the callback C handles on_epoch_end, which Strop does not call",
        ),
        (
            "SFTTrainer('m', train_dataset=Dataset.from_list([{'body': 'a'}])).train()",
            "or a text in the column text (dataset_text_field)",
        ),
        (
            "rows = Dataset.from_list([{'messages': []}])\nimport datasets\n"
            "datasets.load_dataset = lambda *a, **o: rows.to_iterable_dataset()\n"
            "SFTTrainer('m', train_dataset=datasets.load_dataset('o/x', split='train', streaming=True)).train()",
            "train_dataset is streamed, and its rows were changed",
        ),
        (
            "SFTTrainer('m', train_dataset=data, formatting_func=str).train()",
            "train_dataset has a column prompt, which TRL 1.16 reads in place of the text of formatting_func",
        ),
        (
            "rows = Dataset.from_list([{'a': 'b'}])\n"
            "SFTTrainer('m', train_dataset=rows, formatting_func=lambda row: [row['a']]).train()",
            "formatting_func returns a list for a row",
        ),
        (
            "rows = Dataset.from_list([{'a': 'b'}])\n"
            "SFTTrainer('m', SFTConfig('o', completion_only_loss=True), train_dataset=rows,\n"
            "    formatting_func=lambda row: row['a']).train()",
            "completion_only_loss does not apply to the texts of formatting_func",
        ),
        (
            "DPOTrainer('m', 'n', train_dataset=data)",
            "ref_model is n, and Strop's reference is the initial model, m",
        ),
        (
            "import torch\nGRPOTrainer(torch.nn.Linear(1, 1), right, GRPOConfig('out'), data)",
            "model is a Linear, whose weights exist only",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_of(text)
    assert said in str(caught.value)


def test_a_script_may_try_an_argument_and_a_name() -> None:
    """As scripts for several versions of TRL do."""
    loaded = run_of(
        "try:\n    from trl import PPOTrainer\nexcept ImportError:\n    pass\n"
        "try:\n    args = GRPOConfig('out', zzz=1)\nexcept TypeError:\n    args = GRPOConfig('out', beta=0.5)\n"
        "GRPOTrainer('model', right, args, data).train()"
    )
    assert value_of(loaded, "algorithm.kl_loss.coef") == 0.5


def test_a_script_ends_at_its_first_train_if_it_is_read() -> None:
    loaded = run_of(
        "try:\n    " + GRPO.format("") + "\nexcept Exception:\n    pass\nopen('after', 'w').close()"
    )
    assert not Path("after").exists()
    assert any("run up to its first train(); what follows was not looked at" in note for note in loaded.notes)


def test_files_that_are_no_scripts_of_trl() -> None:
    for text, said in (
        ("x = 1", "imports neither trl nor unsloth"),
        ("def (", "this is not a Python script"),
    ):
        with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
            run_of(text, head="")


UNSLOTH = """
from unsloth import FastLanguageModel, PatchFastRL, is_bfloat16_supported
PatchFastRL("GRPO", FastLanguageModel)
model, tokenizer = FastLanguageModel.from_pretrained(model_name="saved", max_seq_length=512{options})
model = FastLanguageModel.get_peft_model(model, r=8, lora_alpha=8, random_state=3407)
"""
CELLS = (
    "from trl import GRPOConfig, GRPOTrainer\n"
    "args = GRPOConfig(output_dir='outputs', bf16=is_bfloat16_supported(), fp16=not is_bfloat16_supported(),\n"
    "    per_device_train_batch_size=8, optim='paged_adamw_8bit', max_prompt_length=256, max_completion_length=200)\n"
    "GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=[right], args=args, train_dataset=data).train()"
)


def test_cells_of_an_unsloth_notebook() -> None:
    saved_model("saved")
    loaded = run_of(UNSLOTH.format(options=", load_in_4bit=False, fast_inference=True") + CELLS)
    expected = {
        "model.path": "saved",
        "model.lora.rank": 8,
        "model.lora.alpha": 8,
        "trainer.optimizer.bits": 8,
    }
    expected |= {"data.max_prompt_tokens": 256, "data.max_response_tokens": 200, "folder": "outputs"}
    assert {key: value_of(loaded, key) for key in expected} == expected
    assert len(value_of(loaded, "model.lora.targets")) == 7
    assert any("fast_inference is unsloth's, and has no effect" in note for note in loaded.notes)
    by_default = run_of(UNSLOTH.format(options="") + CELLS)
    assert value_of(by_default, "model.quantization") == QuantizationConfig(bits=4, type="nf4", double=True)
    with pytest.raises(ConfigError, match="zzz=1 is an option of unsloth that Strop does not read"):
        run_of(UNSLOTH.format(options=", load_in_4bit=False, zzz=1") + CELLS)


def notebook_of(*cells: str | list[str], language: str = "python") -> Path:
    """A notebook of code cells, after one of text."""
    written = [{"cell_type": "code", "source": source, "outputs": [], "metadata": {}} for source in cells]
    content = {
        "nbformat": 4,
        "metadata": {"kernelspec": {"language": language}},
        "cells": [{"cell_type": "markdown", "source": "!text"}, *written],
    }
    Path("train.ipynb").write_text(json.dumps(content))
    return Path("train.ipynb")


def test_cells_of_a_notebook_are_one_program() -> None:
    path = notebook_of(
        [
            "%%capture\n",
            "!pip install trl \\\n",
            "    unsloth\n",
            "import os\n",
            "if True:\n",
            "    %pip list\n",
        ],
        HEAD,
        'def own(completions, **kwargs):\n    text = """\n!keep\n"""\n    return [len(text)]',
        "display(os.sep)\nargs = GRPOConfig('out', num_generations=4)\n"
        "GRPOTrainer('model', own, args, data).train()",
        "raise ValueError('not reached')",
    )
    loaded = read_any(path).loaded
    assert value_of(loaded, "algorithm.rollouts_per_task") == 4
    assert str(loaded.sources["algorithm.rollouts_per_task"]).startswith("train.ipynb, cell 5:2")
    assert loaded.rewards[0].function([]) == [len("\n!keep\n")]
    skipped = [note.partition(" is skipped")[0] for note in loaded.notes if " is skipped" in note]
    assert skipped == [
        "train.ipynb, cell 2:2: !pip install trl \\",
        "train.ipynb, cell 2:6: %pip list",
    ]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("import trl\n!wget x", "train.ipynb, cell 2:2: !wget x is a command of IPython or the shell"),
        (
            "%%bash\nimport trl",
            "cell 2:1: %%bash is a command of IPython or the shell, .*; write the cell in Python",
        ),
        ("import trl\nx = !ls", "this is not a Python script: .*train.ipynb, cell 2, line 2"),
        ("import trl\n\n1 / 0", "train.ipynb, cell 2:3: the script raised ZeroDivisionError"),
        ("x = 1", "imports neither trl nor unsloth"),
        ("import trl\ntrl.PPOTrainer", "train.ipynb, cell 2:2: trl.PPOTrainer is not supported"),
    ],
)
def test_cells_that_are_refused(cell: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_any(notebook_of(cell))


def test_files_that_are_no_notebooks_of_python() -> None:
    with pytest.raises(ConfigError, match="the cells of this notebook are R; Strop runs Python"):
        read_any(notebook_of("x", language="R"))
    for text in ("[]", "{", '{"worksheets": []}'):
        Path("old.ipynb").write_text(text)
        with pytest.raises(ConfigError, match="is not a Jupyter notebook"):
            read_any(Path("old.ipynb"))


def test_rewards_of_trl_have_its_values() -> None:
    from strop.compat.trl import rewards

    def said(*texts: str) -> list[list[dict[str, str]]]:
        return [[{"role": "assistant", "content": text}] for text in texts]

    gold = [r"\frac{1}{3}"] * 3
    right, wrong = r"My answer is \boxed{\frac{1}{3}}", r"My answer is \boxed{\frac{1}{2}}"
    assert rewards.accuracy_reward(said(right, wrong, right), [*gold[:2], ""]) == [1.0, 0.0, None]
    thought = [f"<think> {text} </think> {text}" for text in (right, wrong)]
    assert rewards.reasoning_accuracy_reward(said(*thought, right), gold) == [1.0, 0.0, 0.0]
    texts = ("<think>\na\n</think>\nb", "<think>a", "a<think>b</think>", "<think><think>a</think>")
    assert rewards.think_format_reward(said(*texts)) == [1.0, 0.0, 0.0, 0.0]
    soft = rewards.get_soft_overlong_punishment(100, 20)
    assert soft([[1] * 80, [1] * 90, [1] * 100, [1] * 101]) == [0.0, -0.5, -1.0, -1.0]
    assert rewards.get_repetition_penalty_reward(2, -1.0)([[1, 2, 3, 4], [5] * 5, [1]]) == [0.0, -0.75, 0.0]
    cosine = rewards.get_cosine_scaled_reward(max_len=100)
    assert cosine(said(right, wrong), gold[:2], [[1] * 50] * 2) == pytest.approx([0.75, -0.75])
    assert cosine(said(right, wrong), gold[:2], [[], [1] * 200]) == pytest.approx([1.0, -0.5])


TRAINED = """
import os
from transformers import TrainerCallback

def own(completions, **kwargs):
    return [1.0]

class Say(TrainerCallback):
    def on_train_begin(self, args, state, control, **kwargs):
        print("begins", args.learning_rate)
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step > 3
    def on_log(self, args, state, control, logs, **kwargs):
        print("logs", state.global_step, logs["reward"], logs["learning_rate"])
    def on_train_end(self, args, state, control, **kwargs):
        print("ends", state.global_step)

test = data.select(range(2))
for folder in ("first", "second"):
    trainer = GRPOTrainer("model", own, GRPOConfig(folder, num_generations=4), data, test, callbacks=[Say])
    print("before", trainer.evaluate())
    output = trainer.train()
    print("output", output.global_step, output.training_loss, [row["step"] for row in trainer.state.log_history])
    print("after", trainer.evaluate())
    trainer.save_model("saved-" + folder)
    trainer.model.save_pretrained("again-" + folder)
    trainer.log_metrics("train", output.metrics)
    trainer.save_metrics("train", output.metrics)
    trainer.end()
trainer.push_to_hub()
"""


def test_a_script_goes_on_after_training(capsys: pytest.CaptureFixture[str]) -> None:
    """With a run of two steps of two updates each in place of Strop's."""
    started: list[LoadedRun] = []
    stops: list[bool] = []
    rows = [
        {"step": step, "updates": 2, "reward/mean": step / 2, "lr": 0.1, "loss": 0.5 * step}
        for step in (1, 2)
    ]

    class Control:
        def stop(self) -> None:
            stops.append(True)

    def start(job: Job) -> RunResult:
        started.append(job.loaded)
        (callback,) = job.loaded.callbacks
        callback.on_start(Control())
        for row in rows:
            callback.on_step(row)
        folder = Path(job.loaded.run.folder_path)
        (folder / "model").mkdir(parents=True)
        (folder / "model" / "config.json").write_text("{}")
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return RunResult(folder, folder / "model", 2, 2, rows[-1])

    def evaluate(job: Job, folder: Path | None) -> dict[str, float]:
        assert [taskset.name for taskset in job.loaded.run.data.eval] == ["eval"]
        return {"eval/eval/reward": 0.25 if folder is None else 0.75}

    Path("train.py").write_text(HEAD + TRAINED)
    with pytest.raises(ConfigError, match="strop export second --to FOLDER --push-to-hub ORG/NAME"):
        run_trl_script(
            Path("train.py"),
            (),
            here=False,
            changes=["trainer.optimizer.lr=0.5"],
            key_owner=no_key_owner,
            start=start,
            evaluate=evaluate,
        )
    assert [loaded.run.folder for loaded in started] == ["first", "second"] and stops == [True, True]
    assert all(loaded.run.trainer.optimizer.lr == 0.5 and not loaded.run.data.eval for loaded in started)
    assert [part.name for part in started[0].rewards] == ["own"]
    once = [
        "before {'eval_reward': 0.25}",
        "begins 1e-06",
        "logs 2 0.5 0.1",
        "logs 4 1.0 0.1",
        "ends 4",
        "output 4 0.75 [1, 2]",
        "after {'eval_reward': 0.75}",
    ]
    printed = capsys.readouterr().out.splitlines()
    assert [
        line for line in printed if line.split()[0] in ("before", "begins", "logs", "ends", "output", "after")
    ] == [*once, *once]
    assert all(Path(f"{name}-second", "config.json").is_file() for name in ("saved", "again"))
    assert json.loads(Path("first/train_results.json").read_text())["train_loss"] == 0.75


def test_exceptions_of_a_run_are_not_those_of_the_script() -> None:
    def fail(job: Job) -> Any:
        raise ZeroDivisionError("in the run")

    Path("train.py").write_text(HEAD + GRPO.format(""))
    with pytest.raises(ZeroDivisionError, match="in the run"):
        run_trl_script(
            Path("train.py"),
            (),
            here=False,
            changes=(),
            key_owner=no_key_owner,
            start=fail,
            evaluate=lambda job, folder: {},
        )


def test_functions_of_a_script_are_not_expressible_in_a_file() -> None:
    job = job_of("def own(completions, **kwargs): ...\n" + GRPO.format("").replace("right", "[right, own]"))
    (found,) = convert(job, "strop").unsupported
    assert (found.field, found.value) == ("reward.functions", "own") and found.affects_training
    assert "rewards.py" in found.reason
