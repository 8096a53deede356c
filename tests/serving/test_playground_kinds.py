"""The playground for five kinds of model: a GPT, an LSTM, a BERT, a seq2seq with attention, a mixture of experts.

Each number is read from the page and compared with the model's own. `make test` has two kinds, `make browser` all.
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from browsers import DESKTOP, PHONE, in_browser, violations, with_axe
from serving.playground import HOSTILE, TEXT, Tab
from serving.server import KEY, Running, save, serving
from serving.wire import post

import heddle
from heddle.decoding import generation_config
from heddle.decoding.generation import complete
from heddle.decoding.runtime import Request
from heddle.models.presets import PRESETS
from heddle.nn.outputs import SequenceClassOutputConfig
from heddle.tasks.scoring import with_special_tokens
from heddle.text.tokenizers import MASK, ByteTokenizer

QUICK = ("gpt", "pair")
NAMES = ("gpt", "lstm", "pair", "bert", "experts")
VIEWS = ("attention", "gates", "experts", "beams", "tasks")
SHOWN = {  # the views of each kind
    "gpt": {"attention", "beams"},
    "lstm": {"gates", "beams"},
    "pair": {"attention", "gates", "beams", "tasks"},
    "bert": {"attention", "tasks"},
    "experts": {"attention", "experts", "beams"},
}
pytestmark = in_browser


@dataclass
class Kind:
    """A served model, the same model here, and a tab that looks at it."""

    name: str
    lm: Any
    tab: Tab
    server: Running
    key: str | None

    def logits(self, ids: list[int], place: int) -> torch.Tensor:
        """Return the logits that predict the token at a place."""
        if self.name == "bert":
            masked = [*ids[:place], self.lm.tokenizer.special_tokens.mask, *ids[place + 1 :]]
            return self.lm.logits([masked])[0, place].double()
        source = [self.lm.tokenizer.source(TEXT)] if self.name == "pair" else None
        return self.lm.logits([ids[:place]], source=source)[0, -1].double()

    def ask(self, route: str, body: dict[str, Any]) -> Any:
        """Return an answer of the server."""
        status, found = post(self.server, route, {"model": self.name, **body}, key=self.key)
        assert status == 200, found
        return found

    def explain(self, what: str, **options: Any) -> Any:
        """Return what `heddle explain --json` writes about the row that the page shows."""
        if self.name == "pair":
            return json.loads(self.lm.explain(TEXT, what=what, output=self.tab.ids(), **options).to_json())[what]
        return json.loads(self.lm.explain(self.tab.ids(), what=what, **options).to_json())[what]


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, dict[str, Path]]]:
    """Serve an encoder that fills in masks, one that classifies, and a mixture of experts, without a key."""
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    folder, tokenizer = tmp_path_factory.mktemp("kinds"), ByteTokenizer(special=(MASK,)).train([])
    sizes: dict[str, Any] = {"vocab": tokenizer.vocab, "context": 64, "heads": 4, "layers": 2, "width": 32}
    masked = PRESETS["bert-base-masked"].config(**sizes)
    classes = SequenceClassOutputConfig(classes=3, labels=("good", "bad", HOSTILE))
    mixture = PRESETS["mixtral-8x7b"].config(**sizes, kv_heads=2, hidden=32, experts=4)
    configs = {"bert": masked, "classes": masked.with_output(classes), "experts": mixture}
    folders = {name: save(folder / name, config, tokenizer) for name, config in configs.items()}
    with serving(folders, folder / "log", key=None) as running:
        yield running, folders


@pytest.fixture(scope="module")
def kind_of(browser: Any, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Kind]]:
    """Return a function that returns a kind by name; each has one tab."""
    known: dict[str, Kind] = {}

    def find(name: str) -> Kind:
        if name not in known:
            if name in ("gpt", "lstm", "pair"):
                server, lm, key = request.getfixturevalue("server"), request.getfixturevalue("lms")[name], KEY
            else:
                server, folders = request.getfixturevalue("others")
                lm, key = heddle.load(folders[name], device="cpu"), None
            known[name] = Kind(name, lm, Tab(browser, server.url, key), server, key)
            known[name].tab.idle()
        return known[name]

    yield find
    for one in known.values():
        one.tab.close()  # nothing went wrong, and no request left the origin


@pytest.fixture(params=[pytest.param(name, marks=[] if name in QUICK else [pytest.mark.full]) for name in NAMES])
def kind(request: pytest.FixtureRequest, kind_of: Callable[[str], Kind]) -> Kind:
    """Return a kind whose page looks at the text."""
    found = kind_of(request.param)
    found.tab.use(found.name, TEXT)
    return found


def test_only_what_a_kind_has_is_offered(kind: Kind) -> None:
    page, shown = kind.tab.page, SHOWN[kind.name]
    page.wait_for_function("names => names.every((one) => !document.getElementById(one).hidden)", arg=sorted(shown))
    assert {one for one in VIEWS if page.locator(f"#{one}").is_visible()} == shown
    assert page.locator("#go").is_visible() == page.locator("#write details").is_visible() == (kind.name != "bert")
    assert page.locator("#modes").is_visible() == (kind.name in ("gpt", "lstm"))  # those with a chat template
    tasks = {"pair": ["summarize", "translate"], "bert": ["fill"]}.get(kind.name, [])
    assert sorted(page.locator("#task option").evaluate_all("all => all.map((one) => one.value)")) == tasks


def test_surprisal_and_bars_are_those_of_the_model_at_every_temperature(kind: Kind) -> None:
    ids, bits = kind.tab.ids(), kind.tab.bits()
    own = [place for place, value in enumerate(bits) if value is not None]
    assert len(own) >= len(ids) - 1
    wanted = [-float(kind.logits(ids, place).log_softmax(-1)[ids[place]]) / math.log(2) for place in own]
    assert [bits[place] for place in own] == pytest.approx(wanted, abs=1e-4)
    if kind.name != "pair":
        scored = kind.lm.score(TEXT)
        logprobs = [one.logprob for one in scored.tokens]
        first = len(ids) - len(kind.lm.tokenizer.encode(TEXT))
        shown = [-math.log(2) * bits[first + at] for at in range(len(kind.lm.tokenizer.encode(TEXT)))]  # type: ignore[operator]
        assert shown == pytest.approx(logprobs[: len(shown)], abs=1e-4)
    place = own[len(own) // 2]
    kind.tab.expect(place, place if kind.name == "bert" else place - 1)
    logits = kind.logits(ids, place)
    for temperature in (1.0, 0.5, 2.0, 0.0):
        even = (logits / temperature).softmax(-1) if temperature else (logits == logits.max()).double()
        found = kind.tab.bars(temperature)
        assert len(found) >= 12 and set(logits.topk(12).indices.tolist()) <= found.keys()
        assert found == pytest.approx({id: float(even[id]) for id in found}, abs=1e-4), temperature
    kind.tab.bars(1.0)


def test_another_token_is_taken_and_the_text_goes_on_as_the_server_writes(kind: Kind) -> None:
    tab, place = kind.tab, 6
    if kind.name != "bert":
        tab.write(8)
    before = tab.ids()
    place = len(before) - 4
    tab.expect(place, place if kind.name == "bert" else place - 1)
    bar = tab.page.locator("#bars .bar:not(.here)").nth(1)
    taken = int(bar.get_attribute("data-id"))
    tab.take(bar)
    kept = [*before[:place], taken]
    if kind.name == "bert":
        assert tab.ids() == [*kept, *before[place + 1 :]]
        return
    row = {"prompt": TEXT, "output": kept} if kind.name == "pair" else {"prompt": kept}
    body = {**row, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    (wanted,) = kind.ask("/v1/completions", body)["choices"]
    assert tab.ids() == [*kept, *wanted["token_ids"]] and wanted["token_ids"]
    prompt = Request(kept, kind.lm.tokenizer.source(TEXT) if kind.name == "pair" else None)
    config = with_special_tokens(generation_config({"max_tokens": 8}), kind.lm.tokenizer)
    (own,) = complete(kind.lm.model, [prompt], config)
    assert wanted["token_ids"] == list(own.ids), "it goes on from the branch"
    assert tab.page.locator("#branches button").count() >= 2
    tab.do("#branches button >> nth=-2")
    assert tab.ids() == before


def test_leaves_of_the_tree_are_what_beam_search_returns(kind: Kind) -> None:
    if kind.name == "bert":
        assert kind.tab.page.locator("#beams").is_hidden()
        return
    page = kind.tab.page
    page.fill("#beams-tokens", "5")
    page.click("#beams-go")
    page.wait_for_selector("#leaves li")
    leaves = page.locator("#leaves li").evaluate_all("all => all.map((one) => JSON.parse(one.dataset.ids))")
    tokenizer = kind.lm.tokenizer
    prompt = Request(kind.tab.ids())
    if kind.name == "pair":
        prompt = Request(tokenizer.special_tokens.decoder_start, tokenizer.source(TEXT))
    config = generation_config({"max_tokens": 5, "beams": 3, "samples": 3})
    found = complete(kind.lm.model, [prompt], with_special_tokens(config, tokenizer))
    assert len(leaves) == 3 and leaves == [one.ids for one in found]
    best = kind.lm.generate(TEXT, beams=3, max_tokens=5)
    assert best == tokenizer.decode(leaves[0]).removesuffix(tokenizer.token(256)) or leaves[0][-1] == 256
    nodes = kind.explain("beams", beams=3, max_tokens=5)["nodes"]
    assert page.locator("#tree li").count() == len(nodes)
    assert page.locator("#tree li.dead").count() == sum(not one["kept"] for one in nodes)


def test_gates_attention_and_experts_are_those_of_explain(kind: Kind) -> None:
    page, shown = kind.tab.page, SHOWN[kind.name]
    if "attention" in shown:
        maps = kind.explain("attention")
        at = len(maps) - 1
        page.wait_for_selector(f"#grid [data-map='{at} 0']")
        page.click(f"#grid [data-map='{at} 0']")
        page.wait_for_selector(f"#map[data-map='{at} 0']")
        rows, columns = maps[at]["shape"][1:]
        assert kind.tab.cell("#map", rows - 1, columns - 2, rows, columns) == pytest.approx(
            maps[at]["weights"][0][rows - 1][columns - 2], rel=1e-4
        )
        kind.tab.expect(7, 7 if kind.name == "bert" else 6)
        page.wait_for_selector("#rows .chip i", state="attached")
        marks = page.locator("#rows .chip i").evaluate_all("all => all.map((one) => Number(one.dataset.weight))")
        assert marks == pytest.approx(maps[at]["weights"][0][7 if kind.name == "bert" else 6], abs=1e-5)
        assert page.locator("#grid canvas").count() == sum(one["shape"][0] for one in maps)
    if "gates" in shown:
        cell = kind.explain("gates")[0]
        page.wait_for_selector("#cells canvas")
        unit, values = int(page.locator("#cells canvas").first.get_attribute("data-unit")), cell["values"]["forget"]
        found = kind.tab.cell("#cells canvas >> nth=0", 0, 3, len(values[0]), len(values))
        assert found == pytest.approx(values[3][unit], rel=1e-4)
    if "experts" in shown:
        layers = kind.explain("experts")
        page.wait_for_selector("#used li")
        page.locator("#rows .chip").nth(4).click()
        used = page.locator("#used li").evaluate_all("all => all.map((one) => JSON.parse(one.dataset.used))")
        assert [[pair for pair in one] for one in used] == [
            [[id, pytest.approx(gate, rel=1e-4)] for id, gate in layer["chosen"][4]] for layer in layers
        ]


def test_tasks_are_forms_with_the_answers_of_the_library(kind: Kind) -> None:
    page, lm = kind.tab.page, kind.lm
    if kind.name not in ("pair", "bert"):
        assert page.locator("#tasks").is_hidden()
        return
    text = "a [MASK]at" if kind.name == "bert" else "abc <i>def</i>"
    page.fill("#task-text", text)
    for task in ["fill"] if kind.name == "bert" else ["translate", "summarize"]:
        page.select_option("#task", task)
        if kind.name == "pair":
            page.fill("#task-beams", "2")
            page.fill("#task-tokens", "12")
        page.click("#task-go")
        page.wait_for_selector("#task-result :is(td, .written)")
        shown = page.locator("#task-result").inner_text()
        if task == "fill":
            assert f"{100 * lm.fill(text)[0].probability:.2f} %" in shown
            continue
        (wanted,) = kind.ask(f"/v1/heddle/{task}", {"texts": [text], "beams": 2, "max_tokens": 12})["data"]
        assert shown.split() == (wanted["text"] or "(nothing)").split()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@with_axe
def test_axe_finds_no_violation_of_wcag_aa(kind: Kind, scheme: str) -> None:
    page = kind.tab.page
    page.emulate_media(color_scheme=scheme)
    kind.tab.theme(scheme)
    page.wait_for_load_state("networkidle")
    if kind.name != "bert":
        page.click("#beams-go")
        page.wait_for_selector("#leaves li")
    if page.locator("#beside").is_visible():
        page.click("#beside-go")
        page.wait_for_selector("#pair tbody tr")
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        assert violations(page) == []
        kind.tab.keep(f"{kind.name}-{'phone' if size is PHONE else 'desktop'}-{scheme}")
    page.set_viewport_size(DESKTOP)


@pytest.mark.full
def test_hostile_texts_stay_texts_in_every_view(kind: Kind) -> None:
    page = kind.tab.page

    def answer(route: Any) -> None:
        response = route.fetch()
        found = response.json()
        for sequence in found.get("sequences", ()):
            sequence["tokens"] = [HOSTILE for _ in sequence["tokens"]]
        nodes = found.get("beams", {}).get("nodes", ())
        for one in [*found.get("best", ()), *nodes]:
            one["text"] = HOSTILE
        for one in [*found.get("gates", ()), *found.get("experts", ())]:
            one["name"] = HOSTILE
        route.fulfill(response=response, json=found)

    page.route("**/v1/heddle/explain", answer)
    page.route("**/v1/heddle/logits", answer)
    kind.tab.do("#look")
    page.wait_for_selector("#bars .bar")
    if kind.name != "bert":
        page.click("#beams-go")
        page.wait_for_selector("#leaves li")
    page.wait_for_load_state("networkidle")
    assert page.title() == "Heddle playground"
    assert page.locator("main img, main script").count() == 0
    shown = kind.tab.chips.nth(2).inner_text()
    assert "<script>" in shown and "\\u202e" in shown and "\\u0000" in shown and "\u202e" not in shown
    page.unroute("**/v1/heddle/explain")
    page.unroute("**/v1/heddle/logits")


@pytest.mark.full
def test_a_hostile_name_of_a_class_stays_a_text(browser: Any, others: Any) -> None:
    server, folders = others
    tab = Tab(browser, server.url, key=None)
    tab.idle()
    tab.use("classes", "a cat")
    tab.page.fill("#task-text", "a cat")
    tab.page.select_option("#task", "classify")
    tab.page.click("#task-go")
    tab.page.wait_for_selector("#task-result td")
    best = heddle.load(folders["classes"], device="cpu").classify("a cat")
    shown = tab.page.locator("#task-result").inner_text()
    assert HOSTILE[:20] in shown and f"{100 * best.probabilities['good']:.2f} %" in shown
    assert tab.page.locator("main img").count() == 0
    tab.close()
