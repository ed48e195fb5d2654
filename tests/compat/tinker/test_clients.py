"""Tinker's own client against `strop serve --tinker`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import safetensors.torch
import tinker
import torch
from tinker import types

from strop.compat.tinker.service import open_tinker
from strop.compat.tinker.store import RunFiles
from strop.compat.tinker.training import TrainedAdapter
from strop.errors import ConfigError
from strop.run.entry.chat import find_chat_source
from strop.run.entry.serve import ServiceOptions, open_service
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


def test_targets_are_distributions(client: Open) -> None:
    """As distillation sends them, also sparse: the same with a loss of the server and of the client."""
    service = client()
    named, custom = (service.create_lora_training_client("tiny", rank=4, seed=1).result() for _ in range(2))
    tokens, weights = torch.zeros(6, 8, dtype=torch.int64), torch.zeros(6, 8)
    tokens[2, :2], weights[2, :2] = torch.tensor([41, 52]), torch.tensor([0.75, 0.25])
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(IDS[:6]),
            loss_fn_inputs={"target_tokens": tokens, "weights": weights},
        )
    ]
    assert data[0].loss_fn_inputs["target_tokens"].sparse_crow_indices is not None

    def negative(data: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        return -(logprobs[0] * weights).sum(), {}

    found = named.forward_backward(data, "cross_entropy").result()
    again = custom.forward_backward_custom(data, negative).result()
    assert found.loss_fn_outputs[0]["logprobs"].shape == [6, 8]
    assert found.metrics["loss:sum"] == pytest.approx(again.metrics["loss:sum"], rel=1e-5)
    norms = [each.optim_step(ADAM).result().metrics["unclipped_grad_l2:mean"] for each in (named, custom)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5) and norms[0] > 0


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


def test_external_weights_are_downloaded(client: Open, service: str, tmp_path: Path) -> None:
    trained = client().create_lora_training_client("tiny", rank=4, seed=1).result()
    train(trained, 1)
    path = trained.save_weights_external("final", ttl_seconds=7200).result().path
    sampler = trained.save_weights_for_sampler("final").result().path
    rest = tinker.RestClient(base_url=service, api_key=KEY)
    urls = rest.get_external_weights_urls(path).result().urls
    assert set(urls) == {"adapter_model.safetensors", "adapter_config.json"}
    for name, url in urls.items():
        with urllib.request.urlopen(url) as response:
            (tmp_path / name).write_bytes(response.read())
    saved = safetensors.torch.load_file(tmp_path / "adapter_model.safetensors")
    assert any(value.abs().sum() > 0 for name, value in saved.items() if "lora_B" in name)
    assert [
        each.checkpoint_type for each in rest.list_checkpoints(trained.model_id).result().checkpoints
    ] == [
        "external",
        "sampler",
    ]
    base = urls["adapter_config.json"].removesuffix("adapter_config.json")
    for url, status in (
        (f"{base}checkpoint.json", 404),
        (f"{base}..%2F..", 404),
        (f"{service}/api/v1/files/x/y", 403),
    ):
        assert httpx.get(url).status_code == status
    for wrong, error in ((path, "has external_weights"), (sampler, "write a path of save_state")):
        with pytest.raises(tinker.RequestFailedError, match=error):
            trained.load_state(wrong).result()
    with pytest.raises(tinker.RequestFailedError, match="needs the package pyrage"):
        trained.save_weights_external("hidden", age_encryption_recipients=["age1x"]).result()


def test_a_copy_of_a_checkpoint_outlives_it(client: Open, service: str) -> None:
    service_client = client()
    trained = service_client.create_lora_training_client("tiny", rank=4, seed=1).result()
    train(trained, 1)
    expected = loss_of(trained)
    path = trained.save_state("kept").result().path
    rest = tinker.RestClient(base_url=service, api_key=KEY)
    copied = rest.copy_weights(path, "project", ttl_seconds=7200).result()
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert loss_of(service_client.create_training_client_from_state(copied).result()) == expected
    run = tinker.ParsedCheckpointTinkerPath.from_tinker_path(copied).training_run_id
    [found] = rest.list_checkpoints(run).result().checkpoints
    assert found.tinker_path == copied and found.expires_at is not None
    body = {"model_id": run, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}
    answer = httpx.post(f"{service}/api/v1/optim_step", json=body, headers={"X-API-Key": KEY})
    assert answer.status_code == 422 and "holds a copy" in answer.json()["error"]["message"]


@pytest.mark.filterwarnings("ignore:RestClient.search_sessions")
def test_sessions_are_searched(service: str) -> None:
    rest = tinker.RestClient(base_url=service, api_key=KEY)
    ids = []
    for name, status in (("Nightly one", "success"), ("nightly two", "errored"), ("other", "success")):
        with tinker.ServiceClient(
            base_url=service, api_key=KEY, user_metadata={"of": "search"}, display_name=name
        ) as opened:
            ids.append(opened.holder.get_session_id())
            opened.close(status).result()

    def found(**asked: Any) -> list[str]:
        request = types.SessionSearchRequest(user_metadata={"of": "search"}, limit=1, **asked)
        pages = [rest.search_sessions(request).result()]
        while (cursor := pages[-1].next_cursor) is not None:
            pages.append(rest.search_sessions(request.model_copy(update={"cursor": cursor})).result())
        return [each.session_id for page in pages for each in page.sessions]

    assert found() == ids[::-1]
    assert found(display_name="NIGHTLY") == [ids[1], ids[0]]
    assert found(session_id=ids[2], display_name="one") == [ids[2], ids[0]]
    errored = types.ClientFinishedSessionStatusQuery(reasons=["errored"])
    assert found(statuses=[errored]) == [ids[1]] and not found(statuses=[types.ActiveSessionStatusQuery()])
    assert not found(project_ids=["p"]) and not found(owner=types.UserSearchOwner(owner_urns=["someone"]))


TINKER_PATH = "tinker://s:train:0/weights/x"
ABSENT: dict[str, Callable[[Any, Any], Any]] = {
    "get_audit_log": lambda rest, admin: admin.get_audit_log(),
    "get_billing_usage": lambda rest, admin: admin.get_billing_usage(
        "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    ),
    "get_current_checkpoint_storage_usage": lambda rest, admin: admin.get_current_checkpoint_storage_usage(),
    "publish_checkpoint_from_tinker_path": lambda rest, admin: rest.publish_checkpoint_from_tinker_path(
        TINKER_PATH
    ),
    "unpublish_checkpoint_from_tinker_path": lambda rest, admin: rest.unpublish_checkpoint_from_tinker_path(
        TINKER_PATH
    ),
    "assign_session_project": lambda rest, admin: rest.assign_session_project("s", "p"),
    "export_session_trace": lambda rest, admin: rest.export_session_trace("s"),
}
"""Methods of the SDK for what does not exist here."""
SERVED = {
    *("get_server_capabilities", "get_training_run", "get_training_run_by_tinker_path", "list_training_runs"),
    *(
        "get_weights_info_by_tinker_path",
        "list_checkpoints",
        "list_user_checkpoints",
        "get_external_weights_urls",
    ),
    *("delete_checkpoint", "delete_checkpoint_from_tinker_path", "set_checkpoint_ttl_from_tinker_path"),
    *("copy_weights", "get_session", "list_sessions", "search_sessions", "get_sampler"),
}
IN_THE_CLIENT = {"get_telemetry", "whoami", "holder"}


def test_each_method_of_the_sdk_is_served_or_said_to_be_absent() -> None:
    names = {
        name.removesuffix("_async")
        for kind in (tinker.RestClient, tinker.AdminClient)
        for name in dir(kind)
        if not name.startswith("_")
    }
    assert names - IN_THE_CLIENT == SERVED | ABSENT.keys()


@pytest.mark.parametrize("name", ABSENT)
def test_what_does_not_exist_here_is_404_with_a_sentence(service: str, name: str) -> None:
    clients = (kind(base_url=service, api_key=KEY) for kind in (tinker.RestClient, tinker.AdminClient))
    with pytest.raises(tinker.NotFoundError, match="this server has one owner"):
        ABSENT[name](*clients).result()


def test_capabilities_sessions_and_samplers_are_told(client: Open, service: str) -> None:
    opened = client()
    opened.create_sampling_client(base_model="tiny").result()
    session = opened.holder.get_session_id()
    rest = tinker.RestClient(base_url=service, api_key=KEY)
    [served] = rest.get_server_capabilities().result().supported_models
    assert (served.model_name, served.max_context_length) == ("tiny", 2048)
    assert session in rest.list_sessions(limit=5).result().sessions
    found = rest.get_session(session).result()
    assert len(found.sampler_ids) == 1 and not found.training_run_ids
    assert rest.get_sampler(found.sampler_ids[0]).result().base_model == "tiny"


def test_a_result_waits_for_a_client_that_has_died(client: Open, service: str) -> None:
    trained = client().create_lora_training_client("tiny", rank=4, seed=1).result()
    body = {"model_id": trained.model_id, "seq_id": 1, "path": "left"}
    with httpx.Client(base_url=f"{service}/api/v1", headers={"X-API-Key": KEY}) as dying:
        request_id = dying.post("save_weights", json=body).json()["request_id"]
    with httpx.Client(base_url=f"{service}/api/v1", headers={"X-API-Key": KEY}, timeout=60) as other:
        found = other.post("retrieve_future", json={"request_id": request_id}).json()
    assert found["path"] == f"tinker://{trained.model_id}/weights/left"


def test_a_folder_has_one_service(service_folder: Path, service: str, model: Path) -> None:
    further = partial(open_tinker, folder=service_folder, name="tiny")
    options = ServiceOptions("tiny", {}, tokens=(KEY,), further=further)
    with (
        pytest.raises(ConfigError, match="another service uses this folder"),
        open_service(find_chat_source(model, before=False), options),
    ):
        pass


def test_all_checkpoints_are_listed(client: Open, service: str) -> None:
    trained = client().create_lora_training_client("tiny", rank=4, seed=1).result()
    paths = [trained.save_state(name).result().path for name in ("one", "two")]
    rest = tinker.RestClient(base_url=service, api_key=KEY)
    newest = rest.list_user_checkpoints(limit=2).result().checkpoints
    assert [each.tinker_path for each in newest] == paths[::-1]
    rest.set_checkpoint_ttl_from_tinker_path(paths[0], 7200).result()
    assert rest.get_training_run_by_tinker_path(paths[0]).result().training_run_id == trained.model_id


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, s: c.forward_backward([sft()], "no_such_loss"), "there is no loss"),
        (lambda c, s: c.forward_backward([sft([21, 999])], "cross_entropy"), "outside the vocabulary"),
        (
            lambda c, s: c.optim_step(types.AdamParams(learning_rate=-0.1)),
            "learning_rate is -0.1; write 0 or more",
        ),
        (lambda c, s: c.optim_step(types.AdamParams(grad_clip_norm=-1.0)), "grad_clip_norm is -1"),
        (
            lambda c, s: c.optim_step(types.AdamParams(beta1=1.0)),
            "beta1 is 1.0; write 0 or more and less than 1",
        ),
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
    with pytest.raises(tinker.UnprocessableEntityError, match="one value, or one row"):
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
    for wrong in ({"rank": 0}, {"rank": 100_000}, {"seed": -1}):
        with pytest.raises(tinker.UnprocessableEntityError, match=r"lora_config\.(rank|seed) is"):
            client().create_lora_training_client("tiny", **wrong).result()


def test_a_client_of_another_version_is_warned(
    client: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client().get_server_capabilities()
    assert "speaks the protocol" not in caplog.text
    monkeypatch.setattr("tinker.lib.internal_client_holder.tinker_sdk_version", "0.20.1")
    old = client().create_lora_training_client("tiny", rank=4).result()
    assert "the client is tinker 0.20.1" in caplog.text and loss_of(old) > 0


def test_two_clients_save_under_one_name(client: Open) -> None:
    service = client()
    clients = [service.create_lora_training_client("tiny", rank=4, seed=1).result() for _ in range(2)]
    train(clients[0], 2)
    paths = [each.save_state("same").result().path for each in clients]
    losses = [loss_of(service.create_training_client_from_state(path).result()) for path in paths]
    assert losses == [loss_of(each) for each in clients] and losses[0] < losses[1]


def test_a_full_disk_while_saving_leaves_the_run(
    service: str, client: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = client().create_lora_training_client("tiny", rank=4).result()
    train(trained, 1)
    with monkeypatch.context() as patched:
        patched.setattr(TrainedAdapter, "write_state", no_space)
        with pytest.raises(tinker.RequestFailedError, match="No space left"):
            trained.save_state("kept").result()
    rest = tinker.RestClient(base_url=service, api_key=KEY)
    assert not rest.list_checkpoints(trained.model_id).result().checkpoints
    body = {"model_id": trained.model_id, "seq_id": 4, "path": "kept"}
    answer = httpx.post(f"{service}/api/v1/save_weights", json=body, headers={"X-API-Key": KEY})
    future = {"request_id": answer.json()["request_id"]}
    done = httpx.post(f"{service}/api/v1/retrieve_future", json=future, headers={"X-API-Key": KEY})
    assert done.json()["path"].endswith("/weights/kept")


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
def served(model: Path, folder: Path, port: int, ranks: int) -> Iterator[subprocess.Popen[str]]:
    """A service in a process of its own, which is killed at the end."""
    command = [sys.executable, "-m", "strop", "serve", str(model), "--name", "tiny", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--tinker", str(folder), "--ranks", str(ranks)],
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
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_service_goes_on_where_its_clients_are(
    model: Path, tmp_path: Path, client: Open, ranks: int
) -> None:
    """Acknowledged requests are there after the restart: a gradient without its step, too."""
    undisturbed = client().create_lora_training_client("tiny", rank=4, seed=5).result()
    expected = [*train(undisturbed, 3), loss_of(undisturbed)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with served(model, tmp_path / "runs", port, ranks):
        clients = ExitStack()
        service = clients.enter_context(
            tinker.ServiceClient(base_url=f"http://127.0.0.1:{port}", api_key=KEY)
        )
        trained = service.create_lora_training_client("tiny", rank=4, seed=5).result()
        found = train(trained, 2)
        found.append(trained.forward_backward([sft()], "cross_entropy").result().metrics["loss:sum"])
    with served(model, tmp_path / "runs", port, ranks):
        trained.optim_step(ADAM).result()
        found.append(loss_of(trained))
        clients.close()
    assert found == (expected if ranks == 1 else pytest.approx(expected, rel=1e-5))
