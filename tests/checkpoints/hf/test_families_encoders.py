"""Encoders: every class of every family agrees with `transformers`, loaded and saved again."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from checkpoints.hf.harness import check_close, no_complaint
from safetensors.torch import load_file, save_file
from torch import Tensor

from heddle.checkpoints.hf import load_model, save_model
from heddle.core import ConfigError, DamageError, UsageError, find, replace
from heddle.models.networks import Encoder, EncoderConfig
from heddle.models.presets import preset
from heddle.nn.attention import AttentionConfig
from heddle.nn.base import Context
from heddle.nn.layers import ElementDropoutConfig
from heddle.nn.outputs import (
    EmbeddingOutputConfig,
    MeanConfig,
    ReplacedTokenOutputConfig,
    SequenceClassOutputConfig,
    SpanOutputConfig,
)

VOCAB, LENGTH, SIDE = 61, 22, 20
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 40,
    "max_position_embeddings": 25,
}  # fmt: skip
SHAPES: dict[str, list[dict[str, Any]]] = {
    "Bert": [
        SIZES,
        SIZES | {"num_attention_heads": 3, "hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-4},
        SIZES | {"hidden_act": "gelu_new", "tie_word_embeddings": False, "classifier_dropout": 0.3, "pad_token_id": 5},
    ],
    "Roberta": [
        SIZES | {"type_vocab_size": 1},
        SIZES | {"num_attention_heads": 3, "hidden_act": "relu", "layer_norm_eps": 1e-5},
        SIZES | {"tie_word_embeddings": False, "pad_token_id": 0, "classifier_dropout": 0.3, "num_hidden_layers": 1},
    ],
    "Electra": [
        SIZES | {"embedding_size": 12},
        SIZES | {"embedding_size": 30, "hidden_act": "silu", "num_attention_heads": 3, "type_vocab_size": 1},
        SIZES | {"embedding_size": 44, "tie_word_embeddings": False, "layer_norm_eps": 1e-3},
    ],
    "DistilBert": [
        {"vocab_size": VOCAB, "dim": 30, "n_layers": 2, "n_heads": heads, "hidden_dim": 40,
         "max_position_embeddings": 25, **more}
        for heads, more in (
            (5, {}), (3, {"activation": "relu", "sinusoidal_pos_embds": True}),
            (1, {"tie_word_embeddings": False, "n_layers": 1, "qa_dropout": 0.0}),
        )
    ],
    "Albert": [
        SIZES | {"embedding_size": 12},
        SIZES | {"embedding_size": 30, "hidden_act": "gelu", "num_attention_heads": 3, "inner_group_num": 2},
        SIZES | {"embedding_size": 40, "num_hidden_layers": 5, "num_hidden_groups": 3, "tie_word_embeddings": False,
                 "type_vocab_size": 4, "layer_norm_eps": 1e-5},
    ],
}  # fmt: skip
PICTURES: list[dict[str, Any]] = [
    {"hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": heads, "intermediate_size": 40,
     "image_size": SIDE, "patch_size": patch, **more}
    for heads, patch, more in (
        (5, 5, {}), (3, 4, {"qkv_bias": False, "hidden_act": "relu", "pooler_act": "relu"}),
        (1, 10, {"num_channels": 1, "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.1}),
    )
]  # fmt: skip
BART: dict[str, Any] = {
    "vocab_size": VOCAB, "d_model": 30, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 3,
    "decoder_attention_heads": 5, "encoder_ffn_dim": 40, "decoder_ffn_dim": 44, "max_position_embeddings": 25,
}  # fmt: skip
BARTS: list[dict[str, Any]] = [
    BART,
    BART | {"scale_embedding": True, "activation_function": "relu", "decoder_layers": 2, "classifier_dropout": 0.3},
]
LABELS = {0: "cat", 1: "dog", 2: "neither"}


@dataclass(frozen=True)
class Case:
    """A class of theirs and the settings of its config."""

    kind: str
    number: int
    settings: dict[str, Any]

    def build(self) -> hf.PreTrainedModel:
        """Build it, with every weight moved so that biases and gains have their say."""
        torch.manual_seed(1)
        cls = getattr(hf, self.kind)
        settings = dict(self.settings)
        if "Classification" in self.kind:
            settings["id2label"] = LABELS
        model = cls(cls.config_class(**settings)).eval()
        draw = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for weight in model.parameters():
                size = 0.1 if weight.ndim == 1 else 2.0 * weight.shape[-1] ** -0.5
                weight += size * torch.randn(weight.shape, generator=draw)
        return model


def cases() -> list[Case]:
    """Return every class of every family, most at three shapes."""
    more = {"Bert": ("ForPreTraining", "ForNextSentencePrediction"), "Albert": ("ForPreTraining",)}
    more["Electra"] = ("ForPreTraining",)
    shaped = ("Model", "ForMaskedLM", "ForPreTraining")  # the others add little to these
    found = [
        Case(family + head, i, settings)
        for family, shapes in SHAPES.items()
        for head in HEADS + more.get(family, ())
        for i, settings in enumerate(shapes)
        if i == 0 or head in shaped or (i == 1 and head == "ForSequenceClassification")
    ]
    pictures = ("ViTModel", "ViTForImageClassification")
    found += [Case("BartForSequenceClassification", i, settings) for i, settings in enumerate(BARTS)]
    return found + [Case(name, i, settings) for name in pictures for i, settings in enumerate(PICTURES)]


def rows(model: hf.PreTrainedModel) -> dict[str, Tensor]:
    """Draw rows of unequal length and of several segments, or images."""
    draw = torch.Generator().manual_seed(3)
    config = model.config
    if config.model_type == "vit":
        return {"pixel_values": torch.randn(2, config.num_channels, SIDE, SIDE, generator=draw)}
    lengths = torch.tensor([LENGTH, 9, 1])
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    ids = torch.randint(6, VOCAB, (3, LENGTH), generator=draw)
    told = {"input_ids": ids.where(mask.bool(), config.pad_token_id), "attention_mask": mask}
    if config.model_type == "bart":  # its class is read where the end stands
        told["input_ids"][torch.arange(3), lengths - 1] = config.eos_token_id
    elif config.model_type != "distilbert":
        told["token_type_ids"] = torch.randint(config.type_vocab_size, (3, LENGTH), generator=draw)
    return told


@torch.no_grad()
def theirs(model: hf.PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return all that a model of theirs says of the real tokens, in our order."""
    told = model(**inputs)
    real = inputs.get("attention_mask", torch.ones(2, 1)).bool()
    names = (
        "prediction_logits", "seq_relationship_logits", "sop_logits", "logits", "start_logits", "end_logits",
        "last_hidden_state", "pooler_output",
    )  # fmt: skip
    found = [told[name] for name in names if told.get(name) is not None]
    return [x[real] if "input_ids" in inputs and x.shape[:2] == real.shape else x for x in found]


@torch.no_grad()
def ours(model: Encoder, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return the same of ours."""
    if "pixel_values" in inputs:
        given, ctx, real = inputs["pixel_values"], Context(), None
    else:
        given, mask = inputs["input_ids"], inputs["attention_mask"]
        ctx, real = Context(lengths=mask.sum(1), segments=inputs.get("token_type_ids")), mask.bool()
    found: list[Tensor] = []
    for output in model.config.outputs:
        scores = model.scores(output.name, given, ctx)
        if isinstance(output, SpanOutputConfig):
            found += [scores[:, 0], scores[:, 1]]
        elif isinstance(output, ReplacedTokenOutputConfig):
            assert (scores[..., 0] == 0).all()
            found.append(scores[..., 1])
        else:
            found.append(scores)
    if not found:
        found = [model(given, ctx)] + ([] if model.pooling is None else [model.pooled(given, ctx)])
    return [x[real] if real is not None and x.shape[:2] == real.shape else x for x in found]


def agree(want: list[Tensor], got: list[Tensor]) -> None:
    assert len(want) == len(got) > 0
    for a, b in zip(want, got, strict=True):
        assert a.shape == b.shape
        check_close(a, b)


@pytest.mark.parametrize("case", cases(), ids=lambda c: f"{c.kind}-{c.number}")
def test_an_encoder_says_the_same_here_and_back_there(case: Case, tmp_path: Path) -> None:
    model = case.build()
    model.save_pretrained(tmp_path / "theirs")
    here = load_model(tmp_path / "theirs")
    assert isinstance(here, Encoder)
    inputs = rows(model)
    want = theirs(model, inputs)
    agree(want, ours(here, inputs))

    save_model(here, tmp_path / "ours", wanted=model.config.model_type)  # an ELECTRA with one width is a BERT too
    told = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert told["architectures"] == [case.kind]
    with no_complaint():
        again, info = getattr(hf, told["architectures"][0]).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert {kind: found for kind, found in info.items() if found} == {}
    agree(want, theirs(again.eval(), inputs))
    if "Classification" in case.kind:
        assert again.config.id2label == LABELS
        assert here.config.outputs[0].labels == tuple(LABELS.values())  # type: ignore[attr-defined]


# --- folders as they are found ----------------------------------------------------------------------------------------


def saved(kind: str, path: Path, **settings: Any) -> hf.PreTrainedModel:
    """Save a small model of theirs."""
    model = Case(kind, 0, SIZES | settings).build()
    model.save_pretrained(path)
    return model


def rewrite(path: Path, **changes: Any) -> None:
    """Change some keys of a config; None takes one away."""
    told = json.loads((path / "config.json").read_text()) | changes
    (path / "config.json").write_text(json.dumps({key: value for key, value in told.items() if value is not None}))


def test_a_file_with_old_names_other_heads_and_copies_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = saved("BertForMaskedLM", tmp_path)
    weights = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): weight
        for name, weight in load_file(tmp_path / "model.safetensors").items()
    }
    for name in ("bert.pooler.dense.weight", "cls.predictions.decoder.weight", "cls.seq_relationship.bias"):
        weights[name] = torch.zeros(2)
    weights["bert.embeddings.position_ids"] = torch.arange(25)[None]
    save_file(weights, tmp_path / "model.safetensors")
    here, inputs = load_model(tmp_path), rows(model)
    assert isinstance(here, Encoder)
    agree(theirs(model, inputs), ours(here, inputs))
    assert caplog.records == []  # nothing of this is worth a warning


def test_a_strange_or_missing_weight_is_named(tmp_path: Path) -> None:
    saved("BertForTokenClassification", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"bert.extra.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(DamageError, match=r"unexpected tensor bert\.extra\.weight"):
        load_model(tmp_path)
    save_file({name: w for name, w in weights.items() if name != "classifier.bias"}, tmp_path / "model.safetensors")
    with pytest.raises(DamageError, match=r"tensor classifier\.bias is missing"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["BertForMaskedML"]},
            r"architectures: want one of BertModel, .*did you mean 'BertForMaskedLM'",
        ),
        ({"architectures": ["BertLMHeadModel"], "is_decoder": True}, "is_decoder: want False"),
        ({"architectures": 3}, "architectures: want one of BertModel"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: want 'absolute'"),
        ({"id2label": {"0": "a", "2": "b"}}, "id2label: want numbers from 0 to 1"),
        ({"id2label": [1]}, "id2label: want an object"),
        ({"hidden_act": "mish"}, "hidden_act: want one of"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads: want"),
        ({"architectures": ["BertForQuestionAnswering"], "num_labels": 3}, "id2label: want two labels for this class"),
    ],
    ids=str,
)
def test_a_config_that_we_have_no_part_for_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved("BertForSequenceClassification", tmp_path)
    if "architectures" in changes:
        rewrite(tmp_path, id2label=None)
    rewrite(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_config_without_a_class_is_a_bare_model_and_numbered_classes_have_no_names(tmp_path: Path) -> None:
    model = saved("BertModel", tmp_path / "bare")
    rewrite(tmp_path / "bare", architectures=None)
    here, inputs = load_model(tmp_path / "bare"), rows(model)
    assert isinstance(here, Encoder)
    agree(theirs(model, inputs), ours(here, inputs))
    saved("BertForSequenceClassification", tmp_path / "classes")
    rewrite(tmp_path / "classes", id2label={str(i): f"LABEL_{i}" for i in range(3)})
    (output,) = load_model(tmp_path / "classes").config.outputs  # type: ignore[attr-defined]
    assert (output.classes, output.labels) == (3, ())


# --- out --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("bert-base", "BertModel"), ("bert-base-masked", "BertForMaskedLM"),
        ("bert-base-pretraining", "BertForPreTraining"), ("roberta-base", "RobertaModel"),
        ("roberta-base-masked", "RobertaForMaskedLM"), ("distilbert", "DistilBertModel"),
        ("distilbert-masked", "DistilBertForMaskedLM"), ("albert-base", "AlbertModel"),
        ("albert-base-masked", "AlbertForMaskedLM"), ("vit-base-16", "ViTForImageClassification"),
    ],
)  # fmt: skip
def test_each_preset_is_saved_as_the_class_it_is_named_for(name: str, want: str, tmp_path: Path) -> None:
    sizes = {"layers": 1, "width": 30, "heads": 5} | ({} if name.startswith("vit") else {"vocab": 61, "context": 20})
    save_model(preset(name).config(**sizes).build(), tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    assert told["architectures"] == [want]
    with no_complaint():
        _, info = getattr(hf, want).from_pretrained(tmp_path, output_loading_info=True)
    assert {kind: found for kind, found in info.items() if found} == {}


def small(**changes: Any) -> EncoderConfig:
    config = preset("bert-base").config(layers=1, width=30, heads=5, vocab=61, context=20)
    assert isinstance(config, EncoderConfig)
    return replace(config, **changes)


def test_what_no_class_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no counterpart for pooling: mean"):
        save_model(small(pooling=MeanConfig(), outputs=(SequenceClassOutputConfig(classes=2),)).build(), tmp_path)
    with pytest.raises(UsageError, match="bert: it has no class for outputs embedding"):
        save_model(small(outputs=(EmbeddingOutputConfig(),)).build(), tmp_path)
    assert not (tmp_path / "config.json").exists()


def test_a_setting_that_would_change_the_model_is_refused(tmp_path: Path) -> None:
    model = preset("roberta-base").config(layers=1, width=30, heads=5, vocab=61, context=20).build()
    with pytest.raises(UsageError, match="would change the model"):
        save_model(model, tmp_path, {"pad_token_id": 0})  # their positions are counted from the padding's id
    save_model(model, tmp_path, {"pad_token_id": 1, "bos_token_id": 3})
    assert json.loads((tmp_path / "config.json").read_text())["bos_token_id"] == 3


BERTS = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}
DISTIL = {"dropout": 0.2, "attention_dropout": 0.3}


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("BertForSequenceClassification", BERTS | {"classifier_dropout": 0.4}),
        ("RobertaForTokenClassification", BERTS | {"classifier_dropout": 0.4}),
        ("ElectraForSequenceClassification", BERTS | {"classifier_dropout": 0.4}),
        ("AlbertForSequenceClassification", BERTS | {"classifier_dropout_prob": 0.4}),
        ("DistilBertForSequenceClassification", DISTIL | {"seq_classif_dropout": 0.4}),
        ("DistilBertForQuestionAnswering", DISTIL | {"qa_dropout": 0.4}),
        ("ViTForImageClassification", BERTS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rates_of_dropout_go_along_both_ways(kind: str, rates: dict[str, float], tmp_path: Path) -> None:
    family = kind.partition("For")[0]
    shape = PICTURES[0] if family == "ViT" else SHAPES[family][0]
    Case(kind, 0, shape | rates).build().save_pretrained(tmp_path / "theirs")
    here = load_model(tmp_path / "theirs")
    config = here.config
    assert isinstance(config, EncoderConfig)
    assert {a.dropout for a in find(config, AttentionConfig)} == {0.3}
    assert {d.rate for d in find(config.plan, ElementDropoutConfig)} - {0.0} == {0.2}  # a norm alone drops nothing
    if len(rates) == 3:
        assert [output.dropout for output in config.outputs] == [0.4]  # type: ignore[attr-defined]
    save_model(here, tmp_path / "ours")
    told = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert {key: told[key] for key in rates} == rates


def test_a_decoder_that_reads_the_row_again_wants_one_text_a_row_and_an_id_to_start_from(tmp_path: Path) -> None:
    Case("BartForSequenceClassification", 0, BART).build().save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert isinstance(model, Encoder) and len(model.towers) == 2
    ids = torch.randint(6, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))
    with pytest.raises(UsageError, match="want one document a row"):
        model(ids, Context(documents=torch.zeros_like(ids)))
    with pytest.raises(ConfigError, match=r"rereading.start: want an id of the vocabulary, which has 61, got 61"):
        replace(model.config, rereading=replace(model.config.rereading, start=VOCAB))
