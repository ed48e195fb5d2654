"""Tinker's own client against `strop serve --tinker`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tinker
from tinker import types

from strop.compat.tinker.store import RunFiles
from strop.runs.overview import run_overview
from tests.compat.tinker.conftest import KEY, no_space

Open = Callable[[], tinker.ServiceClient]
IDS = [21, 15, 22, 31, 41, 52, 63]
ADAM = types.AdamParams(learning_rate=0.005)


def sft(ids: list[int] = IDS) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
    )


def prompt(ids: list[int] = IDS[:3]) -> types.ModelInput:
    return types.ModelInput.from_ints(ids)


def loss_of(client: tinker.TrainingClient) -> float:
    return client.forward([sft()], "cross_entropy").result().metrics["loss:sum"]


def train(client: tinker.TrainingClient, steps: int) -> list[float]:
    """The losses; all requests are sent before the first result is read."""
    futures = []
    for _ in range(steps):
        futures.append(client.forward_backward([sft()], "cross_entropy"))
        client.optim_step(ADAM)
    return [future.result().metrics["loss:sum"] for future in futures]


def test_two_clients_train_adapters_of_one_model(client: Open) -> None:
    service = client()
    one, other = (
        service.create_lora_training_client(base_model="tiny", rank=4, seed=s).result() for s in (1, 2)
    )
    losses = train(one, 4)
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 4
    assert loss_of(other) == pytest.approx(losses[0], abs=1e-4)  # a new adapter is zero
    info = one.get_info()
    assert info.model_data.tokenizer_id is not None and Path(info.model_data.tokenizer_id).name == "tokenizer"
    assert one.get_tokenizer().decode(one.get_tokenizer().encode("1+1")) == "1+1"
    assert (info.model_name, info.lora_rank) == ("tiny", 4)


def test_a_batch_in_parts_has_the_gradient_of_the_whole(client: Open) -> None:
    service = client()
    whole, parts = (service.create_lora_training_client("tiny", rank=4, seed=1).result() for _ in range(2))
    data = [sft(), sft(IDS[::-1])]
    whole.forward_backward(data, "cross_entropy")
    for datum in data:
        parts.forward_backward([datum], "cross_entropy")
    norms = [each.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"] for each in (whole, parts)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert loss_of(whole) == pytest.approx(loss_of(parts), rel=1e-5)


def test_a_loss_in_the_client_equals_the_one_of_the_server(client: Open) -> None:
    service = client()
    named, custom = (service.create_lora_training_client("tiny", rank=4, seed=1).result() for _ in range(2))

    def negative(data: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        return -sum(each.sum() for each in logprobs), {}

    named.forward_backward([sft()], "cross_entropy")
    custom.forward_backward_custom([sft()], negative).result()
    norms = [each.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"] for each in (named, custom)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_a_sampler_keeps_the_weights_that_it_was_made_of(client: Open) -> None:
    service = client()
    trained = service.create_lora_training_client("tiny", rank=4, seed=1).result()
    train(trained, 3)
    before = loss_of(trained)
    sampler = trained.save_weights_and_get_sampling_client().result()
    named = service.create_sampling_client(
        model_path=trained.save_weights_for_sampler("first").result().path
    ).result()
    base = service.create_sampling_client(base_model="tiny").result()
    train(trained, 3)

    def loss(client: tinker.SamplingClient) -> float:
        return -sum(value for value in client.compute_logprobs(prompt(IDS)).result() if value is not None)

    assert loss(sampler) == pytest.approx(before, rel=1e-4) == loss(named)
    assert loss(base) != pytest.approx(before, rel=1e-3)
    assert loss_of(trained) < before

    params = types.SamplingParams(max_tokens=6, seed=3, stop=[])
    one, same = (sampler.sample(prompt(), 2, params, topk_sample_logprobs=2).result() for _ in range(2))
    assert [each.tokens for each in one.sequences] == [each.tokens for each in same.sequences]
    assert one.sequences[0].tokens != one.sequences[1].tokens and one.sequences[0].stop_reason == "length"
    assert one.sequences[0].topk_logprobs is not None and len(one.sequences[0].topk_logprobs) == 6
    stop = one.sequences[0].tokens[1]
    stopped = sampler.sample(prompt(), 1, types.SamplingParams(max_tokens=6, seed=3, stop=[stop])).result()
    assert stopped.sequences[0].tokens[-1] == stop and stopped.sequences[0].stop_reason == "stop"


def test_in_flight_samplers_get_later_weights(client: Open) -> None:
    trained = client().create_lora_training_client("tiny", rank=4, seed=1).result()
    train(trained, 1)
    sampler = trained.save_weights_and_get_sampling_client(kind="inflight").result()
    first = sampler.compute_logprobs(prompt(IDS)).result()
    train(trained, 2)
    trained.save_weights_and_get_sampling_client(kind="inflight").result()
    assert sampler.compute_logprobs(prompt(IDS)).result() != first


def test_a_checkpoint_continues_exactly(client: Open) -> None:
    service = client()
    trained = service.create_lora_training_client("tiny", rank=4, seed=1).result()
    train(trained, 2)
    path = trained.save_state("two").result().path
    further = train(trained, 2)
    resumed = service.create_training_client_from_state_with_optimizer(path).result()
    assert train(resumed, 2) == further
    weights_only = service.create_training_client_from_state(path).result()
    found = train(weights_only, 2)
    assert found[0] == further[0] and found[1] != further[1]


def test_stable_reinforce_trains_on_recorded_sequences(client: Open) -> None:
    trained = client().create_lora_training_client("tiny", rank=4, seed=1).result()
    sampler = trained.save_weights_and_get_sampling_client(record_stability_info=True).result()
    start = prompt()
    sequence = sampler.sample(start, 1, types.SamplingParams(max_tokens=4, seed=1)).result().sequences[0]

    def datum(name: str, tokens: list[int]) -> types.Datum:
        size, first = len(tokens), start.length - 1
        plain = types.Datum(
            model_input=start.append(types.EncodedTextChunk(tokens=tokens[:-1])),
            loss_fn_inputs={
                "target_tokens": [0] * first + tokens,
                "advantages": [0.0] * first + [1.0] * size,
            },
        )
        return plain.with_provenance(
            model_input=[
                types.PromptProvenanceSpan(sequence_id=name, length=start.length),
                types.SampledProvenanceSpan(sequence_id=name, length=size - 1),
            ],
            loss_fn_inputs=[
                types.PromptProvenanceSpan(sequence_id=name, offset=1, length=first),
                types.SampledProvenanceSpan(sequence_id=name, length=size),
            ],
        )

    found = trained.forward_backward(
        [datum(sequence.sequence_id, sequence.tokens)], "stable_reinforce"
    ).result()
    assert found.metrics["loss:sum"] == pytest.approx(-sum(sequence.logprobs), rel=1e-4)
    other = [*sequence.tokens[:-1], (sequence.tokens[-1] + 1) % 300]
    for wrong in (datum(sequence.sequence_id, other), datum("nobody:0", sequence.tokens)):
        with pytest.raises(tinker.RequestFailedError, match=r"not the tokens|another session"):
            trained.forward_backward([wrong], "stable_reinforce").result()


def test_runs_and_checkpoints_are_listed_and_deleted(
    client: Open, service: str, service_folder: Path
) -> None:
    trained = client().create_lora_training_client("tiny", rank=4, user_metadata={"of": "test"}).result()
    path = trained.save_state("kept", ttl_seconds=7200).result().path
    trained.save_weights_and_get_sampling_client()  # has no name, and is not listed
    rest = tinker.RestClient(base_url=service, api_key=KEY)
    run = rest.get_training_run(trained.model_id).result()
    assert (run.base_model, run.lora_rank, run.user_metadata) == ("tiny", 4, {"of": "test"})
    assert run.last_checkpoint is not None and run.last_checkpoint.tinker_path == path
    assert trained.model_id in [
        each.training_run_id for each in rest.list_training_runs().result().training_runs
    ]
    assert run_overview(service_folder / "runs" / trained.model_id).status == "running"
    [found] = rest.list_checkpoints(trained.model_id).result().checkpoints
    assert found.expires_at is not None and found.size_bytes
    assert rest.get_weights_info_by_tinker_path(path).result().lora_rank == 4
    with pytest.raises(tinker.RequestFailedError, match="exists"):
        trained.save_state("kept").result()
    rest.delete_checkpoint(trained.model_id, "weights/kept").result()
    assert not rest.list_checkpoints(trained.model_id).result().checkpoints


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, s: c.forward_backward([sft()], "no_such_loss"), "there is no loss"),
        (lambda c, s: c.forward_backward([sft([21, 999])], "cross_entropy"), "outside the vocabulary"),
        (lambda c, s: c.save_state("../up"), "the name"),
        (lambda c, s: c.load_state("tinker://x/weights/none"), "no checkpoint"),
        (lambda c, s: s.sample(prompt([1] * 5000), 1, types.SamplingParams()), "the context"),
        (lambda c, s: s.sample(prompt([999]), 1, types.SamplingParams()), "the model's tokens are"),
        (
            lambda c, s: s.sample(prompt(), 1, types.SamplingParams(max_tokens=2), prompt_alt_tokens_k=2),
            "prompt_alt_tokens_k is not served",
        ),
    ],
)
def test_a_request_that_fails_says_why(client: Open, call: Callable[[Any, Any], Any], message: str) -> None:
    service = client()
    trained = service.create_lora_training_client("tiny", rank=4).result()
    with pytest.raises(tinker.RequestFailedError, match=message):
        call(trained, service.create_sampling_client(base_model="tiny")).result()


def test_data_that_do_not_fit_are_refused(client: Open) -> None:
    trained = client().create_lora_training_client("tiny", rank=4).result()
    short = types.Datum(
        model_input=types.ModelInput.from_ints(IDS),
        loss_fn_inputs={"target_tokens": IDS[:3], "weights": [1.0] * 3},
    )
    with pytest.raises(tinker.UnprocessableEntityError, match="one value for each token"):
        trained.forward_backward([short], "cross_entropy").result()


def test_rewards_that_are_not_numbers_are_refused(client: Open) -> None:
    trained = client().create_lora_training_client("tiny", rank=4).result()
    wrong = types.Datum(
        model_input=prompt(IDS[:2]),
        loss_fn_inputs={"target_tokens": IDS[1:3], "weights": [1.0, float("nan")]},
    )
    with pytest.raises(tinker.UnprocessableEntityError, match="NaN"):
        trained.forward_backward([wrong], "cross_entropy").result()


def test_a_wrong_key_and_another_model_are_refused(service: str, client: Open) -> None:
    with (
        pytest.raises(tinker.AuthenticationError),
        tinker.ServiceClient(base_url=service, api_key="tml-other") as stranger,
    ):
        stranger.create_sampling_client(base_model="tiny").result()
    with pytest.raises(tinker.UnprocessableEntityError, match="has the model 'tiny'"):
        client().create_lora_training_client("Qwen/Qwen3-8B", rank=4).result()


def test_a_full_disk_is_said_and_the_request_can_come_again(
    service: str, client: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = client().create_lora_training_client("tiny", rank=4).result()
    body = {"model_id": trained.model_id, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}
    for full in (True, False):
        with monkeypatch.context() as patched:
            if full:
                patched.setattr(RunFiles, "write_request", no_space)
            answer = httpx.post(f"{service}/api/v1/optim_step", json=body, headers={"X-API-Key": KEY})
        assert answer.status_code == (503 if full else 200)
        assert not full or "No space left" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("forward_backward", b"\xff\xff", 422),
        ("forward_backward", b"", 422),
        ("optim_step", b"[]", 422),
        ("optim_step", b'{"model_id": "../..", "adam_params": {}}', 422),
        ("retrieve_future", b'{"request_id": "none:7"}', 410),
        ("session_heartbeat", b'{"session_id": "../secret"}', 404),
        ("billing/usage/events", b"{}", 404),
    ],
)
def test_malformed_requests_get_a_sentence(service: str, route: str, body: bytes, status: int) -> None:
    answer = httpx.post(f"{service}/api/v1/{route}", content=body, headers={"X-API-Key": KEY})
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_a_body_that_does_not_come_is_waited_for_only_so_long(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strop.inference.endpoint.server._BODY_SECONDS", 0.3)
    url = httpx.URL(service)
    head = f"POST /api/v1/optim_step HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nConnection: close\r\n"
    with socket.create_connection((url.host, url.port or 80)) as connection:
        connection.sendall(f"{head}Content-Length: 9\r\n\r\n".encode())
        assert b"did not arrive within" in connection.makefile("rb").read(4096)


def test_many_samples_at_once(client: Open) -> None:
    sampler = client().create_sampling_client(base_model="tiny").result()
    futures = [sampler.sample(prompt(), 1, types.SamplingParams(max_tokens=2)) for _ in range(500)]
    assert all(len(each.result().sequences) == 1 for each in futures)


@contextmanager
def served(model: Path, folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A service in a process of its own, which is killed at the end."""
    command = [sys.executable, "-m", "strop", "serve", str(model), "--name", "tiny", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--tinker", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "STROP_SERVE_TOKEN": KEY},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)


@pytest.mark.nightly
def test_a_killed_service_goes_on_where_its_clients_are(model: Path, tmp_path: Path, client: Open) -> None:
    """Acknowledged requests are there after the restart: a gradient without its step, too."""
    undisturbed = client().create_lora_training_client("tiny", rank=4, seed=5).result()
    expected = [*train(undisturbed, 3), loss_of(undisturbed)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with served(model, tmp_path / "runs", port):
        clients = ExitStack()
        service = clients.enter_context(
            tinker.ServiceClient(base_url=f"http://127.0.0.1:{port}", api_key=KEY)
        )
        trained = service.create_lora_training_client("tiny", rank=4, seed=5).result()
        found = train(trained, 2)
        found.append(trained.forward_backward([sft()], "cross_entropy").result().metrics["loss:sum"])
    with served(model, tmp_path / "runs", port):
        trained.optim_step(ADAM).result()
        found.append(loss_of(trained))
        clients.close()
    assert found == expected
