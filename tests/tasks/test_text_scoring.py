"""Scores are those of plain sums over softmaxes, for every form of model; words add up to their text."""

import math
import re
from pathlib import Path

import pytest
import torch
from cli.runs import CONTEXT, config, loud_model, save_run
from hypothesis import given, settings
from hypothesis import strategies as st
from tasks.pair_runs import loud_pair

import heddle
from heddle.core import ConfigError, DamageError, UsageError
from heddle.lm import LM
from heddle.models.networks import Encoder
from heddle.nn.base import Context
from heddle.text.tokenizers import (
    MASK,
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    word_start_ids,
)

STORY = [
    "the cat sat on the mat, and the dog sat on the log\n" * 30,
    "".join(f"then {i} met {i + 1}\n" for i in range(99)),
]
BYTES = ByteTokenizer(special=(MASK,)).train([])
BPE = BpeTokenizer(vocab=290).train(STORY)
KINDS: dict[str, Tokenizer] = {
    "byte": BYTES,
    "character": CharacterTokenizer().train(STORY),
    "word": WordTokenizer().train(STORY),
    "bpe": BPE,
    "wordpiece": WordPieceTokenizer(vocab=50).train(STORY),
    "unigram": UnigramTokenizer(vocab=265).train(STORY),
}


def writer(tokenizer: Tokenizer = BYTES, name: str = "first") -> LM:
    return LM(loud_model(config(name, vocab=tokenizer.vocab)).eval(), tokenizer)


def encoder(tokenizer: Tokenizer = BYTES) -> LM:
    return LM(loud_model(config("bert-base-masked", vocab=tokenizer.vocab)).eval(), tokenizer)


def logprobs_after(lm: LM, ids: list[int]) -> torch.Tensor:
    return lm.logits([[lm.tokenizer.end, *ids]])[0, -1].double().log_softmax(-1)


# --- words ------------------------------------------------------------------------------------------------------------


WRITERS = {name: writer(tokenizer) for name, tokenizer in KINDS.items()}
ANY = st.characters(exclude_categories=["Cs"])


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.one_of(st.text(ANY, max_size=20), st.lists(st.sampled_from(STORY[0].split())).map(" ".join)))
@settings(max_examples=15, deadline=None)
def test_words_add_up_to_the_text_whatever_the_tokenizer(kind: str, text: str) -> None:
    for scored in WRITERS[kind].score([text], spaces="before"):
        total = math.fsum(word.logprob for word in scored.words)
        assert total == pytest.approx(scored.logprob, abs=1e-5)
        assert total == pytest.approx(math.fsum(token.logprob for token in scored.tokens), abs=1e-5)
        assert " ".join(word.text for word in scored.words).split() == text.split()


def test_unknown_tokens_are_counted_and_their_words_told() -> None:
    known, unknown = WRITERS["word"].score(["the cat sat", "the zebra sat"])
    assert (known.unknown, unknown.unknown) == (0, 1)
    assert [piece.text for piece in unknown.words] == ["the", "zebra", "sat"]
    assert unknown.words[1].logprob == unknown.tokens[1].logprob
    assert WRITERS["byte"].score(["zebra"])[0].unknown == 0


@pytest.mark.parametrize("kind", ["byte", "bpe", "character"])
def test_a_word_may_hold_the_probability_that_it_ends(kind: str) -> None:
    lm, text = WRITERS[kind], "the cat  sat\non the mat"
    ends = torch.tensor(word_start_ids(lm.tokenizer))
    (scored,) = lm.score([text], spaces="after")
    ids, starts = lm.tokenizer.encode(text), [start for start, _ in lm.tokenizer.spans(text)]
    total, first = 0.0, 0
    for number, found in enumerate(re.finditer(r"\S+", text)):
        stop = sum(start < found.end() for start in starts)
        wanted = sum(float(logprobs_after(lm, ids[:i])[ids[i]]) for i in range(first, stop))
        if number:  # given that the word before ended
            wanted -= float(logprobs_after(lm, ids[:first])[ends].logsumexp(-1))
        if stop < len(ids):  # and that this one ends
            wanted += float(logprobs_after(lm, ids[:stop])[ends].logsumexp(-1))
        assert scored.words[number].logprob == pytest.approx(wanted, abs=1e-4), found
        total, first = total + wanted, stop
    assert total == pytest.approx(scored.logprob, abs=1e-3)
    assert math.fsum(word.logprob for word in scored.words) == pytest.approx(scored.logprob, abs=1e-9)


def test_spaces_after_need_tokens_that_begin_with_them() -> None:
    for kind in ("word", "wordpiece"):
        with pytest.raises(UsageError, match="spaces: want before, since no token"):
            WRITERS[kind].score(["the cat"], spaces="after")
    with pytest.raises(UsageError, match="spaces: want before, since an encoder"):
        encoder().score(["the cat"], spaces="after")


def test_surprisal_agrees_with_a_plain_softmax_over_gpt2_of_transformers() -> None:
    pytest.importorskip("transformers")
    from models import test_hugging_face as hf

    shape = {"n_layer": hf.LAYERS, "n_embd": hf.WIDTH, "n_head": hf.HEADS, "n_positions": 64}
    theirs = hf.shaken(hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=BPE.vocab, **shape))).eval()
    dials = {"layers": hf.LAYERS, "width": hf.WIDTH, "heads": hf.HEADS, "vocab": BPE.vocab, "context": 64}
    ours = heddle.build("gpt2", **dials).eval()
    ours.load_weights(hf.gpt2_weights(dict(theirs.state_dict())))
    texts = ["the cat sat on the mat", "then 12 met naïve 日本", " and the", "x"]
    for text, scored in zip(texts, LM(ours, BPE).score(texts), strict=True):
        ids = torch.tensor([BPE.end, *BPE.encode(text)])
        with torch.no_grad():
            logprobs = theirs(ids[None, :-1]).logits[0].log_softmax(-1).gather(1, ids[1:, None])[:, 0].tolist()
        assert [token.logprob for token in scored.tokens] == pytest.approx(logprobs, abs=1e-5)
        assert scored.logprob == pytest.approx(math.fsum(logprobs), abs=1e-5 * len(logprobs))
        words: list[float] = []
        for token, logprob in zip(scored.tokens, logprobs, strict=True):  # a token with a space begins a word
            if not words or token.text[0].isspace():
                words.append(0.0)
            words[-1] += logprob
        assert [word.logprob for word in scored.words] == pytest.approx(words, abs=1e-5)
        assert math.fsum(word.logprob for word in scored.words) == pytest.approx(scored.logprob, abs=1e-5)


# --- contexts and sources ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["first", "gpt2", "lstm_lm"])
def test_a_text_after_a_context_is_the_difference_of_two_scores(name: str) -> None:
    lm = writer(name=name)
    texts, contexts = ["two", "", "four five"], ["one ", "one", ""]
    found = lm.score(texts, context=contexts)
    for text, context, scored in zip(texts, contexts, found, strict=True):
        whole, before = lm.score([context + text, context])
        assert scored.logprob == pytest.approx(whole.logprob - before.logprob, abs=1e-4)
        assert [t.text for t in scored.tokens] == list(text)


def test_a_target_after_a_context_is_the_difference_of_two_scores() -> None:
    lm = LM(loud_pair(), ByteTokenizer().train([]))
    sources = ["the cat", "a"]
    found = lm.score(["Katze", "ein Hund"], context=["das ", ""], source=sources)
    whole, before = (lm.score(texts, source=sources) for texts in (["das Katze", "ein Hund"], ["das ", ""]))
    for each in zip(found, whole, before, strict=True):
        assert each[0].logprob == pytest.approx(each[1].logprob - each[2].logprob, abs=1e-4)


@pytest.mark.parametrize("length", [3, CONTEXT // 2, CONTEXT - 3])
def test_a_text_keeps_as_much_of_a_long_context_as_fits(length: int) -> None:
    lm = writer()
    context, text = "0123456789" * 20, "abcdefghijklmnopqrstuvwxyz" * 2
    (scored,) = lm.score([text[:length]], context=[context])
    ids = BYTES.encode(context + text[:length])
    keep = max(CONTEXT - length + 1, CONTEXT - CONTEXT // 2)  # what stands before the text in its first window
    row = ids[-length - keep :]
    for place, token in enumerate(scored.tokens):
        at = keep + place
        start = 0 if at <= CONTEXT else CONTEXT // 2
        wanted = lm.logits([row[start:at]])[0, -1].log_softmax(-1)[row[at]]
        assert token.logprob == pytest.approx(float(wanted), abs=1e-4)


def test_a_target_may_hold_the_spaces_after_its_words() -> None:
    lm = LM(loud_pair(), ByteTokenizer().train([]))
    (before,), (after,) = (lm.score(["ein Hund"], source=["a dog"], spaces=which) for which in ("before", "after"))
    assert [w.text for w in before.words] == [w.text for w in after.words] == ["ein", "Hund"]
    assert after.logprob == before.logprob == pytest.approx(math.fsum(w.logprob for w in after.words), abs=1e-9)
    assert after.words[0].logprob < before.words[0].logprob  # that it ends is not certain


# --- encoders ---------------------------------------------------------------------------------------------------------


def told(lm: LM, row: list[int], place: int, hidden: range) -> float:
    """Hide tokens of one row and return the log-probability of one of them."""
    assert isinstance(lm.model, Encoder)
    shown = [BYTES.special[MASK] if i in hidden else id for i, id in enumerate(row)]
    with torch.no_grad():
        scores = lm.model.scores("masked_token", torch.tensor([shown]), Context())
    return float(scores[0, place].log_softmax(-1)[row[place]])


@pytest.mark.parametrize("hide", ["token", "rest", "word"])
def test_an_encoder_tells_each_hidden_token_from_the_others(hide: str) -> None:
    lm = encoder()
    texts, contexts = ["two words", "a", "", "naïve  x"], ["", "after ", "b", ""]
    found = lm.score(texts, context=contexts, hide=hide)  # type: ignore[arg-type]
    for text, context, scored in zip(texts, contexts, found, strict=True):
        row = [BYTES.end, *context.encode(), *text.encode()]
        before = len(row) - len(text.encode())
        edges = [0, *(i for i, byte in enumerate(text.encode()) if byte == 32 and text.encode()[i - 1] != 32), 99]
        for place, token in enumerate(scored.tokens):
            first = max(edge for edge in edges if edge <= place)
            last = min(len(text.encode()), min(edge for edge in edges if edge > place))
            start, stop = {"token": (place, place + 1), "rest": (place, last), "word": (first, last)}[hide]
            wanted = told(lm, row, before + place, range(before + start, before + stop))
            assert token.logprob == pytest.approx(wanted, abs=1e-4)
        assert math.fsum(w.logprob for w in scored.words) == pytest.approx(scored.logprob, abs=1e-9)


def test_a_run_of_an_encoder_loads_scores_and_embeds_but_does_not_write(tmp_path: Path) -> None:
    save_run(tmp_path / "run", config("bert-base-masked", vocab=BYTES.vocab), tokenizer=BYTES)
    lm = heddle.load(tmp_path / "run")
    texts = ["two words", "a"]
    for text, scored in zip(texts, lm.score(texts), strict=True):
        assert scored.logprob == pytest.approx(lm.score([text])[0].logprob, abs=1e-4)
    together = lm.embed(texts)
    assert torch.allclose(together[1], lm.embed(["a"])[0], atol=1e-5)
    assert lm.logits([[1, 2, 3]]).shape == (1, 3, BYTES.vocab)
    for call in (
        lambda: lm.generate("a"),
        lambda: lm.generate_ids([[1]]),
        lambda: list(lm.stream("a")),
        lambda: lm.generate("a", beams=2),
    ):
        with pytest.raises(UsageError, match="want an autoregressive model"):
            call()


def test_what_an_encoder_cannot_do_is_told() -> None:
    lm = encoder()
    plain = LM(loud_model(config("bert-base", vocab=BYTES.vocab)), BYTES)
    bare = LM(lm.model, ByteTokenizer().train([]))
    for call, hint in (
        (lambda: lm.score(["x" * CONTEXT]), f"context of {CONTEXT}"),
        (lambda: lm.score(["x"], source=["y"]), "score: want no source, since an encoder"),
        (lambda: lm.score(["x"], window=8), "score: want no window, since an encoder reads"),
        (lambda: plain.score(["x"]), "with the output masked_token; it has: none"),
        (lambda: bare.score(["x"]), "score: want a tokenizer with a mask"),
        (lambda: writer().score(["x"], hide="rest"), "hide: want token"),
        (lambda: writer().score(["x"], context=["y", "z"]), "context: want 1, one for each text, got 2"),
        (lambda: writer().score(["x"], context="y"), "want a list of texts"),
    ):
        with pytest.raises(UsageError, match=hint.replace("|", r"\|")):
            call()
    with pytest.raises(ConfigError, match="did you mean 'window'"):
        writer().score(["x"], windw=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="spaces: want before or after"):
        writer().score(["x"], spaces="between")  # type: ignore[arg-type]


def test_a_model_without_finite_logprobs_is_damaged() -> None:
    lm = writer()
    with torch.no_grad():
        next(lm.model.parameters()).fill_(math.nan)
    with pytest.raises(DamageError, match="log-probabilities are not finite"):
        lm.score(["a"])


def test_the_mask_of_scoring_is_that_of_training() -> None:
    from heddle.objectives import masked_token

    assert masked_token.MASK == MASK
