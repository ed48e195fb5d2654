"""Requests and completions of one model, to and from SGLang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from strop.config.schema.model import ModelConfig
from strop.data.encoding.model_tokens import eos_token_ids
from strop.inference.native.stopping import StopStringMatcher
from strop.inference.request_validation import validate_request
from strop.inference.serving.images import RequestImages
from strop.inference.sglang.requests import check_support, stop_plan, to_completion, to_sglang
from strop.inference.stop_cut import cut_at_stop
from strop.models.loading import load_config, load_generation_config
from strop.types import Completion, SampleRequest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RequestConverter:
    """Converts requests with a model's vocabulary, end tokens and tokenizer."""

    def __init__(
        self, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, images: RequestImages | None = None
    ) -> None:
        """`images` is None where requests cannot have images."""
        self._images = images
        self.config = load_config(model)
        """The model's configuration."""
        self.vocab_size = int(self.config.get_text_config().vocab_size)
        self._eos_ids = eos_token_ids(self.config, load_generation_config(model), tokenizer)
        self._stop_strings = StopStringMatcher(tokenizer)

    def check(self, request: SampleRequest, max_sequence_tokens: int) -> None:
        """Raise `InferenceError` for an invalid request, and for one that SGLang would change."""
        processor = None if self._images is None else self._images.processor
        validate_request(request, self.vocab_size, max_sequence_tokens, processor)
        check_support(request)

    def arguments(self, request: SampleRequest) -> dict[str, Any]:
        """SGLang's arguments of a request."""
        plan = stop_plan(request.sampling, self._eos_ids, self.vocab_size)
        arguments = to_sglang(request, plan, self.vocab_size)
        if self._images is None or not request.media:
            return arguments
        # The pixels as the trainer gets them: SGLang would otherwise scale the images itself, and write the prompt as
        # text and tokenize it again.
        inputs = self._images.processor().process(request.media)
        assert inputs.grid is not None
        pixels = {"pixel_values": inputs.pixel_values, "image_grid_thw": torch.from_numpy(inputs.grid)}
        return arguments | {"image_data": [{"format": "processor_output", **pixels}]}

    def completion(
        self, request: SampleRequest, output: Mapping[str, Any], version_of: Callable[[str], int]
    ) -> Completion:
        """The completion of a finished request, up to its first stop; `version_of` gives the version of a label of the
        weights."""
        plan = stop_plan(request.sampling, self._eos_ids, self.vocab_size)
        completion = to_completion(request, output, version_of)
        return cut_at_stop(
            completion,
            request.sampling.min_tokens,
            self._stop_strings,
            tokens=plan.cut_tokens,
            strings=plan.cut_strings,
        )
