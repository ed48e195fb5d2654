"""verl's `data` section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.config.dialects.row import (
    TEXT,
    TEXTS,
    UNSET,
    Read,
    Row,
    beyond_the_page,
    mapped,
    no_effect,
    one_of,
    or_null,
    refused,
    written_by,
)
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.verl import switches
from strop.config.dialects.verl.images import no_images
from strop.config.schema import Run
from strop.config.schema.data import EvalTaskset, OwnDataset

_SAMPLER_ROOM = 131072
"""`rollout.engine.kv_cache_tokens` where the sequences are not longer than that."""
_IMAGES = (
    "images are not trained on yet, and data.train_files has that column; where the tasks mean the same "
    "without it, take it out of the files"
)


def write_tasksets(run: Run) -> Mapping[str, Any]:
    """The files, and the columns of the training tasks, which those that are measured share."""
    train = run.data.train
    return {
        "data.train_files": train.path,
        "data.prompt_key": train.prompt,
        "data.reward_fn_key": train.source,
        "data.val_files": None,
        **write_custom_class(train.dataset),
        **(write_validation(run.data.eval[0]) if run.data.eval else {}),
    }


def custom_class(theirs: Theirs) -> Mapping[str, Any] | None:
    """What reads the files; verl gives it its whole `data` section."""
    path, name = theirs["data.custom_cls.path"], theirs["data.custom_cls.name"]
    if path is None:
        return None
    if name is None:
        raise theirs.fault(
            "data.custom_cls.path",
            f"data.custom_cls.path is {path}; write data.custom_cls.name too, the class in it.",
        )
    return {"name": f"{path}:{name}", "config": theirs["data"]}


def write_custom_class(own: OwnDataset | None) -> Mapping[str, Any]:
    """The file and the class in it."""
    path, _, name = own.name.rpartition(":") if own else ("", "", "")
    return {"data.custom_cls.path": path, "data.custom_cls.name": name} if path else {}


def write_validation(measured: EvalTaskset) -> Mapping[str, Any]:
    """Its files, and how its answers are drawn."""
    at, sampling = "actor_rollout_ref.rollout.val_kwargs", measured.sampling
    values = {"data.val_files": measured.path, f"{at}.n": measured.rollouts_per_task}
    if sampling.temperature == 0:
        return {**values, f"{at}.do_sample": False, f"{at}.temperature": 0}
    return {
        **values,
        f"{at}.do_sample": True,
        f"{at}.temperature": sampling.temperature,
        f"{at}.top_p": sampling.top_p,
        f"{at}.top_k": sampling.top_k or -1,
    }


@written_by(write_tasksets)
def tasksets(theirs: Theirs) -> Mapping[str, Any]:
    """What is trained on and what is measured: verl's rows hold the answer in `reward_model.ground_truth`.

    Images that the column's default finds are refused too: without them the tasks are others.
    """
    column = theirs["data.image_key"]
    if not no_images(theirs, column):
        raise theirs.fault("data.image_key", f"data.image_key cannot be {column!r} here: {_IMAGES}.")
    columns = {
        "prompt": theirs["data.prompt_key"],
        "answer": "reward_model.ground_truth",
        "source": theirs["data.reward_fn_key"],
    }
    settings: dict[str, Any] = {f"data.train.{name}": column for name, column in columns.items()}
    settings["data.train.path"] = theirs["data.train_files"]
    validation = {"name": "val", "path": theirs["data.val_files"], **columns}
    validation["rollouts_per_task"] = theirs["actor_rollout_ref.rollout.val_kwargs.n"]
    validation["sampling"] = validation_sampling(theirs)
    if (own := custom_class(theirs)) is not None:
        settings["data.train.dataset"] = validation["dataset"] = own
    settings["data.eval"] = [] if theirs["data.val_files"] is None else [validation]
    return settings


def validation_sampling(theirs: Theirs) -> dict[str, Any]:
    """`do_sample: False` is greedy, whatever the temperature says."""
    shared = {"ignore_eos": theirs["actor_rollout_ref.rollout.ignore_eos"]}
    temperature = theirs["actor_rollout_ref.rollout.val_kwargs.temperature"]
    wrote = theirs.wrote("actor_rollout_ref.rollout.val_kwargs.do_sample")
    if not theirs["actor_rollout_ref.rollout.val_kwargs.do_sample"] or (temperature == 0 and not wrote):
        return {"temperature": 0.0, **shared}
    if temperature == 0:
        raise theirs.fault(
            "actor_rollout_ref.rollout.val_kwargs.do_sample",
            "val_kwargs.do_sample is True, but val_kwargs.temperature is 0, which is greedy; "
            "write a val_kwargs.temperature above 0, or do_sample=False.",
        )
    return {
        "temperature": temperature,
        "top_p": theirs["actor_rollout_ref.rollout.val_kwargs.top_p"],
        "top_k": all_tokens(theirs["actor_rollout_ref.rollout.val_kwargs.top_k"]),
        **shared,
    }


def all_tokens(top_k: int) -> int:
    """-1 (vLLM's) and 0 (Hugging Face's) both keep all tokens."""
    return 0 if top_k == -1 else top_k


def write_lengths(run: Run) -> Mapping[str, Any]:
    """The two limits."""
    return {
        "data.max_prompt_length": run.data.max_prompt_tokens,
        "data.max_response_length": run.data.max_response_tokens,
    }


@written_by(write_lengths)
def lengths(theirs: Theirs) -> Mapping[str, Any]:
    """The longest prompt and answer; the native sampler's cache holds at least one of both."""
    prompt, response = theirs["data.max_prompt_length"], theirs["data.max_response_length"]
    settings = {"data.max_prompt_tokens": prompt, "data.max_response_tokens": response}
    if prompt + response > _SAMPLER_ROOM:
        settings["rollout.engine.kv_cache_tokens"] = prompt + response
    return settings


def write_overlong(run: Run) -> Mapping[str, Any]:
    """Left out, or else cut."""
    filtered = run.data.overlong == "filter"
    cut = {} if filtered else {"data.truncation": run.data.overlong}
    return {"data.filter_overlong_prompts": filtered, **cut}


@written_by(write_overlong)
def overlong(theirs: Theirs) -> Mapping[str, Any]:
    """Filtering comes before truncation: nothing is left to cut."""
    filtered = theirs["data.filter_overlong_prompts"]
    return {"data.overlong": "filter" if filtered else theirs["data.truncation"]}


def write_batches(run: Run) -> Mapping[str, Any]:
    """An update is of the whole step where nothing is said."""
    step = run.trainer.tasks_per_step
    return {
        "data.train_batch_size": step,
        "actor_rollout_ref.actor.ppo_mini_batch_size": run.trainer.tasks_per_update or step,
    }


@written_by(write_batches)
def batches(theirs: Theirs) -> Mapping[str, Any]:
    """Both sizes count prompts; each has `rollout.n` answers."""
    step = theirs["data.train_batch_size"]
    update = dividing(theirs, "actor_rollout_ref.actor.ppo_mini_batch_size")
    return {"trainer.tasks_per_step": step, "trainer.tasks_per_update": update}


def dividing(theirs: Theirs, key: str) -> int | None:
    """A mini-batch, of which a step has a whole number; None is the step itself. Raises ConfigError with
    the nearest that fit."""
    if theirs[key] is None:
        return None
    step, update = theirs["data.train_batch_size"], int(theirs[key])
    if step > 0 and update > 0 and step % update:
        fits = sorted((n for n in range(1, step + 1) if step % n == 0), key=lambda n: abs(n - update))
        near = " and ".join(str(size) for size in sorted(fits[:2]))
        raise theirs.fault(
            key,
            f"data.train_batch_size ({step}) is not a multiple of {key} ({update}); the nearest that divide "
            f"it are {near}.",
        )
    return update


def write_remote_code(run: Run) -> Mapping[str, Any]:
    """The model's own key; what is not written does not count."""
    return {"actor_rollout_ref.model.trust_remote_code": run.model.trust_remote_code}


@written_by(write_remote_code)
def remote_code(theirs: Theirs) -> Mapping[str, Any]:
    """The page's default for the data is True; running foreign code counts only where someone wrote it."""
    keys = ("data.trust_remote_code", "actor_rollout_ref.model.trust_remote_code")
    return {"model.trust_remote_code": any(theirs.wrote(key) and theirs[key] for key in keys)}


def custom_class_rows(read: Read, note: str) -> tuple[Row, ...]:
    """The three keys of a dataset class of the user's own; verl's page has the first two for PPO."""
    name = ("data.train.dataset.name", "data.eval.0.dataset.name")
    config = ("data.train.dataset.config", "data.eval.0.dataset.config")
    return (
        mapped(
            "data.custom_cls.path",
            None,
            "data.train.dataset",
            *name,
            read=read,
            kind=or_null(TEXT),
            note=note,
        ),
        mapped(
            "data.custom_cls.name",
            None,
            "data.train.dataset",
            *name,
            read=read,
            kind=or_null(TEXT),
            off=switches.custom_class,
        ),
        mapped(
            "data.custom_cls.*",
            UNSET,
            *config,
            read=read,
            off=switches.custom_class,
            note="for the class itself, which is given the whole section as config",
        ),
    )


_CUSTOM_CLASS = custom_class_rows(tasksets, "a torch Dataset that gives messages, or a prompt's tokens")
ROWS = (
    mapped("data.tokenizer", None, "model.tokenizer", kind=or_null(TEXT)),
    mapped(
        "data.train_files", "~/data/rlhf/gsm8k/train.parquet", "data.train.path", read=tasksets, kind=TEXTS
    ),
    mapped(
        "data.val_files",
        "~/data/rlhf/gsm8k/test.parquet",
        "data.eval.0.path",
        read=tasksets,
        kind=or_null(TEXTS),
        note="null measures nothing",
    ),
    mapped("data.prompt_key", "prompt", "data.train.prompt", "data.eval.0.prompt", read=tasksets),
    mapped("data.max_prompt_length", 512, "data.max_prompt_tokens", read=lengths),
    mapped("data.max_response_length", 512, "data.max_response_tokens", read=lengths),
    mapped("data.train_batch_size", 1024, "trainer.tasks_per_step", read=batches, note="counts prompts"),
    no_effect("data.return_raw_input_ids", False, "a reward model of another tokenizer is shown the text"),
    no_effect("data.return_raw_chat", False, "every task keeps its messages"),
    no_effect("data.return_full_prompt", False, "every rollout is recorded with its whole prompt"),
    mapped("data.shuffle", True, "data.shuffle"),
    mapped("data.filter_overlong_prompts", False, "data.overlong", read=overlong),
    mapped("data.filter_overlong_prompts_workers", 1, "data.overlong_workers"),
    mapped(
        "data.truncation",
        "error",
        "data.overlong",
        read=overlong,
        kind=one_of("error", "left", "right", "middle"),
        off=switches.keep_overlong,
    ),
    refused(
        "data.image_key",
        "images",
        _IMAGES,
        can=no_images,
    ),
    mapped(
        "data.trust_remote_code",
        True,
        "model.trust_remote_code",
        read=remote_code,
        note="counts only where someone wrote it",
    ),
    *_CUSTOM_CLASS[:2],
    *beyond_the_page(
        *_CUSTOM_CLASS[2:],
        mapped("data.reward_fn_key", "data_source", "data.train.source", "data.eval.0.source", read=tasksets),
        mapped("data.seed", 1, "seed", note="fixes every draw, not only the data's order"),
    ),
)
