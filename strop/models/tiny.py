"""Small random models with a newly trained tokenizer, for examples, tests and benchmarks.

`python -m strop.models.tiny --help` makes one from the command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FAMILIES = ("qwen2", "qwen3", "llama", "mistral", "gemma", "phi")
"""Families that the command line offers."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


def make_tokenizer(folder: Path, corpus: Iterable[str], vocab_size: int) -> int:
    """Train and save a byte-level BPE tokenizer; returns its size.

    It can encode any text, and every digit is a token of its own.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>", chat_template=CHAT_TEMPLATE
    )
    fast.save_pretrained(folder)
    return len(fast)


def make_model(
    folder: Path,
    corpus: Iterable[str],
    *,
    family: str = "qwen2",
    vocab_size: int = 512,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    max_tokens: int = 2048,
    tied: bool = True,
    seed: int = 0,
    **options: Any,
) -> Path:
    """Write a Hugging Face folder with random float32 weights and a tokenizer; return the folder.

    `family` is a `model_type` of transformers; `options` are further values of its config.json.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from strop.models.library_settings import silence_transformers
    from strop.models.loading import without_deepspeed

    folder.mkdir(parents=True, exist_ok=True)
    size = make_tokenizer(folder, corpus, vocab_size)
    values = decoder_values(size, hidden_size, layers, heads, kv_heads, max_tokens)
    values["tie_word_embeddings"] = tied
    config = AutoConfig.for_model(family, **values | options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
    with silence_transformers(), without_deepspeed():
        model.save_pretrained(folder)
    return folder


def decoder_values(
    vocab_size: int, hidden_size: int, layers: int, heads: int, kv_heads: int, max_tokens: int
) -> dict[str, Any]:
    """Values of a decoder's config.json, with the special tokens of `make_tokenizer`."""
    return {
        "vocab_size": (vocab_size + 7) // 8 * 8,
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 8 // 3 // 8 * 8,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden_size // heads,
        "max_position_embeddings": max_tokens,
        "bos_token_id": None,
        "eos_token_id": SPECIAL_TOKENS.index("<|end|>"),
        "pad_token_id": SPECIAL_TOKENS.index("<|pad|>"),
    }


def read_corpus(files: Iterable[Path]) -> Iterator[str]:
    """Lines of text files, to train a tokenizer on."""
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from lines


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make a small random model with a tokenizer of its own.")
    parser.add_argument("folder", type=Path, help="output folder")
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="text files for the tokenizer")
    parser.add_argument("--family", default="qwen2", choices=FAMILIES)
    for name, default in (
        ("vocab-size", 2048),
        ("hidden-size", 384),
        ("layers", 6),
        ("heads", 6),
        ("kv-heads", 2),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = vars(parser.parse_args())
    hidden_size, heads, kv_heads = args["hidden_size"], args["heads"], args["kv_heads"]
    if hidden_size < 2 * heads or hidden_size // heads % 2 or heads % kv_heads:
        parser.error(
            f"--hidden-size {hidden_size} gives each of {heads} heads (--heads) {hidden_size // heads} values, "
            f"which must be an even number, and --heads must be a multiple of --kv-heads {kv_heads}; "
            f"for instance --hidden-size {max(1, hidden_size // 8) * 8} --heads 4 --kv-heads 2"
        )
    folder = make_model(args.pop("folder"), read_corpus(args.pop("corpus")), **args)
    print(f"wrote a random {args['family']} model to {folder}")


if __name__ == "__main__":
    main()
