"""Conversion: a folder of theirs as a model of ours, and a model of ours as theirs, or the part that they lack."""

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from heddle.checkpoints.hf import (
    albert,
    bart,
    bert,
    deepseek,
    distilbert,
    experts,
    gemma,
    gpt2,
    gpt_neox,
    llama,
    olmo2,
    opt,
    phi3,
    t5,
    vit,
)
from heddle.checkpoints.hf.family import Family, NoCounterpart
from heddle.checkpoints.hf.folder import Weights, read_config, write_folder
from heddle.checkpoints.hf.links import Followed, Link, Renamed
from heddle.checkpoints.hf.reading import Theirs
from heddle.core import (
    VERSION,
    Change,
    Config,
    ConfigError,
    DamageError,
    Hardware,
    UsageError,
    choose_hardware,
    diff,
    fields_of,
    nearest,
    replace,
    swap,
)
from heddle.models import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, Model, ModelConfig, build_meta
from heddle.nn import (
    AttentionConfig,
    BiasBalanceConfig,
    CrossAttentionConfig,
    DroplessConfig,
    DropoutConfig,
    EachDropoutConfig,
    ExpertsConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
    LatentAttentionConfig,
    NoBalanceConfig,
    NormalInitConfig,
    TokenChoiceConfig,
    head_width_of,
    hidden_of,
)

FAMILIES = {
    family.name: family
    for family in (
        gpt2.FAMILY,
        gpt_neox.FAMILY,
        opt.FAMILY,
        llama.LLAMA,
        llama.MISTRAL,
        llama.QWEN2,
        llama.QWEN3,
        phi3.FAMILY,
        olmo2.FAMILY,
        gemma.GEMMA2,
        gemma.GEMMA3,
        experts.MIXTRAL,
        experts.QWEN3_MOE,
        deepseek.FAMILY,
        t5.FAMILY,
        bart.BART,
        bart.MARIAN,
        bart.PEGASUS,
        bert.BERT,
        bert.ROBERTA,
        bert.ELECTRA,
        distilbert.FAMILY,
        albert.FAMILY,
        vit.FAMILY,
    )
}
# Names under which they may save a shared matrix once more, and tables that they compute anew.
COPIES = frozenset(
    {
        "lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight",
        "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
        "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight",
    }
)  # fmt: skip
# What older files hold besides: causal masks, and how fast rotary pairs turn.
COMPUTED = (".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq")

log = logging.getLogger("heddle")


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of a config, or say which are near."""
    name = config.get("model_type")
    if name not in FAMILIES:
        near = nearest(str(name)[:80], FAMILIES)
        hint = f"; did you mean {near!r}?" if near else ""
        raise UsageError(f"{where}: model_type {name!r} is not known, want one of {', '.join(FAMILIES)}{hint}")
    return FAMILIES[name]


def load_model(path: Path, hardware: Hardware | None = None) -> Model:
    """Load the model of a folder."""
    return load_weights(read_config(path), Weights(path), str(path / "config.json"), hardware)


def load_weights(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], where: str, hardware: Hardware | None = None
) -> Model:
    """Build the model of a config and fill it weight by weight, without a second copy of any but the one at hand."""
    chosen = choose_hardware(dtype="float32") if hardware is None else hardware
    theirs, family = Theirs(config, where), family_of(config, where)
    ours = family.read(theirs)
    if unread := [key for key in theirs.unread() if key not in family.idle]:
        log.warning("%s: not understood and left out: %s", where, ", ".join(unread))
    model = build_meta(ours).to(chosen.dtype)
    model.materialise(chosen.device)
    links = list(family.links(ours))
    wanted = {name for link in links for name in link.theirs}
    _fill(model, links, Renamed(weights, family.old, wanted), family.spare)
    model.eval()
    return model


def _fill(model: Model, links: list[Link], weights: Mapping[str, Tensor], spare: Collection[str]) -> None:
    """Give a model its weights; every one of theirs must have been of use, but for a copy of a tied one."""
    links = [link.among(weights.keys()) for link in links]
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    used = {name for link in links for name in link.theirs}
    needed = {name for link in links if link.ours for name in link.theirs}
    if missing := sorted(needed - weights.keys()):
        raise DamageError(f"tensor {missing[0]} is missing, and {len(missing) - 1} more")
    left = sorted(name for name in weights.keys() - used if name not in COPIES and not name.endswith(COMPUTED))
    if strange := [name for name in left if name not in spare]:
        raise DamageError(f"tensor {strange[0]} has no place in the model, and {len(strange) - 1} more")
    if left:
        log.info("left out, for the model has no use for them: %s", ", ".join(left))
    for link in links:
        if not link.ours and link.theirs[0] in weights:
            link.form.ours([weights[name] for name in link.theirs], [])
    model.fill(Followed(links, weights, shapes))


def save_model(model: Model, path: Path, more: Mapping[str, Any] | None = None, wanted: str | None = None) -> Family:
    """Write a model as a folder of theirs; `more` goes into the config.

    It is written as the first family that can express it, or as the one wanted: a Phi-3 without a window is a Llama.
    """
    config = model.config.expand()
    family = family_for(config, wanted)
    own = model.weights()
    told = {"model_type": family.name, "architectures": [family.architectures[0]], **family.write(config)}
    told |= {"dtype": str(next(iter(own.values())).dtype).removeprefix("torch."), "heddle_version": VERSION}
    told |= more or {}
    if changes := diff(bare(config), bare(family.read(Theirs(told)))):
        raise UsageError(f"what goes into the config besides would change the model: {changes[0]}")
    weights: dict[str, Tensor] = {}
    for link in family.links(config):
        made = link.form.theirs([own[name] for name in link.ours])
        weights |= {name: tensor.contiguous() for name, tensor in zip(link.theirs, made, strict=True)}
    write_folder(path, told, weights)
    return family


def family_for(config: ModelConfig, wanted: str | None = None) -> Family:
    """Return the family, of all or the one wanted, that can express a model; else name what the nearest lacks."""
    lacks: dict[str, list[Change]] = {}
    reasons: dict[str, str] = {}
    among = FAMILIES if wanted is None else {wanted: family_of({"model_type": wanted}, "wanted")}
    for name, family in among.items():
        if not isinstance(config, family.form):
            continue
        try:
            again = family.read(Theirs({"model_type": name, **family.write(config)}))
        except (UsageError, ConfigError) as error:
            reasons[name] = str(error)
            continue
        lacks[name] = diff(bare(config), bare(again))
        if not lacks[name]:
            return family
    if not lacks:
        near, reason = next(iter(reasons.items()), ("any", "it has no such form"))
        raise NoCounterpart(f"no family of Hugging Face's is near this model; {near}: {reason}")
    near = min(lacks, key=lambda name: len(lacks[name]))
    ours = str(lacks[near][0]).partition(" -> ")[0]
    raise NoCounterpart(
        f"no family of Hugging Face's has all parts of this model; the nearest, {near}, has no counterpart for {ours}"
    )


def _bare_experts(config: ExpertsConfig) -> ExpertsConfig:
    """Return experts as they are once trained: which of them is favoured is a weight, what balanced them is past."""
    balance = BiasBalanceConfig() if isinstance(config.balance, BiasBalanceConfig) else NoBalanceConfig()
    made = swap(TokenChoiceConfig, lambda router: replace(router, jitter=0.0))(config)
    return replace(made, balance=balance, capacity=DroplessConfig(), z_loss=0.0)


def bare(config: ModelConfig) -> ModelConfig:
    """Return a config with sizes written out and nothing that only training knows: what two must share to be one."""
    if not isinstance(config, LanguageModelConfig | EncoderDecoderConfig | EncoderConfig):
        return config
    width = config.width

    def attention(a: AttentionConfig) -> AttentionConfig:
        return replace(a, kv_heads=a.kv_heads or a.heads, head_width=head_width_of(a, width), dropout=0.0)

    def cross(a: CrossAttentionConfig) -> CrossAttentionConfig:
        return replace(a, kv_heads=a.kv_heads or a.heads, head_width=head_width_of(a, width), dropout=0.0)

    for edit in (
        swap(AttentionConfig, attention),
        swap(CrossAttentionConfig, cross),
        swap(FeedForwardConfig, lambda c: replace(c, hidden=hidden_of(c, width))),
        swap(GatedFeedForwardConfig, lambda c: replace(c, hidden=hidden_of(c, width))),
        swap(LatentAttentionConfig, lambda a: replace(a, dropout=0.0)),
        swap(ExpertsConfig, _bare_experts),
        swap(DropoutConfig, EachDropoutConfig()),
        swap(Config, _plain),
    ):
        config = edit(config)
    return replace(config, init=NormalInitConfig())


def _plain(config: Config) -> Config:
    """Return a part without dropout, and without names for its classes: neither changes what it computes."""
    found = fields_of(config)
    changes: dict[str, object] = {"dropout": 0.0} if isinstance(found.get("dropout"), float) else {}
    return replace(config, **(changes | ({"labels": ()} if "labels" in found else {})))
