"""The parts of a Tinker service, for `strop serve --tinker`."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from strop.compat.tinker.adapter_engine import AdapterEngines
from strop.compat.tinker.routes import TinkerRoutes
from strop.compat.tinker.sampling import AdapterSamplers
from strop.compat.tinker.store import ServiceFiles
from strop.compat.tinker.training import TrainedAdapter
from strop.compat.tinker.training_runs import Trainer
from strop.errors import ConfigError
from strop.run.entry.serve import ServedBase


@contextmanager
def open_tinker(base: ServedBase, *, folder: Path, name: str, ranks: int = 1) -> Iterator[TinkerRoutes]:
    """Routes that sample from a model and train adapters of it, on a number of ranks, with all files in a folder.

    `name` is the model's name in requests. Raises ConfigError while another service uses the folder, and PlacementError
    where this machine has fewer GPUs than ranks.
    """
    text = base.weights.config.get_text_config()
    context_tokens, vocab_size = int(text.max_position_embeddings), int(text.vocab_size)
    with ExitStack() as opened:
        files = ServiceFiles(folder)
        lock = opened.enter_context((folder / ".lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"--tinker {folder}: another service uses this folder; write another") from None
        samplers = AdapterSamplers(base.weights, base.tokenizer, context_tokens)
        opened.callback(samplers.close)
        engines = AdapterEngines(ranks)
        opened.callback(engines.close)
        trainer = Trainer(
            files, lambda info: TrainedAdapter(base.model, info.lora, context_tokens, vocab_size, engines)
        )
        opened.callback(trainer.close)
        # Clients load the tokenizer of a name such as Qwen/Qwen3-0.6B by it; for another name from files here, because
        # the model may be one that transformers does not load by its path alone, such as a GGUF file.
        tokenizer_id = None if "/" in name else str((folder / "tokenizer").resolve())
        if tokenizer_id is not None:
            base.tokenizer.save_pretrained(tokenizer_id)
        yield TinkerRoutes(name, tokenizer_id, context_tokens, files, samplers, trainer)
