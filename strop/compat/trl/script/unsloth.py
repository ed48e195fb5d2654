"""Stand-ins for unsloth's functions: they record the model and the adapter, and load the tokenizer only."""

from __future__ import annotations

from typing import Any

from strop.compat.trl.script.models import RecordedModel
from strop.compat.trl.script.session import current_session

_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""unsloth's default target modules."""
_PLACEMENT = (
    *(
        "fast_inference",
        "gpu_memory_utilization",
        "max_lora_rank",
        "float8_kv_cache",
        "device_map",
        "rope_scaling",
    ),
    *(
        "use_gradient_checkpointing",
        "random_state",
        "fix_tokenizer",
        "resize_model_vocab",
        "use_exact_model_name",
    ),
    *("disable_log_stats", "unsloth_vllm_standby", "full_finetuning", "offload_embedding"),
)
"""Arguments of `from_pretrained` and `get_peft_model` that change no number of Strop's training."""


class FastLanguageModel:
    """unsloth's FastLanguageModel, FastVisionModel and FastModel."""

    @staticmethod
    def from_pretrained(
        model_name: str = "unsloth/Llama-3.2-1B-Instruct",
        max_seq_length: int | None = 2048,
        dtype: Any = None,
        load_in_4bit: bool = True,
        load_in_8bit: bool = False,
        load_in_16bit: bool = False,
        token: str | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        **options: Any,
    ) -> tuple[RecordedModel, Any]:
        """The model, recorded, and its tokenizer. Raises ConfigError for quantized weights, which are the default."""
        session = current_session()
        if (load_in_4bit and not load_in_16bit) or load_in_8bit:
            name = "load_in_8bit" if load_in_8bit else "load_in_4bit"
            default = ", unsloth's default," if name == "load_in_4bit" else ""
            raise session.error(
                f"{name}=True{default} trains on quantized weights, and Strop trains on weights that are not "
                "quantized; "
                f"write {name}=False."
            )
        if model_name.endswith(("-bnb-4bit", "-unsloth-bnb-4bit")):
            raise session.error(
                f"{model_name} has quantized weights; name the model without them: "
                f"{model_name.removesuffix('-bnb-4bit').removesuffix('-unsloth')}."
            )
        _note_placement(options)
        given = {
            "dtype": dtype,
            "trust_remote_code": trust_remote_code or None,
            "revision": revision,
            "token": token,
        }
        model = RecordedModel(model_name, {name: value for name, value in given.items() if value is not None})
        model.max_length = max_seq_length
        from transformers import AutoTokenizer

        return model, AutoTokenizer.from_pretrained(model_name, trust_remote_code=trust_remote_code)

    @staticmethod
    def get_peft_model(
        model: RecordedModel,
        r: int = 16,
        target_modules: Any = None,
        lora_alpha: int = 16,
        lora_dropout: float = 0.0,
        bias: Any = "none",
        use_rslora: bool = False,
        modules_to_save: Any = None,
        init_lora_weights: Any = True,
        loftq_config: Any = None,
        **options: Any,
    ) -> RecordedModel:
        """The model with the adapter, recorded."""
        from peft import LoraConfig

        session = current_session()
        if loftq_config:
            raise session.error("loftq_config: Strop trains on weights that are not quantized; leave it out.")
        for name in [name for name in options if name.startswith("finetune_")]:
            raise session.error(f"{name} is not read; write target_modules with the names of the modules.")
        _note_placement(options)
        model.adapter = LoraConfig(
            r=r,
            target_modules=target_modules or _MODULES,
            lora_alpha=lora_alpha,
            lora_dropout=lora_dropout,
            bias=bias,
            use_rslora=use_rslora,
            modules_to_save=modules_to_save,
            init_lora_weights=init_lora_weights,
        )
        return model

    @staticmethod
    def for_training(model: Any, *arguments: Any, **options: Any) -> Any:
        """The model itself."""
        return model

    @staticmethod
    def for_inference(model: Any, *arguments: Any, **options: Any) -> Any:
        """The model itself."""
        return model


def _note_placement(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name not in _PLACEMENT:
            raise current_session().error(
                f"{name}={value!r} is an option of unsloth that Strop does not read; leave it out."
            )
        if value is not None:
            current_session().note(f"{name} is unsloth's, and has no effect in Strop.")


def patch_fast_rl(*arguments: Any, **options: Any) -> None:
    """Nothing: the trainers are Strop's."""


def is_bfloat16_supported(including_emulation: bool = False) -> bool:
    """True: Strop computes in bfloat16 on every machine."""
    return True
