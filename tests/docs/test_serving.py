"""The code of docs/serving.md works as the page says, against `heddle serve` as a process."""

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from serving.server import save_models, serving
from serving.wire import post

from heddle.cli.main import command

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CLIENTS, CHAT, ASGI, ENGINE = BLOCKS
(CURL,) = re.findall(r"```sh\n(curl .*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("page"))["gpt"]


def test_commands_of_the_page_are_taken() -> None:
    lines = [line.partition("#")[0] for line in PAGE.splitlines() if line.startswith("heddle serve ")]
    assert len(lines) == 3
    for line in lines:
        verb = command().commands["serve"]
        assert verb.make_context("serve", shlex.split(line)[2:]).params["model"]


def test_clients_of_the_page_are_answered(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("fastapi", "openai"):
        pytest.importorskip(package, reason="the extra `serve` or openai-python is not installed")
    with serving({"first": folder}, tmp_path / "log", key=None) as server:
        names: dict[str, Any] = {"__name__": "page"}
        code = (CLIENTS + CHAT).replace("http://127.0.0.1:8000", server.url)
        exec(compile(code, "serving.md", "exec", dont_inherit=True), names)
        names["client"].close()
        assert CURL.startswith("curl -s http://127.0.0.1:8000/v1/heddle/classify ")
        status, found = post(server, "/v1/heddle/classify", shlex.split(CURL)[-1].encode(), key=None)
        assert status == 200 and found["data"][0]["label"] in ("good", "bad")
    out = capsys.readouterr().out
    assert re.search(r"^64$", out, re.MULTILINE) and "[None, -" in out
    assert names["answer"].choices[0].message.content is not None


def test_app_of_the_page_answers_and_ends_its_engines(folder: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(ASGI.replace("runs/first", str(folder)), "serving.md", "exec", dont_inherit=True), names)
    app, sent = names["app"], list[dict[str, Any]]()

    async def serve() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": [(b"host", b"localhost")]}
        async with app.router.lifespan_context(app):
            await app(scope | {"query_string": b"", "client": ("127.0.0.1", 1)}, receive, send)

    asyncio.run(serve())
    assert sent[0]["status"] == 200 and b'"id":"first"' in sent[1]["body"]
    assert not app.state.models.alive and app.state.draining.is_set()


def test_commands_for_other_servers_are_right(tmp_path: Path) -> None:
    (ray,) = re.findall(r"serve run (\S+):build (.*)", PAGE)
    source = (ROOT / (ray[0].replace(".", "/") + ".py")).read_text(encoding="utf-8")
    assert all(f'"{word.partition("=")[0]}": ' in source for word in ray[1].split())
    assert f"serve run {ray[0]}:build {ray[1]}" in source
    (convert,) = re.findall(r"^heddle (convert .*)$", PAGE, re.MULTILINE)
    verb, *words = shlex.split(convert)
    assert command().commands[verb].make_context(verb, words).params["to"] == "hf"


def test_engine_of_the_page_answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(
        compile(ENGINE.replace("runs/first", str(folder)), "serving.md", "exec", dont_inherit=True),
        {"__name__": "page"},
    )
    assert capsys.readouterr().out.startswith("['")
