"""The playground in a real browser: its numbers are the model's, its texts stay texts, and it asks nobody else.

`make browser` runs this too, with every kind of model, and keeps screenshots.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.runs import config, loud_model
from serving.server import KEY, Running, serving
from serving.wire import exchange, post

from heddle.core import replace
from heddle.decoding import generation_config
from heddle.decoding.generation import complete
from heddle.decoding.runtime import Request
from heddle.lm import LM
from heddle.models.presets import build
from heddle.nn.outputs import SequenceClassOutputConfig
from heddle.text.tokenizers import MASK, ByteTokenizer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="no Chromium or no playwright here; make browser installs Chromium and runs this test",
)
STATIC = Path(__file__).parents[2] / "src" / "heddle" / "serving" / "static"
TEXT = "Once upon a <b>time</b>"
HOSTILE = '<img src=x onerror="document.title=1"></button><script>document.title=2</script>\u202eabc\x00'
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
IDLE = "body[aria-busy='false']"
KEPT = "HEDDLE_SCREENSHOTS"  # a folder for screenshots


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
    assert found["sides"] == wanted["sides"]
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


def prompt_ids(lm: Any, text: str = TEXT) -> list[int]:
    return [*lm.tokenizer.special_tokens.document_start, *lm.tokenizer.encode(text)]


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


class Tab:
    """A page of the playground, with what it asked for and what went wrong."""

    def __init__(self, browser: Any, url: str, key: str | None = KEY, **options: Any) -> None:
        self.context = browser.new_context(viewport=options.pop("viewport", DESKTOP), **options)
        self.page, self.url = self.context.new_page(), url
        self.asked: list[str] = []
        self.faults: list[str] = []
        self.page.on("request", lambda made: self.asked.append(made.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda said: self.faults.append(said.text) if "401" not in said.text else None)
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", state="attached")
        if key is not None:
            self.unlock(key)

    def unlock(self, key: str) -> None:
        """Type a key that is right."""
        self.page.fill("#key", key)
        self.page.click("#key-form button")
        self.page.wait_for_selector("#work:not([hidden])")
        self.idle()

    def idle(self) -> None:
        """Wait until the page has done what it was told."""
        self.page.wait_for_selector(IDLE)

    def use(self, model: str, text: str = TEXT) -> None:
        """Look at a text with a model."""
        if self.page.input_value("#model") != model:
            self.page.select_option("#model", model)
            self.idle()
        self.page.fill("#prompt", text)
        self.do("#look")

    def do(self, button: str) -> None:
        """Press a button and wait."""
        self.page.click(button)
        self.idle()

    def write(self, tokens: int) -> None:
        """Let the model write."""
        self.page.locator("#max-tokens").evaluate("(node, value) => { node.value = value; }", tokens)
        self.do("#go")

    @property
    def chips(self) -> Any:
        """Return the chips of the row that is predicted, without that of the next token."""
        return self.page.locator("#rows .chips:last-child .chip:not(.next)")

    def bits(self) -> list[float | None]:
        """Return the surprisal that each chip shows."""
        found = self.chips.evaluate_all("all => all.map(one => one.dataset.bits)")
        return [float(one) if one else None for one in found]

    def expect(self, at: int) -> None:
        """Choose a token, and wait for what was expected in its place."""
        self.page.locator("#rows .chips:last-child .chip").nth(at).click()
        self.page.wait_for_selector(f"#bars[data-place='{at - 1}']")

    def bars(self, temperature: float) -> dict[int, float]:
        """Return the probabilities that the bars show at a temperature."""
        slide = "(node, value) => { node.value = value; node.dispatchEvent(new Event('input')); }"
        self.page.locator("#slider").evaluate(slide, temperature)
        read = "all => all.map(one => [Number(one.dataset.id), Number(one.dataset.probability)])"
        return dict(self.page.locator("#bars .bar").evaluate_all(read))

    def close(self) -> None:
        """Close it; nothing may have gone wrong, and nobody else been asked."""
        assert self.faults == []
        assert all(one.startswith((self.url, "data:")) for one in self.asked), self.asked
        self.context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as drivers:
        started = drivers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def tab(browser: Any, server: Running) -> Iterator[Tab]:
    found = Tab(browser, server.url)
    yield found
    found.close()


@in_browser
@pytest.mark.parametrize("name", ["gpt", "lstm"])
def test_numbers_of_the_page_are_those_of_the_model(name: str, tab: Tab, lms: dict[str, Any]) -> None:
    lm = lms[name]
    tab.use(name)
    first, *bits = tab.bits()
    score = lm.score(TEXT)
    assert first is None and len(bits) == len(lm.tokenizer.encode(TEXT))
    assert [-math.log(2) * one for one in bits if one is not None] == pytest.approx(
        score.logprobs[: len(bits)].tolist(), abs=1e-4
    )
    tab.expect(6)
    logits = lm.logits([prompt_ids(lm)])[0, 5].double()
    for temperature in (1.0, 0.5, 2.0, 0.0):
        wanted = (logits / temperature).softmax(-1) if temperature else (logits == logits.max()).double()
        shown = tab.bars(temperature)
        assert len(shown) >= 12 and set(logits.topk(12).indices.tolist()) <= shown.keys()
        assert shown == pytest.approx({id: float(wanted[id]) for id in shown}, abs=1e-4), temperature


@in_browser
def test_another_token_is_taken_and_the_server_writes_on_from_there(tab: Tab, server: Running, lms: Any) -> None:
    tab.use("gpt")
    tab.write(6)
    tab.expect(9)
    bar = tab.page.locator("#bars .bar:not(.here)").nth(1)
    kept = [*prompt_ids(lms["gpt"])[:9], int(bar.get_attribute("data-id"))]
    bar.locator("button").click()
    tab.page.wait_for_timeout(30)
    tab.idle()
    body = {"model": "gpt", "prompt": kept, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    (wanted,) = post(server, "/v1/completions", body)[1]["choices"]
    titles = tab.chips.evaluate_all("all => all.map(one => one.title)")
    assert [int(re.search(r"\(id (\d+)\)", one)[1]) for one in titles] == [*kept, *wanted["token_ids"]]
    assert tab.page.locator("#branches button").count() == 3  # the text, what followed it, and the branch
    tab.do("#branches button >> nth=1")
    assert tab.chips.count() == len(prompt_ids(lms["gpt"])) + 6


@in_browser
def test_leaves_of_the_tree_are_those_of_beam_search(tab: Tab, lms: dict[str, Any]) -> None:
    lm = lms["gpt"]
    tab.use("gpt")
    tab.page.fill("#beams-tokens", "4")
    tab.page.click("#beams-go")
    tab.page.wait_for_selector("#leaves li")
    leaves = tab.page.locator("#leaves li").evaluate_all("all => all.map(one => JSON.parse(one.dataset.ids))")
    config = replace(generation_config({"max_tokens": 4, "beams": 3, "samples": 3}), stop=(256,))
    assert leaves == [one.ids for one in complete(lm.model, [Request(prompt_ids(lm))], config)]
    nodes = lm.explain(TEXT, what="beams", beams=3, max_tokens=4)["beams"].plain()["nodes"]
    assert tab.page.locator("#tree li.dead").count() == sum(not one["kept"] for one in nodes)
    assert tab.page.locator("#tree li").count() == len(nodes)


@in_browser
def test_attention_is_that_of_explain_and_gates_too(tab: Tab, lms: dict[str, Any]) -> None:
    tab.use("gpt")
    tab.page.wait_for_selector("#grid .heads button >> nth=5")
    tab.page.locator("#grid .heads button").nth(5).click()
    tab.expect(7)
    tab.page.wait_for_selector("#rows .chip i", state="attached")
    shown = tab.page.locator("#rows .chip i").evaluate_all("all => all.map(one => Number(one.dataset.weight))")
    wanted = lms["gpt"].explain(TEXT, what="attention")["attention"].maps[1].weights[1, 6].tolist()
    assert shown == pytest.approx(wanted, abs=1e-6)
    assert tab.page.locator("#gates").is_hidden()
    tab.use("lstm")
    assert tab.page.locator("#attention").is_hidden()
    tab.page.wait_for_selector("#cells canvas")
    strip = tab.page.locator("#cells canvas")
    strip.scroll_into_view_if_needed()
    box, (cell,) = strip.bounding_box(), lms["lstm"].explain(TEXT, what="gates")["gates"].cells
    unit, place = int(strip.get_attribute("data-unit")), 3
    tab.page.mouse.move(box["x"] + (place + 0.5) * box["width"] / len(cell.values["forget"]), box["y"] + 2)
    readout = tab.page.locator("#readout").inner_text()
    assert f"unit {unit}" in readout
    assert float(readout.rpartition(": ")[2]) == pytest.approx(float(cell.values["forget"][place, unit]), abs=1e-6)


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
def test_what_a_kind_lacks_is_not_offered(tab: Tab) -> None:
    tab.use("pair", "abc")
    assert [tab.page.locator(f"#{one}").is_visible() for one in ("gates", "attention", "beams")] == [True] * 3
    assert [tab.page.locator(f"#{one}").is_visible() for one in ("beside", "modes", "tasks")] == [False] * 3
    tab.write(5)
    assert tab.page.locator("#rows .chips").count() == 2 and 2 <= tab.chips.count() <= 6
    tab.expect(1)
    assert tab.page.locator("#bars .bar").count() >= 12 and tab.page.locator("#bars button").count() == 0


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
        for side in found.get("sides", ()):
            side["tokens"] = [HOSTILE for _ in side["tokens"]]
        for one in [*found.get("best", ()), *found.get("beams", {}).get("nodes", ())]:
            one["text"] = HOSTILE
        route.fulfill(response=response, json=found)

    tab.page.route("**/v1/heddle/*", answer)
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
    if KEPT in os.environ:
        tab.page.screenshot(path=str(Path(os.environ[KEPT]) / f"playground-phone-{scheme}.png"), full_page=True)
    tab.close()


# Texts whose colour is less than 4.5 times as light or dark as what is behind them (WCAG AA).
CONTRAST = """() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = rgb => { const [r, g, b] = rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = node => { for (let at = node; at; at = at.parentElement) {
    const found = parts(getComputedStyle(at).backgroundColor); if (found[3] !== 0) return found; } return []; };
  const low = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(one => one.nodeType === 3 && one.textContent.trim());
    if (!own || !node.checkVisibility()) continue;
    const ink = light(parts(getComputedStyle(node).color)), page = light(behind(node));
    const ratio = (Math.max(ink, page) + 0.05) / (Math.min(ink, page) + 0.05);
    if (ratio < 4.5) low.push(`${node.tagName} ${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return low;
}"""
# Controls without a name for a screen reader.
UNNAMED = """() => [...document.querySelectorAll("button, input, select, textarea, canvas[tabindex], [role=region]")]
  .filter(one => one.checkVisibility() && !(one.ariaLabel || one.textContent.trim() || one.labels?.length))
  .map(one => one.outerHTML.slice(0, 80))"""


# --- other kinds ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Serve an encoder that fills in masks and one that classifies, a mixture of experts, and no key."""
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    folder = tmp_path_factory.mktemp("kinds")
    folders = {name: lm.save(folder / name) for name, lm in other_kinds().items()}
    with serving(folders, folder / "log", key=None) as running:
        yield running


def other_kinds() -> dict[str, LM]:
    """Build small models of the other kinds."""
    tokenizer = ByteTokenizer(special=(MASK,)).train([])
    masked = config("bert-base-masked", vocab=tokenizer.vocab)
    classes = SequenceClassOutputConfig(classes=3, labels=("good", "bad", HOSTILE))
    networks = {
        "bert": masked.expand(),
        "classes": masked.expand().with_output(classes),
    }
    sizes = {"heads": 4, "kv_heads": 2, "hidden": 12, "experts": 4, "vocab": tokenizer.vocab, "context": 32}
    models = {name: loud_model(network) for name, network in networks.items()}
    models["experts"] = build("mixtral-8x7b", layers=2, width=16, **sizes)
    return {name: LM(model.eval(), tokenizer) for name, model in models.items()}


@pytest.mark.full
@in_browser
def test_encoders_and_experts_show_what_they_have(browser: Any, kinds: Running) -> None:
    tab = Tab(browser, kinds.url, key=None)
    tab.page.wait_for_selector(IDLE)
    lm = other_kinds()["bert"]
    tab.use("bert", "a cat")
    assert [tab.page.locator(f"#{one}").is_visible() for one in ("go", "beams", "gates", "beside")] == [False] * 4
    scored = [one.logprob for one in lm.score("a cat").tokens]
    shown = [-math.log(2) * one for one in tab.bits() if one is not None]
    assert shown[-len(scored) :] == pytest.approx(scored, abs=1e-4)
    tab.page.locator("#rows .chip").nth(2).click()
    tab.page.wait_for_selector("#bars[data-place='2'] button")
    tab.page.locator("#bars button").first.click()
    tab.page.wait_for_timeout(50)
    tab.idle()
    assert tab.chips.count() == len(lm.explain("a cat").sides[0].ids)
    tab.page.fill("#task-text", "a [MASK]at")
    tab.page.click("#task-go")
    tab.page.wait_for_selector("#task-result td")
    best = lm.fill("a [MASK]at")[0]
    assert f"{100 * best.probability:.2f} %" in tab.page.locator("#task-result").inner_text()
    tab.use("classes", "a cat")
    tab.page.fill("#task-text", "a cat")
    tab.page.select_option("#task", "classify")
    tab.page.click("#task-go")
    tab.page.wait_for_selector("#task-result td")
    assert HOSTILE[:20] in tab.page.locator("#task-result").inner_text()
    assert tab.page.locator("main img").count() == 0
    tab.use("experts", "a cat")
    assert tab.page.locator("#attention").is_visible() and tab.page.locator("#beams").is_visible()
    tab.close()
