"""Logits equal those of `transformers` for small random GPT-2 and Llama models with the same weights."""

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from heddle.models.networks import Model
from heddle.models.presets import build

LAYERS, WIDTH, HEADS, VOCAB, CONTEXT = 3, 32, 4, 61, 24


def gpt2_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name GPT-2's weights as ours; its matrices stand the other way round, and three of them in one."""
    ours = {
        "embedding.weight": theirs["transformer.wte.weight"],
        "position.weight": theirs["transformer.wpe.weight"],
        "norm.weight": theirs["transformer.ln_f.weight"],
        "norm.bias": theirs["transformer.ln_f.bias"],
    }
    for i in range(LAYERS):
        old, new = f"transformer.h.{i}", f"stack.{i}"
        for kind in ("weight", "bias"):
            ours[f"{new}.mixer.norm.{kind}"] = theirs[f"{old}.ln_1.{kind}"]
            ours[f"{new}.channel.norm.{kind}"] = theirs[f"{old}.ln_2.{kind}"]
            for name, part in zip(
                ("query", "key", "value"), theirs[f"{old}.attn.c_attn.{kind}"].chunk(3, dim=-1), strict=True
            ):
                ours[f"{new}.mixer.part.{name}.{kind}"] = part.T if kind == "weight" else part
            for name, place in (
                ("mixer.part.output", "attn.c_proj"),
                ("channel.part.up", "mlp.c_fc"),
                ("channel.part.down", "mlp.c_proj"),
            ):
                matrix = theirs[f"{old}.{place}.{kind}"]
                ours[f"{new}.{name}.{kind}"] = matrix.T if kind == "weight" else matrix
    return ours


def llama_weights(theirs: dict[str, Tensor], tied: bool) -> dict[str, Tensor]:
    """Name Llama's weights as ours."""
    ours = {"embedding.weight": theirs["model.embed_tokens.weight"], "norm.weight": theirs["model.norm.weight"]}
    if not tied:
        ours["head.weight"] = theirs["lm_head.weight"]
    names = {
        "mixer.norm": "input_layernorm",
        "channel.norm": "post_attention_layernorm",
        "mixer.part.query": "self_attn.q_proj",
        "mixer.part.key": "self_attn.k_proj",
        "mixer.part.value": "self_attn.v_proj",
        "mixer.part.output": "self_attn.o_proj",
        "channel.part.gate": "mlp.gate_proj",
        "channel.part.up": "mlp.up_proj",
        "channel.part.down": "mlp.down_proj",
    }
    for i in range(LAYERS):
        ours |= {f"stack.{i}.{a}.weight": theirs[f"model.layers.{i}.{b}.weight"] for a, b in names.items()}
    return ours


def agree(ours: Model, theirs: torch.nn.Module) -> None:
    ids = torch.randint(VOCAB, (3, CONTEXT), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want, got = theirs(ids).logits, ours.eval().logits(ids)
    assert (got - want).abs().max() <= 2e-5 * want.std()
    assert want.std() > 0.1


@torch.no_grad()
def shaken(model: torch.nn.Module) -> torch.nn.Module:
    """Move every weight, so that biases and gains have their say."""
    draw = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        weight += 0.1 * torch.randn(weight.shape, generator=draw)
    return model.eval()


def test_gpt2_logits_equal_hugging_face() -> None:
    config = GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS)
    theirs = shaken(GPT2LMHeadModel(config))
    ours = build("gpt2", layers=LAYERS, width=WIDTH, heads=HEADS, vocab=VOCAB, context=CONTEXT)
    ours.load_weights(gpt2_weights(dict(theirs.state_dict())))
    agree(ours, theirs)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_llama_logits_equal_hugging_face(kv_heads: int, tied: bool) -> None:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=56,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    theirs = shaken(LlamaForCausalLM(config))
    options = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "hidden": 56, "vocab": VOCAB, "context": CONTEXT}
    ours = build("llama", kv_heads=kv_heads, tied=tied, **options)
    ours.load_weights(llama_weights(dict(theirs.state_dict()), tied))
    agree(ours, theirs)
