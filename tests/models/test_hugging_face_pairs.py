"""Logits equal those of `transformers` for small random T5, BART, Marian, Mistral and Qwen3 with the same weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from heddle.models.networks import EncoderDecoder, Model
from heddle.models.presets import build
from heddle.nn.base import Context

LAYERS, WIDTH, HEADS, VOCAB, CONTEXT = 2, 32, 4, 61, 24
SIZES = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "vocab": VOCAB, "context": CONTEXT}
LENGTHS = torch.tensor([9, 4])
MAPS = {"query": "q", "key": "k", "value": "v", "output": "o"}


def renamed(theirs: dict[str, Tensor], table: dict[str, str], layers: dict[str, dict[str, str]]) -> dict[str, Tensor]:
    """Name weights as ours: single ones by `table`, those of layers by their prefixes and then by our names."""
    found = {ours: theirs[name] for ours, name in table.items()}
    for prefixes, names in layers.items():
        our_prefix, their_prefix = prefixes.split(" = ")
        for i in range(LAYERS):
            for ours, name in names.items():
                for kind in ("weight", "bias"):
                    key = f"{their_prefix}.{i}.{name}.{kind}"
                    if key in theirs:
                        found[f"{our_prefix}.{i}.{ours}.{kind}"] = theirs[key]
    return found


def t5_weights(theirs: dict[str, Tensor], gated: bool) -> dict[str, Tensor]:
    own = {"mixer.norm": "layer.0.layer_norm"}
    own |= {f"mixer.part.{a}": f"layer.0.SelfAttention.{b}" for a, b in MAPS.items()}
    cross = {"cross.norm": "layer.1.layer_norm"}
    cross |= {f"cross.part.{a}": f"layer.1.EncDecAttention.{b}" for a, b in MAPS.items()}

    def channel(layer: int) -> dict[str, str]:
        inner = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
        names = {f"channel.part.{a}": f"layer.{layer}.DenseReluDense.{b}" for a, b in (inner | {"down": "wo"}).items()}
        return names | {"channel.norm": f"layer.{layer}.layer_norm"}

    table = {"encoder.embedding.weight": "shared.weight"}
    for side in ("encoder", "decoder"):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        table[f"{side}.norm.weight"] = f"{side}.final_layer_norm.weight"
        theirs = theirs | {bias: theirs[bias].T}
        table[f"{side}.position.heads_{HEADS}"] = bias
    if gated:
        table["head.weight"] = "lm_head.weight"
    return renamed(
        theirs,
        table,
        {
            "encoder.stack.1 = encoder.block": own | channel(1),
            "decoder.stack.1 = decoder.block": own | cross | channel(2),
        },
    )


def bart_weights(theirs: dict[str, Tensor], positions: bool) -> dict[str, Tensor]:
    maps = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    own = {f"mixer.part.{a}": f"self_attn.{b}" for a, b in maps.items()} | {"norm.norm": "self_attn_layer_norm"}
    cross = {f"cross.part.{a}": f"encoder_attn.{b}" for a, b in maps.items()}
    cross |= {"norm_2.norm": "encoder_attn_layer_norm"}
    channel = {"channel.part.up": "fc1", "channel.part.down": "fc2"}
    table = {"encoder.embedding.weight": "model.shared.weight"}
    for side in ("encoder", "decoder"):
        if positions:
            table[f"{side}.position.weight"] = f"model.{side}.embed_positions.weight"
            for kind in ("weight", "bias"):
                table[f"{side}.stack.0.norm.{kind}"] = f"model.{side}.layernorm_embedding.{kind}"
    return renamed(
        theirs,
        table,
        {
            "encoder.stack.1 = model.encoder.layers": own | channel | {"norm_2.norm": "final_layer_norm"},
            "decoder.stack.1 = model.decoder.layers": own | cross | channel | {"norm_3.norm": "final_layer_norm"},
        },
    )


@torch.no_grad()
def moved(model: Any) -> Any:
    """Move every weight, norms and biases too, but for tables of sines."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and not (isinstance(model, hf.MarianMTModel) and "embed_positions" in name):
            weight += 0.1 * torch.randn_like(weight)
    return model.eval()


def t5_pair(gated: bool) -> tuple[Any, Model, dict[str, Tensor]]:
    form = "gated-gelu" if gated else "relu"
    config = hf.T5Config(
        d_model=WIDTH, d_kv=6, num_heads=HEADS, d_ff=40, num_layers=LAYERS, vocab_size=VOCAB, dropout_rate=0.0,
        feed_forward_proj=form, tie_word_embeddings=not gated, decoder_start_token_id=0,
    )  # fmt: skip
    theirs = moved(hf.T5ForConditionalGeneration(config))
    name = "t5.1.1-base" if gated else "t5-base"
    ours = build(name, **SIZES, head_width=6, hidden=40)
    return theirs, ours, t5_weights(theirs.state_dict(), gated)


def bart_pair(marian: bool) -> tuple[Any, Model, dict[str, Tensor]]:
    config = (hf.MarianConfig if marian else hf.BartConfig)(
        d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=4 * WIDTH, decoder_ffn_dim=4 * WIDTH, vocab_size=VOCAB,
        max_position_embeddings=CONTEXT, dropout=0.0, activation_function="swish" if marian else "gelu",
        scale_embedding=marian, pad_token_id=1, eos_token_id=2, bos_token_id=0, decoder_start_token_id=2,
        forced_eos_token_id=2,
    )  # fmt: skip
    theirs = moved((hf.MarianMTModel if marian else hf.BartForConditionalGeneration)(config))
    ours = build("marian" if marian else "bart-base", **SIZES)
    weights = bart_weights(theirs.state_dict(), positions=not marian)
    if marian:
        weights["head.bias"] = theirs.state_dict()["final_logits_bias"][0]
    return theirs, ours, weights


PAIRS: dict[str, Callable[[], tuple[Any, Model, dict[str, Tensor]]]] = {
    "t5": lambda: t5_pair(gated=False),
    "t5.1.1": lambda: t5_pair(gated=True),
    "bart": lambda: bart_pair(marian=False),
    "marian": lambda: bart_pair(marian=True),
}


@pytest.mark.parametrize("name", PAIRS)
@torch.no_grad()
def test_an_encoder_decoder_gives_the_same_logits(name: str) -> None:
    torch.manual_seed(0)
    theirs, ours, weights = PAIRS[name]()
    assert isinstance(ours, EncoderDecoder)
    ours.load_weights(weights)
    ours.eval()
    source, target = torch.randint(3, VOCAB, (2, 9)), torch.randint(3, VOCAB, (2, 7))
    real = (torch.arange(9) < LENGTHS[:, None]).long()
    want = theirs(input_ids=source, attention_mask=real, decoder_input_ids=target).logits
    found = ours.logits(target, Context(memory=ours.encode(source, LENGTHS)))
    assert torch.allclose(found, want, atol=2e-5 * want.std().item(), rtol=0), (found - want).abs().max()


def decoder_weights(theirs: dict[str, Tensor], extra: dict[str, str]) -> dict[str, Tensor]:
    maps = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    names = {f"mixer.part.{a}": f"self_attn.{b}" for a, b in maps.items()}
    names |= {"mixer.norm": "input_layernorm", "channel.norm": "post_attention_layernorm"}
    names |= {f"channel.part.{a}": f"mlp.{a}_proj" for a in ("gate", "up", "down")}
    table = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    return renamed(theirs, table, {"stack = model.layers": names | extra})


@pytest.mark.parametrize("name", ["mistral-7b", "qwen3-0.6b"])
@torch.no_grad()
def test_a_decoder_gives_the_same_logits(name: str) -> None:
    torch.manual_seed(0)
    common = dict(
        hidden_size=WIDTH, intermediate_size=40, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=CONTEXT, head_dim=6,
    )  # fmt: skip
    if name == "mistral-7b":
        config = hf.MistralConfig(**common | {"head_dim": WIDTH // HEADS}, sliding_window=5, rms_norm_eps=1e-5)
        config._attn_implementation = "eager"
        theirs = moved(hf.MistralForCausalLM(config))
        ours = build(name, **SIZES, kv_heads=2, hidden=40, window=5)
        extra: dict[str, str] = {}
    else:
        config = hf.Qwen3Config(**common, tie_word_embeddings=True, rope_theta=1e6)
        theirs = moved(hf.Qwen3ForCausalLM(config))
        ours = build(name, **SIZES, kv_heads=2, hidden=40, head_width=6)
        extra = {"mixer.part.query_norm": "self_attn.q_norm", "mixer.part.key_norm": "self_attn.k_norm"}
    weights = decoder_weights(theirs.state_dict(), extra)
    if name == "mistral-7b":
        weights["head.weight"] = theirs.state_dict()["lm_head.weight"]
    ours.load_weights(weights)
    ids = torch.randint(VOCAB, (2, 20))
    want = theirs(input_ids=ids).logits
    found = ours.eval().logits(ids)
    assert torch.allclose(found, want, atol=2e-5 * want.std().item(), rtol=0), (found - want).abs().max()
