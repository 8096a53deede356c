"""The public API to encoder-decoders: a source in, a target out; a missing or needless source told in one line."""

import math

import pytest
import torch
from cli.runs import config, loud_model
from decoding.reference import search
from tasks.pair_runs import TOKENIZER, loud_pair

from heddle.core import ConfigError, UsageError
from heddle.decoding.generation import GenerationConfig
from heddle.decoding.runtime import Request
from heddle.decoding.search import BeamSearch
from heddle.lm import LM
from heddle.models.networks import EncoderDecoder, LanguageModel
from heddle.nn.base import Context


@pytest.fixture(scope="module")
def lm() -> LM:
    return LM(loud_pair(), TOKENIZER)


@pytest.fixture(scope="module")
def writer() -> LM:
    model = loud_model(config()).eval()
    assert isinstance(model, LanguageModel)
    return LM(model, TOKENIZER)


def test_text_is_the_text_of_the_ids_of_the_source(lm: LM) -> None:
    for beams in (1, 3):
        (ids,) = lm.generate_ids([lm.tokenizer.source("the cat")], max_tokens=9, beams=beams)
        assert lm.generate("the cat", max_tokens=9, beams=beams) == TOKENIZER.decode(ids)
        assert "".join(lm.stream("the cat", max_tokens=9, beams=beams)) == TOKENIZER.decode(ids)
    both = lm.generate(["the cat", "a dog sees"], max_tokens=9, beams=2)
    assert both == [lm.generate(text, max_tokens=9, beams=2) for text in ("the cat", "a dog sees")]


def test_a_language_model_has_beams_too(writer: LM) -> None:
    generation = GenerationConfig(max_tokens=6, strategy=BeamSearch(beams=3, length_penalty=0.5)).with_special_tokens(
        TOKENIZER.end, (TOKENIZER.end,)
    )
    (best,) = search(writer.model, [Request(writer.tokenizer.encode_prompt("the"))], generation)[0]
    assert writer.generate("the", max_tokens=6, beams=3, length_penalty=0.5) == TOKENIZER.decode(best.ids)


def test_logits_are_those_of_the_decoder_given_the_source(lm: LM) -> None:
    assert isinstance(lm.model, EncoderDecoder)
    found = lm.logits([[1, 2, 3], [4, 5, 6]], source=[[7, 8, 9, 10], [11]])
    for row, (target, source) in enumerate((([1, 2, 3], [7, 8, 9, 10]), ([4, 5, 6], [11]))):
        memory = lm.model.encode(torch.tensor([source]))
        wanted = lm.model.logits(torch.tensor([target]), Context(memory=memory))[0]
        assert torch.allclose(found[row], wanted, atol=1e-4)


def test_a_score_is_the_sum_over_the_target_given_the_source(lm: LM) -> None:
    texts, sources = ["das", "ein Hund"], ["the", "a dog sees"]
    for scored, text, source in zip(lm.score(texts, source=sources), texts, sources, strict=True):
        row = lm.tokenizer.encode_prompt(text)
        probs = lm.logits([row[:-1]], source=[lm.tokenizer.source(source)]).log_softmax(-1)[0]
        wanted = probs[torch.arange(len(row) - 1), torch.tensor(row[1:])].sum()
        assert scored.logprob == pytest.approx(float(wanted), abs=1e-3)
        assert math.fsum(word.logprob for word in scored.words) == pytest.approx(scored.logprob)


def test_embeddings_are_of_the_encoder_and_stand_alone(lm: LM) -> None:
    together = lm.embed(["a", "a longer text"])
    for text, vector in zip(["a", "a longer text"], together, strict=True):
        assert torch.allclose(vector, lm.embed([text])[0], atol=1e-5)


def test_a_missing_and_a_needless_source_are_refused(lm: LM, writer: LM) -> None:
    for call, message in (
        (lambda: lm.score(["a"]), "score: an encoder-decoder needs source="),
        (lambda: lm.score(["a"], source=["b"], window=4), "score: want no window"),
        (lambda: lm.score(["a"], source="b"), "want a list of texts"),
        (lambda: lm.score(["a", "b"], source=["b"]), "source: want 2"),
        (lambda: lm.logits([[1]]), "logits: want source="),
        (lambda: lm.logits([[1]], source=[[1], [2]]), "logits: want source="),
        (lambda: writer.score(["a"], source=["b"]), "score: want no source"),
        (lambda: writer.logits([[1]], source=[[2]]), "logits: source is only used by an encoder-decoder"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


def test_an_unknown_option_is_named_with_the_nearest(lm: LM) -> None:
    with pytest.raises(ConfigError, match="did you mean 'beams'"):
        lm.generate("a", beam=2)  # type: ignore[call-arg]
