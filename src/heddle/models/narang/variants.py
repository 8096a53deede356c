"""Narang et al. (2021), "Do Transformer Modifications Transfer?": their baseline and 52 variants as edits of it.

docs/narang.md describes them, what is odd in the original code, and the usual forms.
"""

from fractions import Fraction

from heddle.core import replace, swap
from heddle.models.narang.architectures import (
    REZERO,
    dynamic_convolution,
    evolved,
    experts,
    fixup,
    funnel,
    lightweight_convolution,
    product_keys,
    synthesizer,
    unchanged,
    universal,
    weighted,
)
from heddle.models.narang.edits import (
    NORM,
    UNTIED,
    Edit,
    adaptive_input,
    adaptive_softmax,
    compose,
    edit_towers,
    factorized_input,
    factorized_tied,
    share_layers,
    ties,
    with_activation,
    with_depth,
    with_gate,
    with_norm,
)
from heddle.models.networks import INPUTS, ONE_TABLE, OUTPUT, EncoderDecoderConfig, TieConfig, TowerConfig, pre_norm
from heddle.nn.attention import (
    AlphaConfig,
    AttentionConfig,
    ConstantPatternConfig,
    CrossAttentionConfig,
    DensePatternConfig,
    FactorizedPatternConfig,
    PlusConfig,
    RandomPatternConfig,
)
from heddle.nn.base import NarangInitConfig, PartConfig
from heddle.nn.channels import FeedForwardConfig, NarangChoiceConfig, TokenChoiceConfig
from heddle.nn.convolution import LightweightConvolutionConfig
from heddle.nn.ends import AdaptiveHeadConfig, MixtureHeadConfig, SoftmaxHeadConfig
from heddle.nn.layers import NoNormConfig, PartialRMSNormConfig, RMSNormConfig
from heddle.nn.positions import T5PositionConfig
from heddle.nn.stack import GatedConfig, NarangGateConfig, RepeatConfig, TransparentConfig


def narang(
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    head_width: int | None = None,
    hidden: int | None = None,  # four times the width
    vocab: int = 32_128,
    context: int = 512,
) -> EncoderDecoderConfig:
    """Base of Narang et al. (2021): encoder-decoder, pre-norm, bucketed relative bias, one table for all."""
    attention = AttentionConfig(heads=heads, head_width=head_width)
    cross = CrossAttentionConfig(heads=heads, head_width=head_width)
    channel = FeedForwardConfig(hidden=4 * width if hidden is None else hidden, bias=True)
    return EncoderDecoderConfig(
        vocab=vocab,
        width=width,
        context=context,
        encoder=_tower(layers, attention, channel),
        decoder=_tower(layers, attention, cross, channel),
        head=SoftmaxHeadConfig(power=-0.5),
        init=NarangInitConfig(),
        ties=ONE_TABLE,
    )


def _tower(layers: int, *parts: PartConfig) -> TowerConfig:
    plan = RepeatConfig(body=pre_norm(*parts, norm=NORM), times=layers)
    return TowerConfig(plan=plan, position=T5PositionConfig(), norm=NORM)


BLOCK_SHARING = compose(edit_towers(share_layers), ties(UNTIED, INPUTS))

VARIANTS: dict[str, tuple[Edit, str]] = {
    "vanilla-transformer": (unchanged, "the base itself, unchanged"),
    "gelu": (with_activation("gelu_tanh"), "GELU in the feed-forward"),
    "swish": (with_activation("swish"), "Swish in the feed-forward"),
    "elu": (with_activation("elu"), "ELU in the feed-forward"),
    "glu": (with_gate("sigmoid"), "feed-forward gated by a sigmoid"),
    "geglu": (with_gate("gelu_tanh"), "feed-forward gated by GELU"),
    "reglu": (with_gate("relu"), "feed-forward gated by ReLU"),
    "selu": (with_activation("selu"), "SELU in the feed-forward"),
    "swiglu": (with_gate("swish"), "feed-forward gated by Swish"),
    "liglu": (with_gate("linear"), "feed-forward of two linear layers multiplied"),
    "sigmoid": (with_activation("sigmoid"), "sigmoid in the feed-forward"),
    "softplus": (with_activation("softplus"), "softplus in the feed-forward"),
    "rms-norm": (with_norm(PartialRMSNormConfig()), "RMS norm by the first features alone"),
    "rezero": (compose(with_norm(NoNormConfig()), REZERO), "no norms, each branch times a scalar that starts at zero"),
    "rezero-layernorm": (REZERO, "each branch times a scalar that starts at zero"),
    "rezero-rms-norm": (
        compose(with_norm(RMSNormConfig()), REZERO),
        "RMS norm, each branch times a scalar from zero",
    ),
    "fixup": (fixup, "no norms: scalar shifts and scales, Fixup initialization"),
    "block-sharing": (BLOCK_SHARING, "one block for all layers of a tower"),
    "block-sharing-factorized-embeddings": (
        compose(edit_towers(share_layers), factorized_input),
        "one block per tower, factorized input table",
    ),
    "block-sharing-factorized-shared-embeddings": (
        compose(edit_towers(share_layers), factorized_tied),
        "one block per tower, factorized table for inputs and output",
    ),
    "encoder-only-block-sharing": (
        compose(lambda c: replace(c, encoder=share_layers(c.encoder)), ties(UNTIED, INPUTS)),
        "one block for all encoder layers",
    ),
    "decoder-only-block-sharing": (
        compose(lambda c: replace(c, decoder=share_layers(c.decoder)), ties(UNTIED, INPUTS)),
        "one block for all decoder layers",
    ),
    "factorized-embedding": (factorized_input, "factorized input table, full output"),
    "factorized-shared-embeddings": (factorized_tied, "factorized table for inputs and output"),
    "tied-encoder-decoder-input-embeddings": (ties(UNTIED, INPUTS), "one input table, its own output"),
    "tied-decoder-input-and-output-embeddings": (
        ties(SoftmaxHeadConfig(power=-0.5), TieConfig(share="head.weight", of="decoder.embedding.weight")),
        "the encoder has its own table",
    ),
    "untied-embeddings": (ties(UNTIED), "three tables: two inputs and the output"),
    "adaptive-input-embeddings": (adaptive_input, "narrower vectors for rarer tokens, inputs and output"),
    "adaptive-softmax": (adaptive_softmax(1, 3, 12, 1), "softmax in two levels, narrower for rarer tokens"),
    "adaptive-softmax-without-projection": (adaptive_softmax(1, 1, 1, 1), "softmax in two levels"),
    "mixture-of-softmaxes": (
        ties(MixtureHeadConfig(power=-0.5, deviation=1.0), INPUTS, OUTPUT),
        "fifteen softmaxes, mixed",
    ),
    "transparent-attention": (
        lambda c: replace(c, tap=TransparentConfig()),
        "each decoder layer sees its own mix of all encoder layers",
    ),
    "dynamic-convolution": (dynamic_convolution, "convolution kernel predicted per position"),
    "lightweight-convolution": (lightweight_convolution, "convolution with a learned kernel"),
    "evolved-transformer": (evolved, "blocks found by architecture search"),
    "synthesizer-dense": (synthesizer(DensePatternConfig()), "scores predicted from the query alone"),
    "synthesizer-dense-plus": (synthesizer(DensePatternConfig(), PlusConfig()), "the same, plus dot-product attention"),
    "synthesizer-dense-plus-alpha": (
        synthesizer(DensePatternConfig(), AlphaConfig()),
        "the same, mixed by a learned alpha",
    ),
    "synthesizer-factorized": (synthesizer(ConstantPatternConfig()), "scores of low rank, the same for all queries"),
    "synthesizer-random": (synthesizer(RandomPatternConfig()), "a learned score for each pair of positions"),
    "synthesizer-random-plus": (
        synthesizer(RandomPatternConfig(), PlusConfig()),
        "the same, plus dot-product attention",
    ),
    "synthesizer-random-plus-alpha": (
        synthesizer(RandomPatternConfig(), AlphaConfig()),
        "the same, mixed by a learned alpha",
    ),
    "universal-transformer": (universal, "one gated block per tower, applied repeatedly"),
    "mixture-of-experts": (
        experts(NarangChoiceConfig(), 0.5, (2.0, 1.25)),
        "32 experts, two a token, in every fourth layer",
    ),
    "switch-transformer": (
        experts(TokenChoiceConfig(top_k=1, normalized=False, jitter=0.01), 1.0, (1.2, 1.25)),
        "32 experts, one a token, in every fourth layer",
    ),
    "funnel-transformer": (funnel, "an encoder whose rows are halved twice"),
    "weighted-transformer": (weighted, "every head through a feed-forward, added by learned weights"),
    "product-key-memory": (product_keys, "a memory of product keys in the decoder"),
}

# Other depths at equal cost. Names count the layers for the 12 of the paper's base; as edits they hold for any base.
DEPTHS = {
    f"{layers}-layers": (with_depth(Fraction(layers, 12)), f"{layers} layers for 12 of the base, equal cost")
    for layers in (24, 18, 8, 6)
}

# What the paper ran by accident or left out, in its usual form: further edits, not rows of its table.
CORRECTED: dict[str, tuple[Edit, str]] = {
    "rms-norm-whole": (with_norm(RMSNormConfig()), "RMS norm by all features"),
    "synthesizer-factorized-true": (synthesizer(FactorizedPatternConfig()), "scores of low rank by query and key"),
    "adaptive-softmax-whole": (
        compose(adaptive_softmax(1, 3, 12, 1), swap(AdaptiveHeadConfig, lambda h: replace(h, share=None))),
        "softmax in two levels in which every target counts",
    ),
    "mixture-of-experts-spelt": (
        experts(NarangChoiceConfig(), 0.5, (2.0, 2.0)),
        "32 experts with the capacity that was meant for the decoder too",
    ),
    "universal-transformer-tanh": (
        compose(universal, swap(NarangGateConfig, lambda _: GatedConfig())),
        "the gate with a tanh candidate",
    ),
    "lightweight-convolution-heads": (
        compose(lightweight_convolution, swap(LightweightConvolutionConfig, lambda m: replace(m, heads=2))),
        "two tied filters, as the settings specify",
    ),
}
