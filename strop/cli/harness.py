"""`strop evaluate RUN --with lm-eval:TASKS`: an evaluation harness on a model that is served while it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from strop.errors import ConfigError, MissingExtraError, StropError

_CONCURRENT = 8
"""Requests that the harness sends at once; the engine batches them."""


def evaluate_with(harness: str, path: Path, arguments: Sequence[str]) -> None:
    """Run lm-eval on the trained model of a run folder, or on a model folder; `arguments` are handed on to it.

    Its results go to `lm-eval` in a run folder, or in this directory, unless `arguments` name an `--output_path`.
    Raises ConfigError for another harness, MissingExtraError where it is not installed, and StropError if it fails.
    """
    from strop.config.load.loader import is_run_folder
    from strop.models.loading import load_config, load_tokenizer
    from strop.run.entry.chat import find_chat_source
    from strop.run.entry.serve import ServiceOptions, open_service

    name, _, tasks = harness.partition(":")
    if name != "lm-eval" or not tasks:
        raise ConfigError(f"--with {harness}: write lm-eval:TASKS, such as --with lm-eval:gsm8k,arc_easy")
    if find_spec("lm_eval") is None:
        raise MissingExtraError("--with lm-eval needs the package lm-eval: pip install 'lm-eval[api]'")
    source = find_chat_source(path, before=False)
    output = path / "lm-eval" if is_run_folder(path) else Path("lm-eval")
    served = path.resolve().stem
    with (
        TemporaryDirectory(prefix="strop-evaluate-") as tokenizer,
        open_service(source, ServiceOptions(served, {}, seed=0)) as access,
    ):
        load_tokenizer(source.model).save_pretrained(tokenizer)
        model = {
            "model": served,
            "base_url": f"{access.url}/completions",
            "tokenizer": tokenizer,
            "max_length": load_config(source.model).get_text_config().max_position_embeddings,
            "num_concurrent": _CONCURRENT,
        }
        command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", tasks]
        command += ["--model_args", ",".join(f"{key}={value}" for key, value in model.items())]
        command += ["--output_path", str(output), *arguments]  # the last one of an option counts
        status = subprocess.run(command, env={**os.environ, "OPENAI_API_KEY": access.api_key}).returncode
    if status:
        raise StropError(f"lm-eval ended with status {status}; its output above says why.")
