"""Evaluation counts every token of every document once, and its numbers agree with their definitions."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli.runs import CONTEXT, TOKENIZER, config, loud_model
from tasks.pair_runs import loud_pair

from heddle.core import ConfigError, DataError, UsageError
from heddle.core import replace as replace_field
from heddle.data.shards import Shards, ShardWriter, prepare
from heddle.data.sources import CorpusConfig, FileSplit, JsonlSource, TextSource
from heddle.lm import LM
from heddle.models.networks import LanguageModel
from heddle.tasks.scoring import ScoringInput, evaluate, evaluate_pairs, text_scorer
from heddle.text.tokenizers import MASK, SequenceTemplate, Tokenizer, WordTokenizer
from heddle.text.tokenizers.tokenizer import Pipeline

TEXTS = ["A first document.", "the second,\nwith naïve words", "x", "long " * 40]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    made = loud_model(config()).eval()
    assert isinstance(made, LanguageModel)
    return made


def shards(folder: Path, end: int = TOKENIZER.end) -> Shards:
    with ShardWriter(folder, vocab=TOKENIZER.vocab, end=end, fingerprint="f") as writer:
        for text in TEXTS:
            writer.add(TOKENIZER.encode(text), bytes=len(text.encode()), words=len(text.split()))
    return Shards.open(folder)


def test_counts_are_those_of_the_texts(model: LanguageModel) -> None:
    found = evaluate(model, TOKENIZER, TEXTS)
    assert found.documents == len(TEXTS)
    assert found.bytes == sum(len(text.encode()) for text in TEXTS)
    assert found.words == sum(len(text.split()) for text in TEXTS)
    assert found.tokens == found.bytes + len(TEXTS)  # bytes, and the end of each document
    assert (found.window, found.stride) == (CONTEXT, CONTEXT // 2)


def test_numbers_follow_from_the_nats(model: LanguageModel) -> None:
    found = evaluate(model, TOKENIZER, TEXTS)
    assert found.loss == pytest.approx(found.nats / found.tokens)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert found.word_perplexity == pytest.approx(math.exp(found.nats / found.words))
    assert found.bits_per_byte == pytest.approx(found.nats / found.bytes / math.log(2))
    assert found.plain()["bits_per_byte"] == found.bits_per_byte


def test_a_document_costs_what_the_model_says_its_end_included(model: LanguageModel) -> None:
    row = [TOKENIZER.end, *TOKENIZER.encode("abc"), TOKENIZER.end]
    logprobs = model.logits(torch.tensor([row[:-1]])).log_softmax(-1)[0]
    wanted = -sum(logprobs[i, target].item() for i, target in enumerate(row[1:]))
    assert evaluate(model, TOKENIZER, ["abc"]).nats == pytest.approx(wanted, rel=1e-5)


def test_shards_and_texts_give_the_same(model: LanguageModel, tmp_path: Path) -> None:
    stored, read = evaluate(model, TOKENIZER, shards(tmp_path / "s")), evaluate(model, TOKENIZER, iter(TEXTS))
    assert stored.nats == pytest.approx(read.nats, rel=1e-6)
    assert stored.plain().keys() == read.plain().keys()
    assert (stored.tokens, stored.words, stored.bytes) == (read.tokens, read.words, read.bytes)


def test_ids_that_open_a_stored_document_are_no_targets(model: LanguageModel, tmp_path: Path) -> None:
    opening = replace(TOKENIZER.special_tokens, text=SequenceTemplate(before=(TOKENIZER.end, 5, 7)))
    tokenizer = Tokenizer(Pipeline.from_str(json.dumps(TOKENIZER.to_json())), opening)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    source = JsonlSource(path=str(tmp_path / "texts.jsonl"))
    (tmp_path / "train.txt").write_text("one to train on")
    corpus = CorpusConfig(sources=(TextSource(path=str(tmp_path / "train.txt")),), split=FileSplit(source=source))
    stored = evaluate(model, tokenizer, Shards.open(prepare(corpus, tokenizer, tmp_path / "out").valid))
    read = evaluate(model, tokenizer, TEXTS)
    assert (stored.tokens, stored.words, stored.bytes) == (read.tokens, read.words, read.bytes)
    assert stored.nats == pytest.approx(read.nats, rel=1e-6)


def test_bits_per_byte_count_what_unknown_tokens_hide(tmp_path: Path) -> None:
    words = WordTokenizer(vocab=4).train(["the " * 9 + "cat " * 5])
    made = loud_model(replace_field(config(), vocab=words.vocab)).eval()
    text = "the dog, the bird and the naïve cat"
    lost = len("dog,birdandnaïve".encode())
    for found in (evaluate(made, words, [text]), evaluate(made, words, iter([text]))):
        assert (found.unknown, found.lost) == (5, lost)
        assert found.bits_per_byte == pytest.approx((found.nats / math.log(2) + 8 * lost) / len(text.encode()))
        assert found.bits_per_byte > 3
    scored = text_scorer(made, words).run([ScoringInput(text)])[0]
    assert scored.bits_per_byte == pytest.approx((scored.surprisal + 8 * lost) / len(text.encode()))


def test_documents_do_not_see_each_other(model: LanguageModel) -> None:
    alone = sum(evaluate(model, TOKENIZER, [text]).nats for text in TEXTS)
    assert evaluate(model, TOKENIZER, TEXTS).nats == pytest.approx(alone, rel=1e-6)
    assert evaluate(model, TOKENIZER, TEXTS[::-1]).nats == pytest.approx(alone, rel=1e-6)


def test_a_uniform_model_costs_the_log_of_the_vocabulary() -> None:
    flat = config().build(0)
    assert isinstance(flat, LanguageModel)
    with torch.no_grad():
        for weight in flat.parameters():
            weight.zero_()
    found = evaluate(flat, TOKENIZER, TEXTS, window=10, stride=3)
    assert found.loss == pytest.approx(math.log(TOKENIZER.vocab), rel=1e-6)
    assert (found.window, found.stride) == (10, 3)


def test_nothing_to_measure_is_told(model: LanguageModel) -> None:
    with pytest.raises(DataError, match="one document or more"):
        evaluate(model, TOKENIZER, [])


def test_shards_of_another_tokenizer_are_refused(model: LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="another"):
        evaluate(model, TOKENIZER, shards(tmp_path / "s", end=0))


# --- encoders and encoder-decoders ------------------------------------------------------------------------------------


def test_an_encoder_is_measured_by_pseudo_log_likelihood_in_windows() -> None:
    tokenizer = TOKENIZER.with_special([MASK])
    made = loud_model(replace_field(config("bert-base-masked"), vocab=tokenizer.vocab)).eval()
    found = evaluate(made, tokenizer, TEXTS, window=20)
    scorer = text_scorer(made, tokenizer)
    pieces = [text[i : i + 20] for text in ("A first document.", "x", "long " * 40) for i in range(0, len(text), 20)]
    naive = TEXTS[1].encode()
    assert (found.measure, found.window, found.documents) == ("pseudo-log-likelihood", 20, len(TEXTS))
    assert found.tokens == found.bytes  # no ends
    some = evaluate(made, tokenizer, ["A first document.", "x", "long " * 40], window=20)
    scores = scorer.run([ScoringInput(piece) for piece in pieces])
    assert some.nats == pytest.approx(-sum(one.logprob for one in scores), rel=1e-5)
    assert found.tokens - some.tokens == len(naive)
    for wrong in ({"stride": 3}, {"carry": True}):
        with pytest.raises(UsageError, match="has no effect on an encoder"):
            evaluate(made, tokenizer, TEXTS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"window: want 1 to {CONTEXT - 1} tokens"):
        evaluate(made, tokenizer, TEXTS, window=CONTEXT)


def test_an_encoder_decoder_is_measured_on_targets_given_sources() -> None:
    model = loud_pair()
    pairs = [("the cat", "die Katze"), ("a dog", "ein Hund"), ("big", "gro\u00df")]
    found = evaluate_pairs(model, TOKENIZER, pairs)
    lm = LM(model, TOKENIZER)
    inner = sum(lm.score(target, source=source).logprob for source, target in pairs)
    ends = 0.0
    for source, target in pairs:
        ids = [TOKENIZER.end, *TOKENIZER.encode(target)]
        ends += lm.logits([ids], source=[TOKENIZER.source(source)])[0, -1].log_softmax(-1)[TOKENIZER.end].item()
    assert found.nats == pytest.approx(-(inner + ends), rel=1e-5) and found.measure == "teacher-forced"
    assert found.tokens == sum(len(target.encode()) + 1 for _, target in pairs) and found.documents == 3
    with pytest.raises(UsageError, match="want pairs of a source and a target for an encoder-decoder"):
        evaluate(model, TOKENIZER, TEXTS)
