"""Messages of Tinker's protocol: training data and results in protobuf, all others in JSON by the SDK's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ValidationError
from tinker.proto import tinker_public_pb2 as proto
from tinker.types import SampleRequest

from strop.config.load.schema_faults import first_fault
from strop.errors import DataError
from strop.types import Completion, FloatArray, IntArray

Request = TypeVar("Request", bound=BaseModel)
PROTOBUF = "application/x-protobuf"
_DTYPES: Mapping[int, type[np.generic]] = {
    proto.DTYPE_FLOAT32: np.float32,
    proto.DTYPE_INT64: np.int64,
    proto.DTYPE_INT32: np.int32,
}
_NO_TOKEN_LOGPROB = -99999.0
"""Log-prob in an empty cell of a table of likely tokens."""


@dataclass(frozen=True, slots=True)
class SampledSpan:
    """Tokens of a datum's targets that one sampled sequence has."""

    sequence_id: str
    offset: int
    """Number of the first token in the sequence."""
    first: int
    """Position of the first token among the targets."""
    length: int


@dataclass(frozen=True, slots=True)
class LossDatum:
    """One training sequence of a request."""

    token_ids: IntArray
    """[N] Input of the model."""
    inputs: Mapping[str, FloatArray | IntArray]
    """[N] values by name; position i belongs to the prediction after input i."""
    spans: tuple[SampledSpan, ...]
    """Sampled sequences behind the targets, where the client named them."""


@dataclass(frozen=True, slots=True)
class LossRequest:
    """A request for a loss over some data, and for its gradient."""

    model_id: str
    seq_id: int
    loss: str
    options: Mapping[str, float | str]
    data: tuple[LossDatum, ...]
    forward_only: bool


def read_request(kind: type[Request], body: Any) -> Request:
    """A request in JSON. Raises DataError for one that the SDK's type refuses."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise DataError(f"{kind.__name__}: {first_fault(error)}") from None


def read_loss_request(body: bytes) -> LossRequest:
    """A request for a loss. Raises DataError for a malformed one, and for inputs that are not served."""
    message = proto.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise DataError(f"the request is no ForwardBackwardRequest of protobuf: {error}") from None
    options: dict[str, float | str] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        options[name] = value.text if value.HasField("text") else value.number
    if not message.data:
        raise DataError("the request has no data; send at least one Datum")
    return LossRequest(
        message.model_id,
        message.seq_id,
        message.loss_fn,
        options,
        tuple(_datum(each, number) for number, each in enumerate(message.data)),
        message.forward_only,
    )


def _datum(message: proto.Datum, number: int) -> LossDatum:
    where = f"Datum {number}"
    ids = np.concatenate(
        [np.zeros(0, np.int32), *(_chunk_tokens(chunk, where) for chunk in message.model_input)]
    )
    if not len(ids):
        raise DataError(f"{where}: model_input has no tokens")
    inputs = {name: _array(tensor, f"{where}: {name}") for name, tensor in message.loss_fn_inputs.items()}
    for name, value in inputs.items():
        if value.shape != ids.shape:
            raise DataError(
                f"{where}: loss_fn_inputs[{name!r}] has the shape {list(value.shape)}, and model_input has {len(ids)} "
                "tokens. Give each input one value for each token; this server has no targets with several tokens per "
                "position"
            )
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise DataError(f"{where}: loss_fn_inputs[{name!r}] has values that are NaN or infinite")
    return LossDatum(ids, inputs, tuple(_spans(message, where, len(ids))))


def _spans(message: proto.Datum, where: str, length: int) -> Sequence[SampledSpan]:
    found, first = [], 0
    for span in message.loss_fn_input_spans:
        if span.HasField("sampled_tokens"):
            part = span.sampled_tokens
            found.append(SampledSpan(part.sequence_id, part.offset, first, part.length))
        else:
            part = span.prompt_tokens
        first += part.length
    if message.loss_fn_input_spans and first != length:
        raise DataError(f"{where}: the spans of loss_fn_inputs cover {first} positions of {length}")
    return found


def chunk_tokens(chunks: Sequence[Any]) -> IntArray:
    """[P] Tokens of a prompt in JSON. Raises DataError for images and audio."""
    ids: list[int] = []
    for chunk in chunks:
        if chunk.type != "encoded_text":
            raise DataError(f"a chunk of the type {chunk.type!r}: this server reads text only")
        ids += chunk.tokens
    if not ids:
        raise DataError("the prompt has no tokens")
    return np.array(ids, np.int32)


def _chunk_tokens(chunk: proto.Chunk, where: str) -> IntArray:
    if not chunk.HasField("encoded_text"):
        raise DataError(f"{where}: model_input has an image or audio; this server trains on text only")
    if len(chunk.encoded_text.tokens) % 4:
        raise DataError(f"{where}: the tokens are no int32")
    return np.frombuffer(chunk.encoded_text.tokens, np.int32)


def _array(tensor: proto.Tensor, where: str) -> FloatArray | IntArray:
    if tensor.HasField("sparse_csr"):
        raise DataError(f"{where}: sparse tensors are not served; send a dense one")
    if (dtype := _DTYPES.get(tensor.dtype)) is None:
        raise DataError(f"{where}: write float32 or int64")
    try:
        return np.frombuffer(tensor.dense, dtype).reshape(tuple(tensor.shape) or -1)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def loss_response(logprobs: Sequence[FloatArray], metrics: Mapping[str, float]) -> bytes:
    """Log-probs of each datum's targets, [N] each, and the metrics of the loss."""
    ends = np.cumsum([0, *(4 * len(each) for each in logprobs)], dtype=np.int64)
    field = proto.BatchedTensor(
        data=np.concatenate(logprobs, dtype=np.float32).tobytes(),
        offsets=ends.tobytes(),
        dtype=proto.DTYPE_FLOAT32,
    )
    record = proto.ArrayRecord(type_tag="ArrayRecord", fields={"logprobs": field}, num_datums=len(logprobs))
    message = proto.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord", loss_fn_outputs=[record], metrics=metrics
    )
    return bytes(message.SerializeToString())


def sample_response(request: SampleRequest, completions: Sequence[Completion]) -> bytes:
    """Sampled sequences with their log-probs under the distribution that they were sampled from."""
    top, top_prompt = request.topk_sample_logprobs, request.topk_prompt_logprobs
    message = proto.SampleResponse()
    for each in completions:
        sequence = message.sequences.add(
            stop_reason=proto.STOP_REASON_LENGTH
            if each.finish_reason == "length"
            else proto.STOP_REASON_STOP,
            tokens=each.token_ids.astype(np.int32).tobytes(),
            logprobs=each.sampler_logprobs.astype(np.float32).tobytes(),
        )
        if top and each.top_tokens is not None:
            _write_top(
                sequence.topk_sampled_logprobs, each.top_tokens.token_ids, each.top_tokens.logprobs, top
            )
    first = completions[0]
    unscored = 0
    if request.prompt_logprobs:
        own = np.zeros(0, np.float32) if first.prompt_logprobs is None else first.prompt_logprobs
        values = np.concatenate([[np.nan], own], dtype=np.float32)
        if request.prompt_logprobs_last_n is not None:
            unscored = max(0, len(values) - request.prompt_logprobs_last_n)
            values[:unscored] = np.nan
        message.prompt_logprobs = values.tobytes()
    if top_prompt and first.prompt_top_tokens is not None:
        ids, values = first.prompt_top_tokens.token_ids, first.prompt_top_tokens.logprobs
        ids = np.concatenate([np.zeros((1, ids.shape[1]), ids.dtype), ids])
        values = np.concatenate([np.full((1, values.shape[1]), _NO_TOKEN_LOGPROB), values])
        ids[:unscored], values[:unscored] = 0, _NO_TOKEN_LOGPROB
        _write_top(message.topk_prompt_logprobs, ids, values, top_prompt)
    return bytes(message.SerializeToString())


def _write_top(table: proto.TopkLogprobs, ids: IntArray, logprobs: FloatArray, count: int) -> None:
    table.length, table.k = len(ids), count
    table.token_ids = ids[:, :count].astype(np.int32).tobytes()
    table.logprobs = logprobs[:, :count].astype(np.float32).tobytes()
