"""CTC decoding: prefix beams and joint search equal exhaustive search; scores are those of every path."""

from itertools import product

import numpy as np
import pytest
import torch
from laws.cases import CONTEXT, ENCODERS, SMALL, as_source, ids

from heddle.core import replace
from heddle.decoding.ctc import (
    CtcPrefixScorer,
    JointBeamSearch,
    JointDecoder,
    PrefixBeamSearch,
    PrefixLanguageModel,
    best_path,
    prefix_beam_search,
)
from heddle.models.presets import build
from heddle.nn.base import Context
from heddle.nn.outputs import CtcOutput, CtcOutputConfig, collapse, needed_frames

TOKENS, FRAMES = 3, 5


def frames(seed: int, count: int = FRAMES, tokens: int = TOKENS) -> np.ndarray:
    """Draw the log-probabilities of tokens and the blank at each frame."""
    draw = np.random.default_rng(seed).normal(0, 1.5, (count, tokens + 1))
    return np.asarray(draw - np.logaddexp.reduce(draw, axis=1, keepdims=True))


def every_text(logprobs: np.ndarray) -> dict[tuple[int, ...], float]:
    """Return the log-probability of each text: of all its paths, one by one."""
    found: dict[tuple[int, ...], float] = {}
    blank = logprobs.shape[1] - 1
    for path in product(range(blank + 1), repeat=len(logprobs)):
        text = tuple(collapse(list(path), blank))
        found[text] = np.logaddexp(found.get(text, -np.inf), logprobs[range(len(path)), path].sum())
    return found


def language_model(vocab: int = TOKENS + 1) -> PrefixLanguageModel:
    """Return a small language model whose last token ends a text."""
    model = build("lstm_lm", **SMALL["lstm_lm"], vocab=vocab, context=CONTEXT, seed=3).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return PrefixLanguageModel(model, [vocab - 1], CONTEXT)  # type: ignore[arg-type]


def lm_scores(lm: PrefixLanguageModel, texts: list[tuple[int, ...]]) -> dict[tuple[int, ...], float]:
    """Return the log-probability of each text and its end, read at once."""
    end = lm.start[0]
    found = {}
    for text in texts:
        logprobs = lm.model.logits(torch.tensor([[end, *text]])).double().log_softmax(-1)[0]
        found[text] = sum(float(logprobs[place, token]) for place, token in enumerate([*text, end]))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_prefix_beam_search_with_all_beams_is_exhaustive(seed: int) -> None:
    logprobs = frames(seed)
    wanted = every_text(logprobs)
    found = prefix_beam_search(logprobs, PrefixBeamSearch(beams=1000, tokens=TOKENS))
    assert {one.ids: one.score for one in found if one.score > -np.inf} == pytest.approx(wanted, abs=1e-9)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert np.logaddexp.reduce([one.score for one in found]) == pytest.approx(0.0, abs=1e-9)
    greedy = best_path(logprobs)
    assert greedy.score <= wanted[greedy.ids] + 1e-12


@torch.inference_mode()
@pytest.mark.parametrize("seed", range(2))
def test_prefix_beam_search_adds_the_language_model(seed: int) -> None:
    logprobs, lm = frames(seed), language_model()
    wanted = every_text(logprobs)
    said = lm_scores(lm, list(wanted))
    search = PrefixBeamSearch(beams=1000, tokens=TOKENS, lm_weight=0.7, length_bonus=0.4)
    found = prefix_beam_search(logprobs, search, lm, end=TOKENS)
    fused = {text: wanted[text] + 0.7 * said[text] + 0.4 * len(text) for text in wanted}
    assert {one.ids: one.score for one in found if one.score > -np.inf} == pytest.approx(fused, abs=1e-6)
    best = max(fused, key=lambda text: fused[text])
    assert found[0].ids == best and found[0].scores["lm"] == pytest.approx(said[best], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_prefix_score_is_that_of_all_texts_that_begin_so(seed: int) -> None:
    logprobs = frames(seed)
    texts, scorer = every_text(logprobs), CtcPrefixScorer(logprobs)
    forward, begun = scorer.start, list[int]()
    for token in (1, 1, 0):
        lasts = np.array([begun[-1] if begun else -1])
        scores, paths = scorer.extend(forward[None], lasts, np.arange(TOKENS)[None])
        for other in range(TOKENS):
            prefix = (*begun, other)
            wanted = [score for text, score in texts.items() if text[: len(prefix)] == prefix]
            assert scores[0, other] == pytest.approx(np.logaddexp.reduce(wanted), abs=1e-9)
            assert scorer.end(paths[0, other]) == pytest.approx(texts[prefix], abs=1e-9)
        forward, begun = paths[0, token], [*begun, token]


@torch.inference_mode()
@pytest.mark.parametrize(("ctc", "lm_weight"), [(0.0, 0.0), (0.4, 0.0), (0.4, 0.5), (0.999, 0.0)])
@pytest.mark.parametrize("preset", ["speech_transformer", "speech_lstm"])
def test_joint_search_with_all_beams_is_exhaustive(preset: str, ctc: float, lm_weight: float) -> None:
    vocab, longest = 4, 3
    model = build(preset, **SMALL[preset], vocab=vocab, context=CONTEXT)
    model = model.config.with_ctc(CtcOutputConfig()).build(7).double().eval()
    for weight in model.parameters():
        weight.mul_(2)
    source = torch.randn(1, 14, 5, generator=torch.Generator().manual_seed(1)).double()
    memory = model.encode(source)
    output = model.output("ctc")
    assert isinstance(output, CtcOutput)
    logprobs = output.scores(memory.layers[-1], Context()).log_softmax(-1)[0].numpy()
    texts, lm = every_text(logprobs), language_model(vocab)
    said = lm_scores(lm, [t for n in range(longest) for t in product(range(vocab - 1), repeat=n)])
    wanted = {}
    for text, begun in said.items():
        logits = model.logits(torch.tensor([[vocab - 1, *text]]), Context(memory=memory)).log_softmax(-1)[0]
        attention = sum(float(logits[place, token]) for place, token in enumerate([*text, vocab - 1]))
        path = texts.get(text, -np.inf) if ctc else 0.0
        wanted[text] = (1 - ctc) * attention + (ctc * path if ctc else 0.0) + lm_weight * begun + 0.2 * len(text)
    wanted = {text: score for text, score in wanted.items() if score > -np.inf}
    search = JointBeamSearch(
        beams=200, ctc_weight=ctc, lm_weight=lm_weight, length_bonus=0.2, tokens=vocab, max_tokens=longest
    )
    scorer = CtcPrefixScorer(logprobs) if ctc else None
    run = JointDecoder(model, memory, search, (vocab - 1,), vocab - 1, scorer, lm if lm_weight else None)
    found = {one.ids: one.score for one in run.run()}
    assert found == pytest.approx(wanted, abs=1e-6)
    narrow = replace(search, beams=3, tokens=2)
    few = JointDecoder(model, memory, narrow, (vocab - 1,), vocab - 1, scorer, lm if lm_weight else None).run()
    assert all(one.score == pytest.approx(found[one.ids], abs=1e-6) for one in few) and few


def test_the_loss_and_its_gradients_are_those_of_torch_row_by_row() -> None:
    draw = torch.Generator().manual_seed(5)
    scores = torch.randn(4, 9, 6, generator=draw, dtype=torch.float64).requires_grad_()
    labels, lengths = (
        torch.tensor([[1, 1, 2, -1], [4, -1, -1, -1], [0, 3, 0, 3], [2, 2, 2, 2]]),
        torch.tensor([9, 3, 7, 6]),
    )
    output = CtcOutputConfig().build(5, 8)
    assert isinstance(output, CtcOutput)
    losses = output.score_nll(scores, labels, lengths=lengths)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    for row in range(3):
        alone = scores.detach()[row : row + 1, : lengths[row]].clone().requires_grad_()
        text = labels[row][labels[row] >= 0]
        wanted = torch.nn.functional.ctc_loss(
            alone.log_softmax(-1).transpose(0, 1), text[None], (int(lengths[row]),), (len(text),), 5, reduction="sum"
        )
        (own,) = torch.autograd.grad(wanted, alone)
        assert torch.allclose(losses[row], wanted, atol=1e-12)
        assert torch.allclose(gradient[row, : lengths[row]], own[0], atol=1e-12)
        assert not gradient[row, lengths[row] :].any()
        paths = every_text(alone.detach().log_softmax(-1)[0].numpy()) if row == 1 else None
        assert paths is None or -paths[(4,)] == pytest.approx(float(losses[row].detach()))
    assert needed_frames(labels).tolist() == [4, 1, 4, 7]
    assert float(losses[3].detach()) == 0 and not gradient[3].any()  # four tokens alike need seven frames
    with pytest.raises(Exception, match="smoothing"):
        output.score_nll(scores, labels, smoothing=0.1)


def test_a_ctc_encoder_scores_padded_rows_as_alone() -> None:
    model = build("speech_ctc", **ENCODERS["speech_ctc"], vocab=23, context=CONTEXT).double().eval()
    rows, lengths = as_source(model, ids(3, 30)), torch.tensor([30, 17, 9])
    with torch.no_grad():
        found = model.scores("ctc", rows, Context(lengths=lengths))
        for row, length in enumerate(lengths.tolist()):
            alone = model.scores("ctc", rows[row : row + 1, :length])
            assert torch.allclose(found[row, : alone.shape[1]], alone[0], atol=1e-12)
