"""Encoders give what `transformers` gives for small random BERT, RoBERTa, DistilBERT, ALBERT and ViT models."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertModel,
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTokenClassification,
    DistilBertConfig,
    DistilBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
    ViTConfig,
    ViTForImageClassification,
)

from heddle.core import replace
from heddle.models import Encoder, EncoderConfig, preset
from heddle.nn import Context, SpanOutputConfig, TokenClassOutputConfig

LAYERS, WIDTH, HEADS, HIDDEN, VOCAB, CONTEXT = 3, 32, 4, 56, 61, 24
SIZES = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "vocab": VOCAB, "context": CONTEXT}
THEIRS = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
}
KINDS = ("weight", "bias")

# Their names of a layer's pieces, by ours.
BERT = {
    "mixer.part.query": "attention.self.query",
    "mixer.part.key": "attention.self.key",
    "mixer.part.value": "attention.self.value",
    "mixer.part.output": "attention.output.dense",
    "norm.norm": "attention.output.LayerNorm",
    "channel.part.up": "intermediate.dense",
    "channel.part.down": "output.dense",
    "norm_2.norm": "output.LayerNorm",
}
DISTIL = {
    "mixer.part.query": "attention.q_lin",
    "mixer.part.key": "attention.k_lin",
    "mixer.part.value": "attention.v_lin",
    "mixer.part.output": "attention.out_lin",
    "norm.norm": "sa_layer_norm",
    "channel.part.up": "ffn.lin1",
    "channel.part.down": "ffn.lin2",
    "norm_2.norm": "output_layer_norm",
}
ALBERT = {
    "mixer.part.query": "attention.query",
    "mixer.part.key": "attention.key",
    "mixer.part.value": "attention.value",
    "mixer.part.output": "attention.dense",
    "norm.norm": "attention.LayerNorm",
    "channel.part.up": "ffn",
    "channel.part.down": "ffn_output",
    "norm_2.norm": "full_layer_layer_norm",
}
VIT = {
    "mixer.norm": "layernorm_before",
    "mixer.part.query": "attention.q_proj",
    "mixer.part.key": "attention.k_proj",
    "mixer.part.value": "attention.v_proj",
    "mixer.part.output": "attention.o_proj",
    "channel.norm": "layernorm_after",
    "channel.part.up": "mlp.fc1",
    "channel.part.down": "mlp.fc2",
}


@torch.no_grad()
def shaken(model: nn.Module) -> nn.Module:
    """Move every weight, so that biases and gains have their say."""
    draw = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight += 0.1 * torch.randn(weight.shape, generator=draw)
    return model.eval()


def copied(config: EncoderConfig, theirs: nn.Module, names: Mapping[str, str], more: Mapping[str, str]) -> Encoder:
    """Build our model with their weights; `names` go by module, `more` by the weight itself."""
    table = theirs.state_dict()
    weights = {f"{a}.{k}": table[f"{b}.{k}"] for a, b in names.items() for k in KINDS}
    weights |= {a: table[b] for a, b in more.items()}
    model = config.build()
    model.load_weights(weights)
    model.eval()
    return model


def layers(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    return {f"{ours}.{i}.{a}": f"{theirs}.{i}.{b}" for i in range(LAYERS) for a, b in names.items()}


def rows() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, segments, lengths and their mask for rows of unequal length."""
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(2, VOCAB, (3, CONTEXT), generator=draw)
    lengths = torch.tensor([CONTEXT, 9, 1])
    mask = (torch.arange(CONTEXT) < lengths[:, None]).long()
    return ids, torch.randint(2, (3, CONTEXT), generator=draw), lengths, mask


def agree(got: Tensor, want: Tensor, mask: Tensor | None = None) -> None:
    if mask is not None:
        got, want = got[mask.bool()], want[mask.bool()]
    assert want.std() > 0.1
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


# --- BERT -------------------------------------------------------------------------------------------------------------

BERT_ENTRY = {
    "embedding.tokens.weight": "bert.embeddings.word_embeddings.weight",
    "embedding.segments.weight": "bert.embeddings.token_type_embeddings.weight",
    "position.weight": "bert.embeddings.position_embeddings.weight",
}
BERT_NAMES = {"stack.0.norm": "bert.embeddings.LayerNorm"} | layers("stack.1", "bert.encoder.layer", BERT)


@torch.no_grad()
def test_bert_with_both_heads_of_its_training_equals_theirs() -> None:
    theirs = shaken(BertForPreTraining(BertConfig(max_position_embeddings=CONTEXT, **THEIRS)))
    names = BERT_NAMES | {
        "pooling.dense": "bert.pooler.dense",
        "outputs.masked_token.head.dense": "cls.predictions.transform.dense",
        "outputs.masked_token.head.norm": "cls.predictions.transform.LayerNorm",
        "outputs.next_sentence.classes": "cls.seq_relationship",
    }
    more = BERT_ENTRY | {"outputs.masked_token.head.bias": "cls.predictions.bias"}
    ours = copied(preset("bert-base-pretraining").config(**SIZES), theirs, names, more)
    ids, segments, lengths, mask = rows()
    want = theirs(ids, attention_mask=mask, token_type_ids=segments)
    ctx = Context(new=lengths, segments=segments)
    agree(ours.scores("masked_token", ids, ctx), want.prediction_logits, mask)
    agree(ours.scores("next_sentence", ids, ctx), want.seq_relationship_logits)
    whole = theirs.bert(ids, attention_mask=mask, token_type_ids=segments)
    agree(ours(ids, ctx), whole.last_hidden_state, mask)
    agree(ours.pooled(ids, ctx), whole.pooler_output)


@torch.no_grad()
def test_bert_for_spans_and_for_classes_of_tokens_equals_theirs() -> None:
    bare = replace(preset("bert-base").config(**SIZES), pooling=None)
    config = BertConfig(max_position_embeddings=CONTEXT, num_labels=5, **THEIRS)
    ids, segments, lengths, mask = rows()
    ctx = Context(new=lengths, segments=segments)

    tagger = shaken(BertForTokenClassification(config))
    ours = copied(
        replace(bare, outputs=(TokenClassOutputConfig(classes=5),)),
        tagger,
        BERT_NAMES | {"outputs.token_class.classes": "classifier"},
        BERT_ENTRY,
    )
    agree(ours.scores("token_class", ids, ctx), tagger(ids, mask, segments).logits, mask)

    config.num_labels = 2
    reader = shaken(BertForQuestionAnswering(config))
    names = BERT_NAMES | {"outputs.span.edges": "qa_outputs"}
    ours = copied(replace(bare, outputs=(SpanOutputConfig(),)), reader, names, BERT_ENTRY)
    got, want = ours.scores("span", ids, ctx), reader(ids, mask, segments)
    agree(got[:, 0], want.start_logits, mask)
    agree(got[:, 1], want.end_logits, mask)


# --- RoBERTa ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_roberta_equals_theirs() -> None:
    config = RobertaConfig(max_position_embeddings=CONTEXT + 2, type_vocab_size=1, layer_norm_eps=1e-5, **THEIRS)
    theirs = shaken(RobertaForMaskedLM(config))
    entry = {a: b.replace("bert.", "roberta.") for a, b in BERT_ENTRY.items()}
    names = {a: b.replace("bert.", "roberta.") for a, b in BERT_NAMES.items()}
    head = {
        "outputs.masked_token.head.dense": "lm_head.dense",
        "outputs.masked_token.head.norm": "lm_head.layer_norm",
    }
    more = entry | {"outputs.masked_token.head.bias": "lm_head.bias"}
    ours = copied(preset("roberta-base-masked").config(**SIZES), theirs, names | head, more)
    ids, _, lengths, mask = rows()
    padded = ids.where(mask.bool(), 1)  # their positions are told by their padding's id
    agree(ours.scores("masked_token", padded, Context(new=lengths)), theirs(padded, mask).logits, mask)

    whole = shaken(RobertaModel(config))
    bare = {a: b.removeprefix("roberta.") for a, b in names.items()} | {"pooling.dense": "pooler.dense"}
    table = {a: b.removeprefix("roberta.") for a, b in entry.items()}
    ours = copied(preset("roberta-base").config(**SIZES), whole, bare, table)
    agree(ours.pooled(padded, Context(new=lengths)), whole(padded, mask).pooler_output)


# --- DistilBERT and ALBERT --------------------------------------------------------------------------------------------


@torch.no_grad()
def test_distilbert_equals_theirs() -> None:
    config = DistilBertConfig(
        vocab_size=VOCAB,
        dim=WIDTH,
        n_layers=LAYERS,
        n_heads=HEADS,
        hidden_dim=HIDDEN,
        max_position_embeddings=CONTEXT,
    )
    theirs = shaken(DistilBertForMaskedLM(config))
    names = layers("stack.1", "distilbert.transformer.layer", DISTIL) | {
        "stack.0.norm": "distilbert.embeddings.LayerNorm",
        "outputs.masked_token.head.dense": "vocab_transform",
        "outputs.masked_token.head.norm": "vocab_layer_norm",
    }
    more = {
        "embedding.weight": "distilbert.embeddings.word_embeddings.weight",
        "position.weight": "distilbert.embeddings.position_embeddings.weight",
        "outputs.masked_token.head.bias": "vocab_projector.bias",
    }
    ours = copied(preset("distilbert-masked").config(**SIZES), theirs, names, more)
    ids, _, lengths, mask = rows()
    agree(ours.scores("masked_token", ids, Context(new=lengths)), theirs(ids, mask).logits, mask)


@torch.no_grad()
def test_albert_equals_theirs() -> None:
    config = AlbertConfig(embedding_size=12, max_position_embeddings=CONTEXT, **THEIRS)
    theirs = shaken(AlbertForMaskedLM(config))
    group = "encoder.albert_layer_groups.0.albert_layers.0"
    names = {f"stack.body.{a}": f"albert.{group}.{b}" for a, b in ALBERT.items()} | {
        "embedding.norm": "albert.embeddings.LayerNorm",
        "embedding.map": "albert.encoder.embedding_hidden_mapping_in",
    }
    table = {
        "embedding.table.tokens.weight": "albert.embeddings.word_embeddings.weight",
        "embedding.table.segments.weight": "albert.embeddings.token_type_embeddings.weight",
        "embedding.position.weight": "albert.embeddings.position_embeddings.weight",
    }
    head = {
        "outputs.masked_token.head.dense": "predictions.dense",
        "outputs.masked_token.head.norm": "predictions.LayerNorm",
    }
    more = table | {"outputs.masked_token.head.bias": "predictions.bias"}
    ours = copied(preset("albert-base-masked").config(inner=12, **SIZES), theirs, names | head, more)
    ids, segments, lengths, mask = rows()
    ctx = Context(new=lengths, segments=segments)
    agree(ours.scores("masked_token", ids, ctx), theirs(ids, mask, segments).logits, mask)

    whole = shaken(AlbertModel(config))
    bare = {a: b.removeprefix("albert.") for a, b in names.items()} | {"pooling.dense": "pooler"}
    ours = copied(
        preset("albert-base").config(inner=12, **SIZES),
        whole,
        bare,
        {a: b.removeprefix("albert.") for a, b in table.items()},
    )
    agree(ours.pooled(ids, ctx), whole(ids, mask, segments).pooler_output)


# --- ViT --------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_vit_equals_theirs() -> None:
    sizes = {name: size for name, size in THEIRS.items() if name != "vocab_size"}
    theirs = shaken(ViTForImageClassification(ViTConfig(image_size=20, patch_size=5, num_labels=7, **sizes)))
    names = layers("stack", "vit.layers", VIT) | {
        "norm": "vit.layernorm",
        "outputs.sequence_class.classes": "classifier",
    }
    dials = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN}
    config = preset("vit-base-16").config(side=20, patch=5, classes=7, **dials)
    table, model = theirs.state_dict(), config.build()
    weights = {f"{a}.{k}": table[f"{b}.{k}"] for a, b in names.items() for k in KINDS} | {
        "embedding.first": table["vit.embeddings.cls_token"][0],
        "embedding.map.weight": table["vit.embeddings.patch_embeddings.projection.weight"].flatten(1),
        "embedding.map.bias": table["vit.embeddings.patch_embeddings.projection.bias"],
        "position.weight": table["vit.embeddings.position_embeddings"][0],
    }
    model.load_weights(weights)
    images = torch.randn(3, 3, 20, 20, generator=torch.Generator().manual_seed(4))
    agree(model.eval().scores("sequence_class", images), theirs(images).logits)
