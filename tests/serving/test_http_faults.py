"""Faults of the server: each is logged once and answered in one shape; clients of other keys share no cached prefix."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from heddle.models.presets import PRESETS
from heddle.serving import EngineConfig
from heddle.text.tokenizers import ByteTokenizer

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
pytest.importorskip("httpx", reason="httpx is not installed")

import httpx

from heddle.serving.http import Access, ModelSource, ServedModel, ServedModels, make_app
from heddle.serving.http.responses import until_hang_up

Work = Callable[[httpx.AsyncClient, ServedModel], Coroutine[Any, Any, None]]


def with_app(work: Work, keys: tuple[str, ...] = ()) -> None:
    """Run some work against an app in this process."""

    def embed(texts: Any) -> Any:
        raise RuntimeError("planted")

    tokenizer = ByteTokenizer().train([])
    network = PRESETS["gpt2"].config(layers=1, width=32, heads=2, context=128, vocab=tokenizer.vocab).build(0).eval()
    source = ModelSource("gpt", network, tokenizer, embed=embed)
    model = ServedModel.start(source, EngineConfig(slots=4))
    app = make_app(ServedModels([model]), Access(keys=keys, hosts=()))

    async def run() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await work(client, model)

    try:
        asyncio.run(run())
    finally:
        model.close(0)


def completion(**more: Any) -> dict[str, Any]:
    return {"model": "gpt", "prompt": [5 + at % 40 for at in range(70)], "max_tokens": 2, "temperature": 0} | more


def test_fault_of_a_route_is_logged_once_and_answered_in_openais_shape(caplog: pytest.LogCaptureFixture) -> None:
    async def work(client: httpx.AsyncClient, model: ServedModel) -> None:
        answer = await client.post("/v1/embeddings", json={"model": "gpt", "input": "a"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "planted" not in answer.text

    with caplog.at_level(logging.ERROR):
        with_app(work)
    assert [record.message for record in caplog.records] == ["a request failed: RuntimeError"]


def test_fault_in_the_engine_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: httpx.AsyncClient, model: ServedModel) -> None:
        def fail(*given: Any) -> Any:
            raise RuntimeError("planted")

        monkeypatch.setattr("heddle.serving.chunked_prefill.ChunkedPrefill.read", fail)
        answer = await client.post("/v1/completions", json=completion())
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_error")

    with caplog.at_level(logging.ERROR):
        with_app(work)
    assert [record.message for record in caplog.records] == ["a request failed"]


@pytest.mark.parametrize(("keys", "cached"), [(("one", "other"), [0, 64, 0, 64]), ((), [0, 64, 64, 64])])
def test_cached_prefixes_are_shared_within_a_key_alone(keys: tuple[str, ...], cached: list[int]) -> None:
    found: list[int] = []

    async def work(client: httpx.AsyncClient, model: ServedModel) -> None:
        for key in ("one", "one", "other", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            answer = (await client.post("/v1/completions", json=completion(), headers=headers)).json()
            found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    with_app(work, keys)
    assert found == cached


def test_handler_that_the_server_cancels_tells_the_engine() -> None:
    told: list[str] = []

    async def run() -> None:
        async def never() -> Any:
            await asyncio.Event().wait()

        class Connected:
            async def receive(self) -> Any:
                await asyncio.Event().wait()

        handler = asyncio.create_task(until_hang_up(Connected(), never(), lambda: told.append("cancel")))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        handler.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handler

    asyncio.run(run())
    assert told == ["cancel"]
