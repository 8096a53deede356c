"""The playground in a real browser: its numbers are the model's, its texts stay texts, and it asks nobody else.

`make browser` runs this too, with every kind of model, and keeps screenshots.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsers import KEPT, PHONE, in_browser
from serving.playground import CONTRAST, HOSTILE, TEXT, UNNAMED, Tab, prompt_ids
from serving.server import KEY, Running
from serving.wire import exchange, post

STATIC = Path(__file__).parents[2] / "src" / "heddle" / "serving" / "static"


# --- the files --------------------------------------------------------------------------------------------------------


def test_the_page_is_small_and_of_one_origin() -> None:
    files = list(STATIC.iterdir())
    assert sum(one.stat().st_size for one in files) <= 150_000
    for one in files:
        text = one.read_text(encoding="utf-8")
        assert not re.search(r"https?:|//\w+\.|@import|url\(", text), one
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", text), one
        assert not re.search(r"Storage|cookie|indexedDB", text), "the key stays in memory"
        for wanted in re.findall(r"/static/([\w.]+)", text):
            assert (STATIC / wanted).exists(), (one, wanted)
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    modules = {one.name for one in files if one.suffix == ".js"}
    assert set(re.findall(r"/static/([\w]+\.js)", page)) == modules, "all are fetched at once, not one after another"
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", page), "the policy forbids it"


def test_the_page_comes_without_a_key_under_a_strict_policy(server: Running) -> None:
    for path, kind in (("/", "text/html"), ("/static/main.js", "text/javascript"), ("/static/page.css", "text/css")):
        status, headers, body = exchange(server, "GET", path, key=None)
        assert status == 200 and headers["content-type"].startswith(kind) and body
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "unsafe" not in policy and headers["x-content-type-options"] == "nosniff"
    for path in ("/static/nowhere.js", "/static/../http/app.py", "/static/..%2fhttp%2fapp.py"):
        assert exchange(server, "GET", path)[0] == 404, path


# --- the routes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "lstm", "pair"])
def test_the_route_answers_with_the_json_of_explain(name: str, server: Running, lms: dict[str, Any]) -> None:
    lm, what = lms[name], {"gpt": "probabilities,attention,lens", "lstm": "gates"}.get(name, "attention,gates,beams")
    options: dict[str, Any] = {"top": 3, "max_tokens": 5}
    status, found = post(server, "/v1/heddle/explain", {"model": name, "text": TEXT, "what": what, **options})
    wanted = json.loads(lm.explain(TEXT, what=what, **options).to_json())
    assert status == 200 and found.keys() == wanted.keys()
    assert found["sequences"] == wanted["sequences"]
    assert flat(found) == pytest.approx(flat(wanted), abs=1e-4)


def flat(data: Any) -> list[float]:
    """Return all numbers."""
    if isinstance(data, dict):
        return [x for key in sorted(data) for x in flat(data[key])]
    if isinstance(data, list):
        return [x for one in data for x in flat(one)]
    return [float(data)] if isinstance(data, int | float) else []


def test_looking_is_refused_in_one_line_where_it_would_be_too_much(server: Running) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("explain", {"text": TEXT, "what": "trace"}, "what: trace is not served"),
        ("explain", {"text": TEXT, "what": "nothing"}, "what"),
        ("explain", {"text": TEXT, "what": "gates"}, "gates: want a recurrent model"),
        ("explain", {"text": "a" * 600, "what": "probabilities"}, "text: "),
        ("explain", {"text": [3] * 300, "what": "lens"}, "text: want at most 256 tokens"),
        ("explain", {"text": [3] * 510, "model": "lstm", "what": "gates", "top": 99}, "top: "),
        ("explain", {"text": [3, 999]}, "text: want one or more ids"),
        ("explain", {"text": [3], "output": "a"}, "output: want none"),
        ("logits", {"text": TEXT, "place": 99}, "place: want 0 to"),
        ("attention", {"text": TEXT, "layer": 0}, "head: want a layer and a head"),
        ("attention", {"text": TEXT, "layer": 9, "head": 0}, "layer: want 0 to 1, got 9"),
        ("attention", {"text": TEXT, "layer": 0, "head": 9}, "head: want 0 to 3, got 9"),
        ("attention", {"text": TEXT, "model": "lstm"}, "attention: want a model with attention"),
        ("attention", {"text": [3] * 600}, "text: want at most 512 tokens"),
        ("divergence", {"text": TEXT, "models": ["gpt", "pair"]}, "models: want two language models"),
    ]
    for route, body, message in cases:
        status, found = post(server, f"/v1/heddle/{route}", {"model": "gpt", **body} if route != "divergence" else body)
        assert status == 400 and message in found["error"]["message"], (body, found)
        assert "\n" not in found["error"]["message"]


def test_logits_of_a_place_are_the_models(server: Running, lms: dict[str, Any]) -> None:
    for name in ("gpt", "lstm"):
        ids = lms[name].explain(TEXT, what="probabilities")["probabilities"] and prompt_ids(lms[name])
        _, found = post(server, "/v1/heddle/logits", {"model": name, "text": ids, "place": 4, "top": 2})
        assert found["logits"] == pytest.approx(lms[name].logits([ids])[0, 4].tolist(), abs=1e-4)
        assert found["best"][0]["id"] == int(lms[name].logits([ids])[0, 4].argmax())
    start, output = list(lms["pair"].tokenizer.special_tokens.decoder_start), [97, 98]
    body = {"model": "pair", "text": "abc", "output": [*start, *output], "place": len(start)}
    source = lms["pair"].tokenizer.source("abc")
    wanted = lms["pair"].logits([[*start, *output]], source=[source])[0, len(start)]
    assert post(server, "/v1/heddle/logits", body)[1]["logits"] == pytest.approx(wanted.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["gpt", "pair"])
def test_attention_comes_as_thumbnails_and_a_head_at_a_time(name: str, server: Running, lms: dict[str, Any]) -> None:
    text = TEXT * 5 if name == "gpt" else TEXT  # beside 116 tokens, a thumbnail has fewer cells than weights
    body: dict[str, Any] = {"model": name, "text": text} | ({"output": [256, 97, 98]} if name == "pair" else {})
    about, data = binary(server, body)
    options = {"output": body["output"]} if name == "pair" else {}
    maps = lms[name].explain(text, what="attention", **options)["attention"].maps
    assert [(one["name"], one["shape"]) for one in about] == [(one.name, list(one.weights.shape)) for one in maps]
    codes = np.split(np.frombuffer(data, np.uint8), np.cumsum([math.prod(one["thumbnail"]) for one in about])[:-1])
    for one, own, found in zip(maps, about, codes, strict=True):
        weights, shown = one.weights.numpy(), (found.reshape(own["thumbnail"]) / 255.0) ** 2
        assert shown.max((1, 2)) == pytest.approx(weights.max((1, 2)), abs=0.01), "no weight is lost"
        assert shown[:, -1, 0] == pytest.approx(weights[:, -1 if name == "pair" else -2 :, 0].max(1), abs=0.01)
        if own["thumbnail"] == own["shape"]:
            assert np.abs(shown - weights).max() < 0.01
    head, data = binary(server, {**body, "layer": len(maps) - 1, "head": 0})
    wanted = maps[-1].weights[0].numpy()
    assert head["shape"] == [1, *wanted.shape] and head["keys"] == maps[-1].keys
    assert np.abs(np.frombuffer(data, "<f4").reshape(wanted.shape) - wanted).max() <= 1e-5


def binary(server: Running, body: dict[str, Any]) -> tuple[Any, bytes]:
    """Return the JSON and the bytes after it of an answer."""
    status, headers, raw = exchange(server, "POST", "/v1/heddle/attention", json.dumps(body).encode())
    assert status == 200 and headers["content-type"] == "application/octet-stream", raw
    length = int.from_bytes(raw[:4], "little")
    assert length % 4 == 0
    return json.loads(raw[4 : 4 + length]), raw[4 + length :]


def test_an_encoder_decoder_goes_on_with_a_given_output(server: Running, lms: dict[str, Any]) -> None:
    lm, source = lms["pair"], lms["pair"].tokenizer.source("abc")
    start = list(lm.tokenizer.special_tokens.decoder_start)
    options = {"model": "pair", "prompt": "abc", "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    whole = post(server, "/v1/completions", options)[1]["choices"][0]["token_ids"]
    for count in (0, 1, 3):
        output = [*start, *whole[:count]]
        (choice,) = post(server, "/v1/completions", {**options, "output": output})[1]["choices"]
        assert [*whole[:count], *choice["token_ids"]][: len(whole)] == whole
    taken = [*start, 120]
    found = post(server, "/v1/completions", {**options, "output": taken})[1]["choices"][0]["token_ids"]
    assert found[0] == int(lm.logits([taken], source=[source])[0, -1].argmax())
    for given, model in (([], "pair"), ([999], "pair"), ([97], "gpt")):
        status, answer = post(server, "/v1/completions", {**options, "model": model, "output": given})
        assert status == 400 and answer["error"]["message"].startswith("output: "), (given, model)


def test_divergence_of_two_models_is_that_of_their_logits(server: Running, lms: dict[str, Any]) -> None:
    ids = prompt_ids(lms["gpt"])
    _, found = post(server, "/v1/heddle/divergence", {"models": ["gpt", "lstm"], "text": ids})
    p, q = (lms[name].logits([ids])[0].double().log_softmax(-1) for name in ("gpt", "lstm"))
    assert found["kl"] == pytest.approx(((p.exp() * (p - q)).sum(-1) / math.log(2)).tolist(), abs=1e-4)
    own = -p[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0] / math.log(2)
    assert found["surprisals"][0][1:] == pytest.approx(own.tolist(), abs=1e-4)
    assert post(server, "/v1/heddle/divergence", {"models": ["gpt", "gpt"], "text": ids})[1]["kl"] == [0.0] * len(ids)


def test_token_ids_come_with_a_text_when_they_are_requested(server: Running, lms: dict[str, Any]) -> None:
    body = {"model": "gpt", "prompt": TEXT, "max_tokens": 6, "temperature": 0}
    (plain,) = post(server, "/v1/completions", body)[1]["choices"]
    (choice,) = post(server, "/v1/completions", {**body, "return_token_ids": True})[1]["choices"]
    (wanted,) = lms["gpt"].generate_ids([prompt_ids(lms["gpt"])], max_tokens=6)
    assert "token_ids" not in plain and choice["token_ids"] == wanted
    chat = {"model": "gpt", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "temperature": 0}
    (answer,) = post(server, "/v1/chat/completions", {**chat, "return_token_ids": True})[1]["choices"]
    assert len(answer["token_ids"]) == 4


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tab(browser: Any, server: Running) -> Iterator[Tab]:
    found = Tab(browser, server.url)
    yield found
    found.close()


@in_browser
def test_two_models_stand_side_by_side(tab: Tab, server: Running, lms: dict[str, Any]) -> None:
    tab.use("gpt")
    tab.do("#beside-go")
    tab.page.wait_for_selector("#pair tbody tr")
    ids = prompt_ids(lms["gpt"])
    _, wanted = post(server, "/v1/heddle/divergence", {"models": ["gpt", "lstm"], "text": ids})
    shown = tab.page.locator("#pair tbody td:last-child").evaluate_all("all => all.map(o => Number(o.dataset.value))")
    assert shown == pytest.approx(wanted["kl"], abs=1e-4)


@in_browser
def test_a_chat_is_answered_and_its_tokens_shown(tab: Tab, server: Running) -> None:
    tab.use("gpt")
    tab.page.click("#mode-chat")
    tab.page.fill("#prompt", "<b>Hello</b>")
    tab.write(5)
    messages = [{"role": "user", "content": "<b>Hello</b>"}]
    body = {"model": "gpt", "messages": messages, "max_tokens": 5, "temperature": 0}
    wanted = post(server, "/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]
    said = tab.page.locator("#messages li").evaluate_all("all => all.map(one => one.textContent)")
    assert said == ["<b>Hello</b>", wanted]
    _, prompt = post(server, "/tokenize", {"model": "gpt", "messages": messages})
    assert tab.chips.count() == prompt["count"] + 5
    tab.page.click("#mode-text")


@in_browser
def test_hostile_texts_of_tokens_stay_texts(browser: Any, server: Running) -> None:
    tab = Tab(browser, server.url, key=None)

    def answer(route: Any) -> None:
        response = route.fetch()
        found = response.json()
        for sequence in found.get("sequences", ()):
            sequence["tokens"] = [HOSTILE for _ in sequence["tokens"]]
        for one in [*found.get("best", ()), *found.get("beams", {}).get("nodes", ())]:
            one["text"] = HOSTILE
        route.fulfill(response=response, json=found)

    tab.page.route("**/v1/heddle/explain", answer)
    tab.page.route("**/v1/heddle/logits", answer)
    tab.unlock(KEY)
    tab.page.click("#beams-go")
    tab.page.wait_for_selector("#leaves li")
    tab.page.wait_for_selector("#bars .bar")
    assert tab.page.title() == "Heddle playground"
    assert tab.page.locator("main img, main script").count() == 0
    shown = tab.chips.nth(2).inner_text()
    assert "<script>" in shown and "\\u202e" in shown and "\\u0000" in shown and "\u202e" not in shown
    tab.close()


@in_browser
def test_a_wrong_key_is_refused_and_a_right_one_is_forgotten(browser: Any, server: Running) -> None:
    tab = Tab(browser, server.url, key=None)
    tab.page.fill("#key", "wrong")
    tab.page.click("#key-form button")
    tab.page.wait_for_selector("#fault:not([hidden])")
    assert tab.page.locator("#work").is_hidden()
    tab.unlock(KEY)
    kept = (
        "JSON.stringify([Object.entries(localStorage), Object.entries(sessionStorage), document.cookie, location.href])"
    )
    assert KEY not in tab.page.evaluate(kept) + tab.page.content() and tab.page.input_value("#key") == ""
    tab.page.reload()
    tab.page.wait_for_selector("#key-form:not([hidden])")
    tab.close()


@in_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_on_a_phone_and_used_by_keyboard(browser: Any, server: Running, scheme: str) -> None:
    tab = Tab(browser, server.url, viewport=PHONE, color_scheme=scheme)
    tab.page.wait_for_selector("#bars .bar")
    tab.page.wait_for_selector("#map:not([hidden])")
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    assert tab.page.evaluate(CONTRAST) == []
    assert tab.page.evaluate(UNNAMED) == []
    tab.page.locator("#rows .chip").nth(2).focus()
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#bars[data-place='2']")
    assert tab.page.locator("#rows .chip").nth(3).get_attribute("aria-pressed") == "true"
    assert tab.page.locator("#rows .chip[tabindex='0']").count() == 1, "the tab key stops once in a row"
    tab.page.locator("#grid button[tabindex='0']").focus()
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#map[data-map='1 1']")
    if KEPT in os.environ:
        tab.page.screenshot(path=str(Path(os.environ[KEPT]) / f"playground-phone-{scheme}.png"), full_page=True)
    tab.close()
