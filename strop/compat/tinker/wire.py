"""Messages of Tinker's protocol: training data and results in protobuf, all others in JSON by the SDK's own types."""

from __future__ import annotations

import itertools
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
from strop.workers.json_text import parse_object

Request = TypeVar("Request", bound=BaseModel)
PROTOBUF = "application/x-protobuf"
_DTYPES: Mapping[int, type[np.generic]] = {
    proto.DTYPE_FLOAT32: np.float32,
    proto.DTYPE_INT64: np.int64,
    proto.DTYPE_INT32: np.int32,
}
_MAX_DENSE = 1 << 26
"""Maximum number of cells of a sparse tensor, which is held densely."""
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
    """Values [N] by name, or [N, K] with K tokens per position; position i is the prediction after input i."""
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


def read_json(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises DataError for another text."""
    try:
        return parse_object(body)
    except ValueError as error:
        raise DataError(f"the request is not a JSON object: {error}") from None


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
        if value.shape[:1] != ids.shape or value.ndim > 2 or value.shape[-1] == 0:
            raise DataError(
                f"{where}: loss_fn_inputs[{name!r}] has the shape {list(value.shape)}, and model_input has {len(ids)} "
                "tokens. Give each input one value, or one row of K values, for each token"
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
    if (dtype := _DTYPES.get(tensor.dtype)) is None:
        raise DataError(f"{where}: write float32 or int64")
    try:
        if tensor.HasField("sparse_csr"):
            return _dense(tensor, dtype)
        return np.frombuffer(tensor.dense, dtype).reshape(tuple(tensor.shape) or -1)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None


def _dense(tensor: proto.Tensor, dtype: type[np.generic]) -> FloatArray | IntArray:
    """A sparse matrix, with 0 where it has no value. Raises ValueError for a malformed one."""
    rows, columns = tensor.shape
    values = np.frombuffer(tensor.sparse_csr.values, dtype)
    ends, chosen = (
        np.frombuffer(each, np.int64)
        for each in (tensor.sparse_csr.crow_indices, tensor.sparse_csr.col_indices)
    )
    counts = np.diff(ends)
    if ends[:1].tolist() != [0] or (counts < 0).any() or not len(values) == len(chosen) == counts.sum():
        raise ValueError("the rows of the sparse tensor do not fit its values")
    if len(counts) != rows or not ((chosen >= 0) & (chosen < columns)).all():
        raise ValueError(f"the sparse tensor has values outside of its shape {[rows, columns]}")
    if rows * columns > _MAX_DENSE:
        raise ValueError(
            f"the sparse tensor has {rows} times {columns} cells, and {_MAX_DENSE} are the limit"
        )
    dense = np.zeros((rows, columns), dtype)
    dense[np.repeat(np.arange(rows), counts), chosen] = values
    return dense


def loss_response(logprobs: Sequence[FloatArray], metrics: Mapping[str, float]) -> bytes:
    """Log-probs of each datum's targets, [N] or [N, K] each, and the metrics of the loss."""
    message = proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=metrics)
    for trailing, group in itertools.groupby(logprobs, lambda each: each.shape[1:]):
        parts = list(group)
        field = proto.BatchedTensor(
            data=np.concatenate(parts, dtype=np.float32).tobytes(),
            offsets=np.cumsum([0, *(4 * each.size for each in parts)], dtype=np.int64).tobytes(),
            dtype=proto.DTYPE_FLOAT32,
            trailing_shape=trailing,
        )
        message.loss_fn_outputs.add(type_tag="ArrayRecord", fields={"logprobs": field}, num_datums=len(parts))
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
