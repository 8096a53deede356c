"""Encoders: published parameter counts, outputs by name, and refusals in one line."""

import pytest
import torch

from heddle.core import ConfigError, UsageError, replace
from heddle.models import summarize
from heddle.models.presets import build, preset
from heddle.models.presets.encoders import table_of
from heddle.nn.base import Context
from heddle.nn.ends import FullEmbeddingConfig, NarrowEmbeddingConfig, SegmentedEmbeddingConfig
from heddle.nn.outputs import EmbeddingOutputConfig, MaskedTokenOutputConfig, SequenceClassOutputConfig
from heddle.nn.sources import PatchEmbeddingConfig

SMALL = {"layers": 1, "width": 8, "heads": 2, "vocab": 11, "context": 6, "dropout": 0.0}

# As `transformers` counts them, and their papers where these give a number.
PUBLISHED = {
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "bert-base-pretraining": 110_106_428,
    "scibert": 109_918_464,
    "roberta-base": 124_645_632,
    "roberta-large": 355_359_744,
    "distilbert": 66_362_880,
    "albert-base": 11_683_584,
    "albert-large": 17_683_968,
    "vit-base-16": 86_567_656,
    "vit-large-16": 304_326_632,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_published(name: str) -> None:
    assert summarize(preset(name).config()).parameters == PUBLISHED[name]


def test_an_encoder_has_no_flops_of_a_head_that_it_lacks() -> None:
    bare, headed = (summarize(preset(name).config()) for name in ("distilbert", "distilbert-masked"))
    width, vocab = 768, 30_522
    assert headed.flops_per_token_forward - bare.flops_per_token_forward == 2 * width * (width + vocab)


def test_a_head_for_masked_tokens_shares_the_table() -> None:
    for name in ("bert-base-masked", "distilbert-masked", "albert-base-masked"):
        model = build(name, **SMALL)
        table = model.get_parameter(f"embedding.{table_of(model.config.embedding)}")
        assert model.output("masked_token").head.weight is table


def test_the_second_segment_changes_what_is_understood() -> None:
    model, ids = build("bert-base", **SMALL).eval(), torch.arange(5)[None]
    first, second = torch.zeros(1, 5, dtype=torch.long), torch.ones(1, 5, dtype=torch.long)
    torch.testing.assert_close(model(ids), model(ids, Context(segments=first)))
    assert not torch.allclose(model(ids), model(ids, Context(segments=second)))


def test_an_output_is_found_by_name_or_refused_in_one_line() -> None:
    model = build("bert-base-pretraining", **SMALL)
    assert model.output("next_sentence").reads == "pooled"
    with pytest.raises(UsageError, match="no output called 'masked_tokens'; did you mean 'masked_token'"):
        model.output("masked_tokens")
    with pytest.raises(UsageError, match="it has none"):
        build("distilbert", **SMALL).output("span")


def test_what_cannot_be_is_refused_at_build() -> None:
    config = preset("distilbert").config(**SMALL)
    with pytest.raises(ConfigError, match="pooling: want a kind, because the output sequence_class"):
        replace(config, outputs=(SequenceClassOutputConfig(classes=2),))
    with pytest.raises(ConfigError, match="outputs: want a name for each"):
        replace(config, outputs=(MaskedTokenOutputConfig(), MaskedTokenOutputConfig()))
    with pytest.raises(ConfigError, match="name: want small letters"):
        EmbeddingOutputConfig(name="a.b")
    with pytest.raises(ConfigError, match="vocab: want none, because the inputs are images"):
        replace(config, embedding=PatchEmbeddingConfig()).build()
    with pytest.raises(ConfigError, match="vocab: want the number of token ids"):
        replace(config, vocab=None).build()
    images = replace(config, vocab=None, embedding=PatchEmbeddingConfig(size=2), outputs=(MaskedTokenOutputConfig(),))
    with pytest.raises(ConfigError, match="there is no vocabulary"):
        images.build()


def test_impossible_requests_are_refused() -> None:
    model = build("distilbert", **SMALL)
    with pytest.raises(UsageError, match="no pooling"):
        model.pooled(torch.arange(3)[None])
    with pytest.raises(UsageError, match="exceeds the model's context of 6"):
        model(torch.zeros(1, 7, dtype=torch.long))
    albert = build("albert-base", inner=4, **SMALL)
    with pytest.raises(UsageError, match="exceeds the model's context of 6"):
        albert(torch.zeros(1, 7, dtype=torch.long))


def test_the_table_of_tokens_is_named_inside_any_entrance() -> None:
    assert table_of(FullEmbeddingConfig()) == "weight"
    assert table_of(NarrowEmbeddingConfig(table=SegmentedEmbeddingConfig())) == "table.tokens.weight"


def test_an_encoder_on_the_meta_device_gets_memory_and_keeps_its_ties() -> None:
    with torch.device("meta"):
        model = preset("albert-base-masked").config(inner=4, **SMALL).build()
    model.materialize("cpu")
    model.load_weights(build("albert-base-masked", inner=4, **SMALL).weights())
    assert model.output("masked_token").head.weight is model.get_parameter("embedding.table.tokens.weight")
    assert model.eval()(torch.arange(5)[None]).isfinite().all()


def test_half_precision_streams_reach_every_output() -> None:
    model, ids = build("bert-base-pretraining", **SMALL).eval(), torch.arange(6)[None]
    want = {name: model.scores(name, ids) for name in model.outputs}
    model.compute = torch.bfloat16
    for name, scores in want.items():
        torch.testing.assert_close(model.scores(name, ids).float(), scores, atol=0.05, rtol=0.05)
        assert model(ids).dtype == torch.bfloat16
