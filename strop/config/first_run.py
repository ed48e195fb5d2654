"""A first run file from a few answers, with comments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from strop.printable import counted

SCHEMA = "strop.schema.json"
"""Name of the JSON Schema, next to the run file."""


@dataclass(frozen=True, slots=True)
class FirstRun:
    """Answers from which a run file is written."""

    model: str
    train: str
    prompt: str
    answer: str | None
    """Column of the answers; None for a reward that needs none."""
    reward: str
    eval: str | None
    """Path of the held-out tasks; None for a run without evaluation."""
    steps: int
    lora: bool
    max_response_tokens: int
    chat: bool
    """Whether prompts are rendered by the tokenizer's chat template."""
    bfloat16: bool
    """Whether matrix products are in bfloat16."""
    changes: tuple[tuple[str, str], ...] = ()
    """Overrides of fields of `model` and `trainer`, such as `trainer.microbatch='4096 tokens'`, each with a comment."""

    def text(self) -> str:
        """The run file."""
        evaluation = (
            f"  eval: [{{name: held-out, path: {yaml_value(self.eval)}, {self._columns}}}]\n"
            if self.eval
            else ""
        )
        lora = (
            "\n  lora: {rank: 16, alpha: 32}  # train an adapter; remove to train all weights"
            if self.lora
            else ""
        )
        products = (
            "\n  compute_dtype: bfloat16  # of the matrix products; the trained weights stay in float32"
            if self.bfloat16
            else ""
        )
        template = "" if self.chat else "  chat_template: none  # prompts are plain text\n"
        every = counted(max(1, self.steps // 5), "step")
        return (
            f"# yaml-language-server: $schema={SCHEMA}\n"
            f"project: {yaml_value(Path(self.train).stem or 'strop')}\n"
            "name: first\n"
            "seed: 1\n"
            "model:\n"
            f"  path: {yaml_value(self.model)}  # a folder, a GGUF file, or a name on the Hub{products}{lora}\n"
            f"{self._changed('model')}"
            "data:\n"
            f"  train: {{path: {yaml_value(self.train)}, {self._columns}}}\n"
            f"{evaluation}"
            "  max_prompt_tokens: 512\n"
            f"  max_response_tokens: {self.max_response_tokens}  # longer responses are truncated\n"
            f"{template}"
            f"reward: {yaml_value(self.reward)}  # a built-in, or file.py:function\n"
            "algorithm: {type: grpo, rollouts_per_task: 8}  # responses per task, compared with one another\n"
            "trainer:\n"
            f"  duration: {counted(self.steps, 'step')}\n"
            "  tasks_per_step: 16  # prompts sampled in one step\n"
            f"  optimizer: {{type: adamw, lr: {'1e-4' if self.lora else '1e-5'}}}\n"
            f"{self._changed('trainer')}"
            f"checkpoint: {{every: {every}}}\n" + (f"evaluate: {{every: {every}}}\n" if self.eval else "")
        )

    def _changed(self, section: str) -> str:
        """The lines of the changes in a section."""
        lines = []
        for override, comment in self.changes:
            key, _, value = override.partition("=")
            if key.startswith(f"{section}."):
                name, plain = key.removeprefix(f"{section}."), value.strip("'")
                lines.append(f"  {name}: {plain}  # {comment}\n")
        return "".join(lines)

    @property
    def _columns(self) -> str:
        answer = yaml_value(self.answer) if self.answer else "null"
        return f"prompt: {yaml_value(self.prompt)}, answer: {answer}"


def yaml_value(text: str) -> str:
    """A text as a YAML value inside a flow mapping."""
    return yaml.safe_dump([text], default_flow_style=True).strip()[1:-1]
