"""Encoders: masked tokens one by one, masks in the text, classes."""

import pytest
import torch
from cli.runs import config, loud_model

from heddle.core import UsageError
from heddle.explain import explain
from heddle.lm import LM
from heddle.models.networks import EncoderConfig
from heddle.models.presets import build
from heddle.nn.outputs import SequenceClassOutputConfig
from heddle.text.tokenizers import MASK, ByteTokenizer

TOKENIZER = ByteTokenizer(special=(MASK,)).train([])


def masked() -> LM:
    return LM(loud_model(config("bert-base-masked", vocab=TOKENIZER.vocab)).eval(), TOKENIZER)


def test_surprisal_is_the_pseudo_log_likelihood_of_score() -> None:
    lm = masked()
    found = lm.explain("a cat", what="probabilities")["probabilities"]
    scored = [one.logprob for one in lm.score("a cat").tokens]
    assert found.predicts == "masked token"
    assert list(found.logprobs[-len(scored) :]) == pytest.approx(scored, abs=1e-4)


def test_a_mask_is_filled_in_and_explained() -> None:
    lm = masked()
    found = lm.explain("a [MASK]at", what="probabilities,attribution,attention")
    place = found.sequences[0].ids.index(TOKENIZER.special_tokens.mask)
    shown = found["probabilities"]
    assert shown.logprobs[place] is None and shown.places[place].best[0].probability > 0
    best = lm.fill("a [MASK]at")[0]
    assert shown.places[place].best[0].id == best.id
    assert shown.places[place].best[0].probability == pytest.approx(best.probability, abs=1e-5)
    assert found["attribution"].target == TOKENIZER.token(best.id)
    rival = lm.explain("a [MASK]at", what="attribution", target="c", instead="b")["attribution"]
    probabilities = torch.tensor([one for one in lm.logits([list(found.sequences[0].ids)])[0, place].log_softmax(-1)])
    wanted = probabilities[TOKENIZER.encode("c")[0]] - probabilities[TOKENIZER.encode("b")[0]]
    assert rival.score == pytest.approx(float(wanted), abs=1e-4)


def test_a_class_is_explained_by_name() -> None:
    network = config("bert-base-masked", vocab=TOKENIZER.vocab).expand()
    assert isinstance(network, EncoderConfig)
    classes = SequenceClassOutputConfig(classes=3, labels=("good", "bad", "odd"))
    lm = LM(loud_model(network.with_output(classes)).eval(), TOKENIZER)
    found = lm.explain("a cat", what="probabilities,attribution", target="bad", instead="good")
    (place,) = found["probabilities"].places
    assert {one.text for one in place.best} == {"good", "bad", "odd"}
    by_name = {one.text: one.logit for one in place.best}
    assert found["attribution"].score == pytest.approx(by_name["bad"] - by_name["good"], abs=1e-4)
    assert "the class of the text" in str(found) and "classes" not in str(found) and "good" in str(found)
    with pytest.raises(UsageError, match="target: want one of good, bad, odd, got 'god'"):
        lm.explain("a cat", what="attribution", target="god")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("lens", "lens: want layers that only add to the stream"),
        ("beams", "beams: want a model that writes text, got an encoder"),
        ("attribution", "target: want a text with a mask, such as .MASK., for an encoder, got none"),
    ],
)
def test_what_an_encoder_cannot_show_is_refused(what: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        masked().explain("a cat", what=what)


def test_images_are_refused() -> None:
    model = build("vit-base-16", layers=1, width=16, heads=2)
    with pytest.raises(UsageError, match="explain: want a model of texts, got one of images"):
        explain(model, None, [1, 2])
