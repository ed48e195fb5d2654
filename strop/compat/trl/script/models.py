"""Models, adapters and tokenizers of a script: what `from_pretrained`, or unsloth's, was called with, without loading
weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from strop.compat.trl.script.configurations import plain
from strop.compat.trl.script.session import current_session
from strop.config.load.config_tree import Source
from strop.config.peft_adapter import new_adapter_fault

_WITHOUT_EFFECT = (
    *("device_map", "low_cpu_mem_usage", "use_cache", "cache_dir", "local_files_only", "token"),
    *("attn_implementation", "use_safetensors", "offload_folder", "offload_state_dict", "max_memory"),
    *("tp_plan", "use_kernels", "force_download", "proxies"),
)
"""Arguments of `from_pretrained` that only decide how the weights are found and placed. `attn_implementation` has a
key of its own."""
_DTYPES = {"torch_dtype": "dtype"}
_QUANTIZED = ("load_in_4bit", "load_in_8bit")
_METHODS_WITHOUT_EFFECT = (
    *("to", "cuda", "cpu", "train", "eval", "gradient_checkpointing_enable"),
    *("gradient_checkpointing_disable", "enable_input_require_grads", "requires_grad_"),
    *("print_trainable_parameters", "tie_weights"),
)
"""Methods of a model that return nothing a script computes with, and that change no number of the training."""
_LORA_KEYS = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}
"""Fields of PEFT's LoraConfig, with TRL's options for them."""


class RecordedModel:
    """Stand-in for a model that `from_pretrained` loads: its name and its arguments."""

    def __init__(self, name: str, options: Mapping[str, Any], *, is_loaded: bool = True) -> None:
        """`is_loaded` is False for a name that a trainer loads, whose dtype is float32 by default."""
        self.name_or_path = name
        self.options = dict(options)
        self.adapter: Any = None
        self.max_length: int | None = None
        """Length that unsloth's `from_pretrained` limits sequences to."""
        self._is_loaded = is_loaded
        self._source = current_session().source()

    @property
    def config(self) -> Any:
        """The model's configuration, of which a script may read the values."""
        if self.__dict__.get("_config") is None:
            from transformers import AutoConfig

            trusted = bool(self.options.get("trust_remote_code", False))
            self._config = AutoConfig.from_pretrained(self.name_or_path, trust_remote_code=trusted)
            self._config_values = self._config.to_dict()
        return self._config

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        import torch

        return getattr(torch, self._dtype())

    @property
    def device(self) -> Any:
        """The device of the weights."""
        import torch

        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS_WITHOUT_EFFECT:
            return lambda *arguments, **options: self
        if name.startswith("__"):
            raise AttributeError(name)
        raise current_session().error(
            f"model.{name} is not available, because Strop loads the weights of {self.name_or_path} itself, when "
            "training starts. Change the model in a script of its own, save it with save_pretrained, and name the "
            "folder."
        )

    def trl_keys(self) -> Iterator[tuple[str, Any, Source]]:
        """TRL's keys for the model and its adapter. Raises ConfigError for an argument that has none."""
        session = current_session()
        yield "model_name_or_path", self.name_or_path, self._source
        options = {_DTYPES.get(name, name): value for name, value in self.options.items()}
        yield from self._precision(options.pop("dtype", None))
        for name, value in options.items():
            if value is None:
                continue
            if name == "quantization_config":
                yield from quantization_keys(value, self._source)
            elif name == "revision":
                yield "model_revision", value, self._source
            elif name in _QUANTIZED:
                if value:
                    yield from quantization_keys({name: True}, self._source)
            elif name in ("trust_remote_code", "attn_implementation"):
                yield name, plain(value, name), self._source
            elif name in _WITHOUT_EFFECT:
                session.note(f"{name}: accepted without effect: Strop finds and places the weights itself.")
            else:
                raise session.error(
                    f"from_pretrained has {name}={value!r}, which Strop does not read; save the model that it gives "
                    "with save_pretrained, and name the folder."
                )
        self._require_unchanged_config()
        if self.adapter is not None:
            yield from lora_keys(self.adapter, self)

    def _precision(self, dtype: Any) -> Iterator[tuple[str, Any, Source]]:
        if self._is_loaded or dtype is not None:
            yield "dtype", self._dtype(), self._source

    def _dtype(self) -> str:
        """The dtype that is asked for, or that of the checkpoint."""
        written = self.options.get("dtype", self.options.get("torch_dtype"))
        if written is None and not self._is_loaded:
            return "float32"
        if written in (None, "auto"):
            found = getattr(self.config, "dtype", None) or "float32"
            return str(found).removeprefix("torch.")
        return str(written).removeprefix("torch.")

    def _require_unchanged_config(self) -> None:
        """Raise ConfigError for a changed value of the configuration that a forward pass may read."""
        before = self.__dict__.get("_config_values")
        if before is None:
            return
        after = self._config.to_dict()
        changed = [key for key in after if after[key] != before.get(key)]
        if others := [key for key in changed if key not in ("use_cache", "pad_token_id", "pretraining_tp")]:
            raise current_session().error(
                f"model.config.{others[0]} was changed to {after[others[0]]!r}; Strop reads the model's own "
                "config.json. Save the changed configuration to a folder with the weights, and name the folder."
            )


def quantization_keys(config: Any, source: Source) -> Iterator[tuple[str, Any, Source]]:
    """TRL's keys for a quantization of the weights, one of bitsandbytes'. Raises ConfigError for others."""
    session = current_session()
    values = config if isinstance(config, Mapping) else config.to_dict()
    found = [name for name in _QUANTIZED if values.get(name)]
    if not found:
        raise session.error(
            f"quantization_config={type(config).__name__}: TRL's keys have the formats of bitsandbytes; write "
            "BitsAndBytesConfig(load_in_4bit=True), or leave it out. In a run file `model.quantization: {library: "
            "torchao}` takes torchao's."
        )
    if values.get("llm_int8_skip_modules") not in (None, [], ["lm_head"]):
        raise session.error(
            f"llm_int8_skip_modules={values['llm_int8_skip_modules']!r}: Strop quantizes all linear layers but the "
            "head; leave it out."
        )
    for name in found:
        yield name, True, source
    if "load_in_4bit" in found:
        yield "bnb_4bit_quant_type", values.get("bnb_4bit_quant_type", "fp4"), source
        yield "use_bnb_nested_quant", bool(values.get("bnb_4bit_use_double_quant")), source
        session.note("bnb_4bit_compute_dtype has no effect: products have the dtype of the model.")


def lora_keys(config: Any, model: RecordedModel) -> Iterator[tuple[str, Any, Source]]:
    """TRL's keys for an adapter. Raises ConfigError for one that is not a LoRA, or has a field that Strop lacks."""
    session, source = current_session(), current_session().source()
    kind = type(config).__name__
    if kind != "LoraConfig":
        raise session.error(f"peft_config is a {kind}; Strop trains LoRA adapters: write a LoraConfig.")
    yield "use_peft", True, source
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        key = _LORA_KEYS.get(field.name)
        if field.name == "target_modules":
            yield "lora_target_modules", _target_modules(value, model), source
        elif field.name == "task_type":
            if value is not None:
                yield "lora_task_type", plain(value, field.name), source
        elif key is not None:
            yield key, plain(value, f"LoraConfig.{field.name}"), source
        elif not _is_default(field, value) and (fault := new_adapter_fault(field.name, value)) is not None:
            raise session.error(f"LoraConfig.{field.name}={value!r}: {fault}.")


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return bool(value == field.default) or not value


def _target_modules(value: Any, model: RecordedModel) -> Any:
    """The modules that are written, or those that PEFT has for the model's type."""
    if value is not None:
        return plain(value, "LoraConfig.target_modules")
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    kind = model.config.model_type
    if kind not in KNOWN:
        raise current_session().error(
            f"LoraConfig has no target_modules, and PEFT has none for models of the type {kind}; write them, such as "
            "all-linear."
        )
    return list(KNOWN[kind])


def model_of(model: Any, init_options: Any) -> RecordedModel:
    """The model of a trainer: a stand-in, or the name of one, with `model_init_kwargs`.

    Raises ConfigError for a model that was built in the script.
    """
    session = current_session()
    if isinstance(model, str | Path):
        options = dict(init_options or {})
        if options.get("revision") == "main":
            del options["revision"]
        return RecordedModel(str(model), options, is_loaded=False)
    if model is None:
        raise session.error("model is missing; write the name of a model.")
    if not isinstance(model, RecordedModel):
        raise session.error(
            f"model is a {type(model).__name__}, whose weights exist only in this script; write the name of a "
            "model, or AutoModelForCausalLM.from_pretrained(name). Save a model that you have changed with "
            "save_pretrained, and name its folder."
        )
    if init_options:
        raise session.error(
            "model_init_kwargs applies to the name of a model, and model is loaded; leave it out."
        )
    return model


def tokenizer_fields(tokenizer: Any, model: RecordedModel) -> Iterator[tuple[str, Any]]:
    """Run-file fields of a `processing_class` that differs from the model's own: its folder and chat template.

    Raises ConfigError for one with other tokens.
    """
    session = current_session()
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    name = getattr(tokenizer, "name_or_path", "") or model.name_or_path
    if not hasattr(tokenizer, "get_vocab"):
        raise session.error(
            f"processing_class is a {type(tokenizer).__name__}; write a tokenizer, or leave it out."
        )
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(
        name, trust_remote_code=bool(model.options.get("trust_remote_code", False))
    )
    if own.get_vocab() != tokenizer.get_vocab():
        raise session.error(
            f"processing_class has other tokens than {name}; save it together with a model of as many tokens, and name "
            "that folder."
        )
    if own.eos_token != tokenizer.eos_token:
        raise session.error(
            f"processing_class has the end-of-sequence token {tokenizer.eos_token!r}, and {name} has "
            f"{own.eos_token!r}; write it into the tokenizer's folder (save_pretrained), and name that folder."
        )
    for side in ("padding_side", "truncation_side"):
        if getattr(own, side, None) != getattr(tokenizer, side, None):
            session.note(f"{side} of processing_class has no effect: Strop packs sequences without padding.")
    if own.pad_token != tokenizer.pad_token:
        session.note("pad_token of processing_class has no effect: Strop packs sequences without padding.")
    if name != model.name_or_path:
        yield "model.tokenizer", name
    if tokenizer.chat_template is not None and tokenizer.chat_template != own.chat_template:
        if not isinstance(tokenizer.chat_template, str):
            raise session.error("processing_class has several chat templates; write one of them.")
        yield "data.chat_template", tokenizer.chat_template


_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""unsloth's default target modules."""
_PLACEMENT = (
    *("fast_inference", "gpu_memory_utilization", "max_lora_rank", "float8_kv_cache", "device_map"),
    *("rope_scaling", "use_gradient_checkpointing", "random_state", "fix_tokenizer", "resize_model_vocab"),
    *("use_exact_model_name", "disable_log_stats", "unsloth_vllm_standby"),
    *("full_finetuning", "offload_embedding"),
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
        """The model, recorded, and its tokenizer; by default its weights are quantized."""
        _note_placement(options)
        quantization: dict[str, Any] | None = None
        if load_in_8bit:
            quantization = {"load_in_8bit": True}
        elif load_in_4bit and not load_in_16bit and not model_name.endswith("-bnb-4bit"):
            quantization = {
                "load_in_4bit": True,
                "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": True,
            }
        given = {
            "quantization_config": quantization,
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
            raise session.error("loftq_config: adapters start at zero, as with LoRA; leave it out.")
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
