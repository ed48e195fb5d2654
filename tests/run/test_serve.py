"""`strop serve` with OpenAI's own client: answers, log-probs, adapters, errors and the end of the service."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

pytest.importorskip("aiohttp")
pytest.importorskip("openai")

import openai

import strop
from strop.errors import ConfigError, ModelError, PlacementError
from strop.inference.endpoint.server import EndpointAccess
from strop.inference.native import NativeEngine
from strop.models.tiny import make_model
from strop.models.vision.tiny import make_vision_model
from strop.run.entry.chat import find_chat_source
from strop.run.entry.serve import ServiceOptions, open_service
from strop.workers.waiting import wait_until
from tests.command import start_strop

TOKEN = "a-token-of-the-test"
MESSAGES: Any = [{"role": "user", "content": "two and two"}]
LIMIT = 300.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "base"
    make_model(folder, ["two and two is four", "three and five"], vocab_size=320, hidden_size=32, layers=2)
    return folder


@pytest.fixture(scope="module")
def adapter(folder: Path) -> Path:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    options = LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    adapted = get_peft_model(model, options)
    adapted.save_pretrained(folder.parent / "adapter")
    return folder.parent / "adapter"


@pytest.fixture(scope="module")
def access(folder: Path, adapter: Path) -> Iterator[EndpointAccess]:
    options = ServiceOptions("base", {"adapted": str(adapter)}, tokens=(TOKEN,))
    with open_service(find_chat_source(folder, before=False), options) as access:
        yield access


@pytest.fixture(scope="module")
def client(access: EndpointAccess) -> Iterator[Any]:
    with openai.OpenAI(base_url=access.url, api_key=TOKEN, max_retries=0, timeout=LIMIT) as client:
        yield client


def model_logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """[L - 1] of the tokens after the first."""
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0, :-1].float().log_softmax(-1)
    return logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.mark.parametrize("stop", [None, "a stop"])
def test_a_stream_comes_while_the_replies_grow(client: Any, stop: str | None):
    """Its parts together are the replies, however stops and characters of several tokens cut them."""
    asked = {"model": "base", "messages": MESSAGES, "n": 2, "seed": 5, "max_tokens": 40}
    replies = [each.message.content for each in client.chat.completions.create(**asked).choices]
    if stop is not None:
        stop = replies[0][len(replies[0]) // 2 :][:3]
        asked["stop"] = [stop]
        replies = [each.message.content for each in client.chat.completions.create(**asked).choices]
    parts: dict[int, list[str]] = {0: [], 1: []}
    ends = {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        choice = chunk.choices[0]
        assert choice.index not in ends
        if choice.delta.content:
            parts[choice.index].append(choice.delta.content)
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    assert ["".join(parts[index]) for index in (0, 1)] == replies and len(ends) == 2
    assert stop or min(map(len, parts.values())) > 10


def test_a_chat_with_choices_seeds_and_a_stream(client: Any):
    asked = {"model": "base", "messages": MESSAGES, "max_tokens": 6, "n": 3, "seed": 7}
    first = client.chat.completions.create(**asked)
    texts = [choice.message.content for choice in first.choices]
    assert len(texts) == 3 and len(set(texts)) > 1
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    again = client.chat.completions.create(**asked)
    assert [choice.message.content for choice in again.choices] == texts
    parts = ["", "", ""]
    usage = None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
    assert parts == texts and usage == first.usage
    unseeded = asked | {"seed": None, "max_tokens": 12}
    one, other = (client.chat.completions.create(**unseeded) for _ in range(2))
    assert [c.message.content for c in one.choices] != [c.message.content for c in other.choices]


def test_the_logprobs_of_a_chat_are_the_models(client: Any, folder: Path):
    response = client.chat.completions.create(
        model="base", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    (choice,) = response.choices
    ids = list(prompt)
    for token in choice.logprobs.content:
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        best = expected.topk(3)
        assert token.logprob == pytest.approx(float(best.values[0]), abs=1e-4)
        assert [each.logprob for each in token.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert token.token == tokenizer.decode([int(best.indices[0])])
        ids.append(int(best.indices[0]))
    assert response.usage.completion_tokens == len(choice.logprobs.content)


@pytest.mark.parametrize("name", ["base", "adapted"])
def test_prompts_are_scored_by_the_model_that_is_named(client: Any, folder: Path, adapter: Path, name: str):
    """As lm-eval asks: tokens, `echo`, log-probs, and one token more or none."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if name == "adapted":
        model = PeftModel.from_pretrained(model, adapter)
    prompts = [[5, 9, 17, 30, 9], [40, 41, 5]]
    for max_tokens in (0, 1):
        response = client.completions.create(
            model=name, prompt=prompts, echo=True, max_tokens=max_tokens, logprobs=1, temperature=0
        )
        for ids, choice in zip(prompts, response.choices, strict=True):
            found = choice.logprobs
            assert len(found.tokens) == len(ids) + max_tokens and found.token_logprobs[0] is None
            expected = model_logprobs(model, ids).tolist()
            assert found.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=1e-4)
            for value, top in zip(found.token_logprobs[1:], found.top_logprobs[1:], strict=True):
                assert max(top.values()) >= value
            assert "".join(found.tokens).startswith(choice.text)
        assert response.usage.completion_tokens == max_tokens * len(prompts)


def test_text_completions_stop_before_a_stop_text(client: Any):
    asked = {"model": "base", "prompt": "two and", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked).choices[0].text
    stop = whole[2:4]
    response = client.completions.create(**asked, stop=[stop])
    assert response.choices[0].text == whole[: whole.index(stop)]
    assert response.choices[0].finish_reason == "stop"
    parts = ["", ""]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stop=[stop], n=2, stream=True)]
    for choice in chunks:
        parts[choice.index] += choice.text
    assert parts == [whole[: whole.index(stop)]] * 2


def test_text_completions_come_while_they_grow(client: Any):
    asked = {"model": "base", "prompt": ["two and", "one and"], "max_tokens": 24, "seed": 3}
    whole = client.completions.create(**asked)
    parts: dict[int, list[str]] = {0: [], 1: []}
    usage = None
    for chunk in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts[choice.index].append(choice.text)
            if choice.finish_reason:
                assert choice.logprobs.tokens == whole.choices[choice.index].logprobs.tokens
    assert ["".join(parts[index]) for index in (0, 1)] == [choice.text for choice in whole.choices]
    assert min(map(len, parts.values())) > 10 and usage == whole.usage


def test_images_of_a_chat_reach_the_model(tmp_path: Path):
    model = make_vision_model(tmp_path / "seeing", ["What is shown here? The number is 34."])
    source = find_chat_source(model, before=False)

    def asked(url: str) -> Any:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
        return {"model": "seeing", "messages": [{"role": "user", "content": parts}], "max_tokens": 1}

    with (
        open_service(source, ServiceOptions("seeing", {}, tokens=(TOKEN,))) as access,
        openai.OpenAI(base_url=access.url, api_key=TOKEN, max_retries=0, timeout=LIMIT) as client,
    ):
        create = partial(client.chat.completions.create, temperature=0, logprobs=True)
        found = {}
        for color in ("red", "blue"):
            content = io.BytesIO()
            Image.new("RGB", (40, 30), color).save(content, "PNG")
            url = f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
            found[color] = create(**asked(url)).choices[0].logprobs.content[0].logprob
            assert create(**asked(url)).choices[0].logprobs.content[0].logprob == found[color]
        assert found["red"] != found["blue"]
        for url, message in (
            ("data:image/png;base64,AAAA", "image"),
            ("file:///etc/passwd", "must begin with"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                create(**asked(url))


def test_images_of_a_chat_are_refused_by_a_model_that_reads_text(client: Any):
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with pytest.raises(openai.BadRequestError, match="image"):
        client.chat.completions.create(model="base", messages=[{"role": "user", "content": parts}])


def test_tools_are_rendered_and_refused_where_they_cannot_be_forced(client: Any):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    response = client.chat.completions.create(model="base", messages=MESSAGES, tools=[tool], max_tokens=3)
    assert response.choices[0].finish_reason in ("length", "stop")
    with pytest.raises(openai.BadRequestError, match="tool_choice: 'required' is not supported"):
        client.chat.completions.create(model="base", messages=MESSAGES, tools=[tool], tool_choice="required")


def test_errors_are_those_of_the_client(client: Any, access: EndpointAccess):
    chat = client.chat.completions.create
    for error, message, call in (
        (
            openai.NotFoundError,
            "there is no model 'x'; available: base, adapted",
            lambda: chat(model="x", messages=MESSAGES),
        ),
        (
            openai.BadRequestError,
            "the model's context has",
            lambda: client.completions.create(model="base", prompt=[5] * 5000),
        ),
        (
            openai.BadRequestError,
            "token 100000, but the model's tokens are",
            lambda: client.completions.create(model="base", prompt=[100000]),
        ),
        (
            openai.BadRequestError,
            "logit_bias",
            lambda: chat(model="base", messages=MESSAGES, logit_bias={"5": 1}),
        ),
        (
            openai.BadRequestError,
            "embeddings are not served",
            lambda: client.embeddings.create(model="base", input="a"),
        ),
        (
            openai.NotFoundError,
            "this endpoint serves",
            lambda: client.responses.create(model="base", input="a"),
        ),
    ):
        with pytest.raises(error, match=message):
            call()
    stranger = openai.OpenAI(base_url=access.url, api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="strop serve"):
        stranger.models.list()
    assert [each.id for each in client.models.list()] == ["base", "adapted"]
    assert client.models.retrieve("adapted").id == "adapted"


def metrics(access: EndpointAccess) -> dict[str, float]:
    request = urllib.request.Request(
        access.url.removesuffix("/v1") + "/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT) as response:
        lines = [line for line in response.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_500_requests_at_once_are_answered_and_counted(access: EndpointAccess):
    name = 'strop_requests_total{path="/v1/chat/completions",status="200"}'
    before = metrics(access).get(name, 0)

    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(
            base_url=access.url, api_key=TOKEN, max_retries=0, timeout=LIMIT
        ) as client:
            calls = [
                client.chat.completions.create(model="base", messages=MESSAGES, max_tokens=2, seed=number)
                for number in range(500)
            ]
            return await asyncio.gather(*calls)

    assert len({response.id for response in asyncio.run(ask_all())}) == 500
    found = metrics(access)
    assert found[name] - before == 500
    assert found['strop_completion_tokens_total{model="base"}'] >= 500
    with urllib.request.urlopen(access.url.removesuffix("/v1") + "/health", timeout=LIMIT) as response:
        assert json.load(response) == {"status": "ok"}


def test_a_client_that_goes_cancels_its_requests(folder: Path, monkeypatch: pytest.MonkeyPatch):
    engines: list[NativeEngine] = []
    build = NativeEngine.from_weights
    monkeypatch.setattr(
        NativeEngine, "from_weights", lambda *given: engines.append(build(*given)) or engines[-1]
    )
    with open_service(
        find_chat_source(folder, before=False), ServiceOptions("m", {}, tokens=(TOKEN,))
    ) as access:
        (engine,) = engines
        engine.pause()  # the request cannot end

        async def ask_and_go() -> None:
            async with openai.AsyncOpenAI(base_url=access.url, api_key=TOKEN, max_retries=0) as client:
                call = asyncio.ensure_future(client.completions.create(model="m", prompt=[5], max_tokens=100))
                while not engine.stats.waiting:
                    await asyncio.sleep(0.01)
                call.cancel()

        asyncio.run(asyncio.wait_for(ask_and_go(), LIMIT))
        assert wait_until(
            lambda: engine.stats.waiting == 0,
            "the request's end",
            timeout_seconds=LIMIT,
            interval_seconds=0.01,
        )
        engine.resume()


def test_what_cannot_be_served_is_refused(folder: Path, adapter: Path, access: EndpointAccess):
    source = find_chat_source(folder, before=False)
    port = int(access.url.split(":")[2].removesuffix("/v1"))
    for options, error, message in (
        (ServiceOptions("m", {}, port=port), PlacementError, "--port: cannot listen on port"),
        (ServiceOptions("m", {"m": str(adapter)}), ConfigError, "a model of this name is served"),
        (ServiceOptions("m", {"a": "/nowhere"}), ModelError, "there is no folder /nowhere"),
        (ServiceOptions("m", {"a": str(adapter)}, engine="vllm"), ConfigError, "--engine native"),
        (ServiceOptions("m", {}, engine="vllm", further=nullcontext), ConfigError, "has one in place"),  # type: ignore[arg-type]
    ):
        with pytest.raises(error, match=message), open_service(source, options):
            pass


def test_a_service_is_the_judge_of_another_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The judge has learned a score for each question, and the rollouts have it."""
    scores = {"two and two": 3, "three and five": 8}
    with strop.Policy(folder, seed=1) as judge:
        shown = strop.TrainingBatch(
            [judge.encode(question, str(score)) for question, score in scores.items()]
        )
        for _ in range(30):
            judge.forward_backward(shown, "sft")
            judge.step(lr=1e-2)
        judge.save(tmp_path / "judge")
    options = ServiceOptions("wise", {}, tokens=(TOKEN,))
    with open_service(find_chat_source(tmp_path / "judge", before=False), options) as access:
        section = strop.Judge(
            url=access.url, model="wise", api_key_env="JUDGE_KEY", prompt="{{ question }}", pattern=r"(\d)"
        )
        run = strop.Run(
            output=str(tmp_path / "runs"),
            model=strop.Model(path=str(folder)),
            data=strop.Data(max_prompt_tokens=64, max_response_tokens=4),
            algorithm=strop.Grpo(rollouts_per_task=2),
            trainer=strop.Trainer(tasks_per_step=2, duration=strop.Amount(1, "steps")),
            reward=strop.RewardConfig(judges=(section,)),
            record=strop.Record(report=False),
        )
        rows = [{"prompt": question} for question in scores]
        monkeypatch.setenv("JUDGE_KEY", "another")
        with pytest.raises(strop.RewardError, match="does not accept the key"):
            strop.train(run, data=rows)
        monkeypatch.setenv("JUDGE_KEY", TOKEN)
        rollouts = strop.open_run(strop.train(run, data=rows).folder).rollouts.at_step(1)
    found = {(each["prompt"], each["reward"]) for each in rollouts}
    assert len(rollouts) == 4 and found == {(question, score / 10) for question, score in scores.items()}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal(folder: Path, tmp_path: Path, number: signal.Signals):
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = start_strop("serve", folder, "--port", "0", "--token", TOKEN, stdout=output, stderr=output)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        return "ends the service" in log.read_text()

    assert wait_until(is_ready, "the service", timeout_seconds=LIMIT, interval_seconds=0.05)
    url = next(word for word in log.read_text().split() if word.startswith("http"))
    with openai.OpenAI(base_url=url, api_key=TOKEN, max_retries=0) as client:
        assert client.completions.create(model="base", prompt="two", max_tokens=2).choices[0].text
    process.send_signal(number)
    assert process.wait(LIMIT) == 0
    assert "The service has ended." in log.read_text() and TOKEN not in log.read_text()
