"""Cases: one small model for every registered kind of part and every preset, so that a law written once meets them all.

A kind whose fields all have defaults is picked up by itself. A kind with required fields needs a line in `EXAMPLES`;
without it, `cases()` fails and says so. A kind that cannot stand where its family stands (it reads both ways, say)
needs a home of its own in `HOMES`. A new preset function needs its small sizes in `SMALL`.

`cases()` are language models; `pairs()` are encoder-decoders, whose decoder keeps the same laws once it has a source.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heddle.core import Config, ConfigError, find, kinds, replace
from heddle.models.laws.small_models import (  # noqa: F401 - tests take these from here
    ATTENTION,
    BLOCK,
    CHANNEL,
    CONTEXT,
    CROSS,
    EXPERTS,
    FAMILIES,
    HEADS,
    POOLER,
    VOCAB,
    WIDTH,
    Given,
    apart,
    around,
    as_source,
    attention_rnn_pair,
    bridged,
    built,
    encoder,
    idle,
    ids,
    loud,
    pair,
    small,
    tower,
    watching,
)
from heddle.models.networks import (
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    ModelConfig,
    pre_norm,
    sandwich,
)
from heddle.models.presets import PRESETS, Preset
from heddle.nn.adapters import LoraConfig
from heddle.nn.attention import (
    AdditiveScoreConfig,
    AlphaConfig,
    BranchedAttentionConfig,
    BranchedCrossAttentionConfig,
    DensePatternConfig,
    FactorizedPatternConfig,
    LatentAttentionConfig,
    LatentWidthsConfig,
    ProjectionsConfig,
    SinkScoreConfig,
    SynthesizerConfig,
)
from heddle.nn.channels import (
    CapacityConfig,
    ExpertChoiceConfig,
    IdentityConfig,
    LoadBalancingConfig,
    NarangChoiceConfig,
    NoLoadBalancingConfig,
    PerDocumentCapacityConfig,
    ProductKeysConfig,
    SigmoidChoiceConfig,
)
from heddle.nn.convolution import (
    DynamicConvolutionConfig,
    EvolvedDecoderConvolutionConfig,
    EvolvedEncoderConvolutionConfig,
    LightweightConvolutionConfig,
)
from heddle.nn.ends import (
    AdaptiveEmbeddingConfig,
    AdaptiveHeadConfig,
    ClusterConfig,
    ClusteredHeadConfig,
    FrameEmbeddingConfig,
    FullEmbeddingConfig,
    PointerGeneratorHeadConfig,
)
from heddle.nn.layers import (
    LayerNormConfig,
    OffsetRMSNormConfig,
    PartialRMSNormConfig,
    RMSNormConfig,
    SlidingWindowConfig,
)
from heddle.nn.outputs import MultiLabelOutputConfig, SequenceClassOutputConfig, TokenClassOutputConfig
from heddle.nn.positions import (
    AlibiPositionConfig,
    DualRotaryPositionConfig,
    LinearScalingConfig,
    NoPositionConfig,
    NTKScalingConfig,
    RelativePositionConfig,
    RotaryPositionConfig,
    T5PositionConfig,
    YarnScalingConfig,
)
from heddle.nn.recurrent import (
    AttentionRNNConfig,
    BidirectionalConfig,
    LSTMConfig,
    MogrifierConfig,
    NoBridgeConfig,
    QRNNConfig,
    SegmentRecurrenceConfig,
    StackedCellsConfig,
)
from heddle.nn.sources import (
    ConvolutionalStemConfig,
    LearnedGridConfig,
    OneSourceConfig,
    PatchEmbeddingConfig,
    SeveralEmbeddingConfig,
    TubeletEmbeddingConfig,
)
from heddle.nn.stack import (
    BlockConfig,
    BranchConfig,
    ChainConfig,
    EntryConfig,
    LoopConfig,
    PoolConfig,
    RepeatConfig,
    ReplaceConfig,
    RootedConfig,
    SteppedLoopConfig,
    SumConfig,
)

CLUSTERS = (ClusterConfig(size=9), ClusterConfig(size=8, width=6), ClusterConfig(width=4))

# What stands for a kind whose fields have no defaults, or whose defaults do not suit the small sizes.
EXAMPLES: dict[type[Config], Config] = {
    type(example): example
    for example in (
        ATTENTION,
        CROSS,
        BLOCK,
        ConvolutionalStemConfig(channels=(3, 4), blocks=1, frames=3),
        SeveralEmbeddingConfig(
            sources=(
                OneSourceConfig(shape=(1, 4, 4), embedding=TubeletEmbeddingConfig(frames=2, size=2, channels=1)),
                OneSourceConfig(
                    shape=(3,), steps=2, embedding=FrameEmbeddingConfig(features=3, halvings=1, channels=2)
                ),
            )
        ),
        PartialRMSNormConfig(
            share=0.5
        ),  # by default one feature of 16, and x / |x[0]| amplifies rounding without bound
        SlidingWindowConfig(size=3),
        LatentAttentionConfig(heads=HEADS, latent=6, widths=LatentWidthsConfig(key=3, rotary=4, value=5)),
        RelativePositionConfig(clip=3),
        T5PositionConfig(buckets=8, farthest=10),
        SegmentRecurrenceConfig(heads=HEADS, memory=5),
        LinearScalingConfig(factor=2.0),
        NTKScalingConfig(factor=2.0),
        YarnScalingConfig(factor=2.0, original=64, fast=4.0),
        RepeatConfig(body=BLOCK, times=2),
        RootedConfig(body=BLOCK, times=3),
        ChainConfig(bodies=(BLOCK, pre_norm(LSTMConfig(hidden=8), norm=RMSNormConfig()))),
        LoopConfig(body=BLOCK, turns=3),
        SteppedLoopConfig(body=BLOCK, turns=2, before=1, after=1),
        SynthesizerConfig(heads=HEADS),
        EXPERTS,
        PerDocumentCapacityConfig(max_capacity=3),
        NarangChoiceConfig(
            second_threshold=1e-9
        ),  # the second expert always: chance, like dropout, has no place in laws
        ProductKeysConfig(keys=6, heads=2, top_k=3, key_width=8),
        BranchedAttentionConfig(attention=ATTENTION, channel=CHANNEL),
        BranchedCrossAttentionConfig(attention=CROSS, channel=CHANNEL),
        AdaptiveEmbeddingConfig(clusters=CLUSTERS),
        AdaptiveHeadConfig(clusters=CLUSTERS),
        ClusteredHeadConfig(clusters=CLUSTERS),
        SequenceClassOutputConfig(classes=3),
        TokenClassOutputConfig(classes=4),
        MultiLabelOutputConfig(classes=3),
        StackedCellsConfig(cells=(MogrifierConfig(hidden=8, rounds=2), QRNNConfig(hidden=6, window=1), LSTMConfig())),
    )
}

# Options that make a preset small, by the name of its function.
SMALL: dict[str, dict[str, int | float]] = {
    "first": {"layers": 2, "width": WIDTH, "heads": HEADS},
    "speedrun": {"layers": 2, "width": WIDTH, "heads": HEADS},
    "gpt2": {"layers": 2, "width": WIDTH, "heads": HEADS},
    "gpt": {"layers": 2, "width": WIDTH, "heads": HEADS},
    "gpt3": {"layers": 2, "width": WIDTH, "heads": HEADS},
    "mistral": {"layers": 2, "width": WIDTH, "heads": HEADS, "kv_heads": 2, "hidden": 24, "window": 5},
    "qwen3": {"layers": 2, "width": WIDTH, "heads": HEADS, "kv_heads": 2, "head_width": 6, "hidden": 24},
    "transformer": {"layers": 2, "width": WIDTH, "heads": HEADS, "dropout": 0.0},
    "transformer_pre_norm": {"layers": 2, "width": WIDTH, "heads": HEADS, "dropout": 0.0},
    "t5": {"layers": 2, "width": WIDTH, "heads": HEADS, "head_width": 6, "hidden": 24},
    "t5_1_1": {"layers": 2, "width": WIDTH, "heads": HEADS, "head_width": 6, "hidden": 24},
    "bart": {"layers": 2, "width": WIDTH, "heads": HEADS},
    "marian": {"layers": 2, "width": WIDTH, "heads": HEADS},
    "narang": {"layers": 2, "width": 36, "heads": 6, "hidden": 48},
    "llama": {"layers": 2, "width": WIDTH, "heads": HEADS, "kv_heads": 2, "hidden": 24},
    "mixtral": {"layers": 2, "width": WIDTH, "heads": HEADS, "kv_heads": 2, "hidden": 12, "experts": 4},
    "switch": {"layers": 2, "width": WIDTH, "heads": HEADS, "hidden": 12, "experts": 3},
    "lstm_lm": {"layers": 2, "width": WIDTH},
    "gru_lm": {"layers": 2, "width": WIDTH},
    "rnn_lm": {"layers": 2, "width": WIDTH},
    "window_lm": {"width": WIDTH, "hidden": 24},
    "seq2seq_lstm": {"layers": 2, "width": WIDTH},
    "seq2seq_lstm_every_step": {"layers": 2, "width": WIDTH},
    "seq2seq_attention": {"layers": 2, "width": WIDTH},
    "awd_lstm": {"layers": 2, "width": WIDTH, "hidden": 24, "dropout": 0.0},
    "mogrifier_lm": {"layers": 2, "width": WIDTH, "hidden": 24, "dropout": 0.0},
    "qrnn_lm": {"layers": 2, "width": WIDTH, "hidden": 24, "dropout": 0.0},
    "transformer_xl": {"layers": 2, "width": WIDTH, "heads": HEADS, "hidden": 24, "memory": 4, "dropout": 0.0},
    "speech_transformer": {"layers": 2, "width": WIDTH, "heads": HEADS, "features": 5, "dropout": 0.0},
    "speech_lstm": {"layers": 2, "width": WIDTH, "features": 5, "dropout": 0.0},
    "image_captioner": {"layers": 1, "width": WIDTH, "heads": HEADS, "hidden": 24, "dropout": 0.0, "patch": 1},
    "video_captioner": {"layers": 1, "width": WIDTH, "heads": HEADS, "hidden": 24, "dropout": 0.0, "patch": 1},
    "show_attend_tell": {"layers": 1, "width": WIDTH, "dropout": 0.0},
    "audio_visual_transformer": {
        "layers": 1,
        "width": WIDTH,
        "heads": HEADS,
        "hidden": 24,
        "dropout": 0.0,
        "columns": 32,
        "mels": 5,
    },
}

# The same for encoders, which have laws of their own.
ENCODERS: dict[str, dict[str, int | float]] = {
    "bert": {"layers": 2, "width": WIDTH, "heads": HEADS, "dropout": 0.0},
    "roberta": {"layers": 2, "width": WIDTH, "heads": HEADS, "dropout": 0.0},
    "distilbert": {"layers": 2, "width": WIDTH, "heads": HEADS, "dropout": 0.0},
    "albert": {"layers": 2, "width": WIDTH, "heads": HEADS, "inner": 8},
    "electra": {"layers": 2, "width": WIDTH, "heads": HEADS, "dropout": 0.0, "generator": 2},
    "speech_ctc": {"layers": 2, "width": WIDTH, "heads": HEADS, "features": 5, "dropout": 0.0},
    "vit": {"layers": 2, "width": WIDTH, "heads": HEADS, "side": 12, "patch": 4, "classes": 5},
}


@dataclass(frozen=True)
class Case:
    """One small model and the name that a failing law shows."""

    name: str
    config: Any  # a LanguageModelConfig or, of pairs, an EncoderDecoderConfig

    @property
    def stepwise(self) -> bool:
        """Tell whether the model can go on from a state."""
        return isinstance(self.config, EncoderDecoderConfig) or self.config.sight == "past"

    @property
    def packs(self) -> bool:
        """Tell whether rows may hold several documents: a state that began with a source cannot begin again."""
        return isinstance(self.config, LanguageModelConfig) or isinstance(self.config.bridge, NoBridgeConfig)

    @property
    def splits(self) -> bool:
        """Tell whether the pieces of a batch make the step of the whole: not where experts look at a micro-batch."""
        return not any(
            one.depends_on_batch
            for family in (LoadBalancingConfig, CapacityConfig)
            for one in find(self.config, family)
        )


def own(family: type[Config]) -> dict[str, type[Config]]:
    """Return the kinds of a family that the library itself registers; tests register some of their own."""
    return {kind: cls for kind, cls in kinds(family).items() if cls.__module__.startswith("heddle.")}


def example(cls: type[Config]) -> Config:
    """Return one member of a kind: from `EXAMPLES`, or all defaults."""
    if cls in EXAMPLES:
        return EXAMPLES[cls]
    try:
        return cls()
    except TypeError:
        raise ConfigError(cls.__name__, want="an example in tests/laws/cases.py", got="none") from None


# Where a kind stands that cannot stand where its family does.
HOMES: dict[type[Config], Callable[[Any], ModelConfig]] = {
    BidirectionalConfig: lambda mixer: replace(around(mixer, CHANNEL), sight="all"),
    EntryConfig: lambda entry: small(ChainConfig(bodies=(replace(entry, norm=LayerNormConfig()), BLOCK))),
    ExpertChoiceConfig: lambda router: pair(
        tower(ATTENTION, replace(EXPERTS, router=router, balance=NoLoadBalancingConfig()))
    ),
    PatchEmbeddingConfig: lambda patches: encoder(
        vocab=None, embedding=replace(patches, size=4), outputs=(SequenceClassOutputConfig(classes=3),)
    ),
    FrameEmbeddingConfig: lambda frames: pair(
        replace(tower(ATTENTION, CHANNEL), embedding=replace(frames, features=5, halvings=1, channels=3))
    ),
    TubeletEmbeddingConfig: lambda _: watching(grid=LearnedGridConfig(), frames=1),
    SeveralEmbeddingConfig: lambda several: pair(
        replace(tower(ATTENTION, CHANNEL), embedding=several, position=NoPositionConfig())
    ),
    PoolConfig: lambda pool: pair(replace(tower(), plan=ChainConfig(bodies=(BLOCK, pool, BLOCK)))),
}


def of_kinds() -> list[Case]:
    """Return a case for every kind of every family."""
    return [
        Case(f"{family.__name__.removesuffix('Config').lower()}={kind}", HOMES.get(cls, put)(example(cls)))
        for family, put in FAMILIES.items()
        for kind, cls in own(family).items()
    ]


def of_presets() -> list[Case]:
    """Return a case for every preset function, and for every edit of what one makes."""
    return [Case(f"preset={name}", small_preset(named)) for name, named in own_presets().items()]


def own_presets() -> dict[str, Preset]:
    """Return one preset for each function, by the function's name, and each edit by its own."""
    return {named.make.__name__ if named.edit is None else name: named for name, named in PRESETS.items()}


def small_preset(named: Preset) -> ModelConfig:
    """Return a preset at a small size: its edit, if any, but none of its options."""
    name = named.make.__name__
    if name not in SMALL | ENCODERS:
        raise ConfigError(f"preset {name}", want="small options in tests/laws/cases.py", got="none")
    sizes = {option: size for option, size in (("vocab", VOCAB), ("context", CONTEXT)) if option in named.option_names}
    made = named.make(**(SMALL | ENCODERS)[name] | sizes)
    return made if named.edit is None else named.edit(made)


def preset_functions(*forms: type[ModelConfig]) -> list[str]:
    """Return the names of the preset functions that make models of some forms."""
    found = {name: small_preset(named) for name, named in own_presets().items() if named.edit is None}
    return [name for name, config in found.items() if isinstance(config, forms)]


def near_and_far() -> LanguageModelConfig:
    """Return a layer that sees a window and one that sees all, each with positions of its own."""
    layers = (replace(ATTENTION, kv_heads=2, mask=SlidingWindowConfig(size=3)), ATTENTION)
    bodies = tuple(sandwich(layer, CHANNEL, norm=OffsetRMSNormConfig()) for layer in layers)
    return replace(small(ChainConfig(bodies=bodies)), position=DualRotaryPositionConfig())


def more() -> list[Case]:
    """Return pairings in which bugs like to live."""
    normed = ProjectionsConfig(bias=True, output_bias=True, norm=RMSNormConfig())
    across = ProjectionsConfig(across=RMSNormConfig())
    post_norm = (
        BranchConfig(part=ATTENTION),
        BranchConfig(part=IdentityConfig(), norm=LayerNormConfig(), join=ReplaceConfig()),
        BranchConfig(part=CHANNEL),
        BranchConfig(part=IdentityConfig(), norm=LayerNormConfig(), join=ReplaceConfig()),
    )
    macaron = pre_norm(CHANNEL, ATTENTION, CHANNEL, norm=LayerNormConfig())
    recurrent = pre_norm(LSTMConfig(hidden=8), CHANNEL, norm=RMSNormConfig())
    windowed = replace(ATTENTION, kv_heads=2, mask=SlidingWindowConfig(size=4))
    sinking = replace(windowed, score=SinkScoreConfig(), mask=SlidingWindowConfig(size=3, sinks=2))
    additive = replace(ATTENTION, kv_heads=2, score=AdditiveScoreConfig())
    latent = replace(EXAMPLES[LatentAttentionConfig], query_latent=5, mask=SlidingWindowConfig(size=5))
    few = EXAMPLES[PerDocumentCapacityConfig]
    grouped = replace(EXPERTS, experts=4, router=SigmoidChoiceConfig(groups=2, top_groups=1, normalized=False))
    return [
        Case("multi-query", around(replace(ATTENTION, kv_heads=1), CHANNEL)),
        Case("narrow-window", around(replace(ATTENTION, mask=SlidingWindowConfig(size=2)), CHANNEL)),  # block by block
        Case("grouped-window-rotary", replace(around(windowed, CHANNEL), position=RotaryPositionConfig())),
        Case("wide-heads-normed", around(replace(ATTENTION, head_width=6, projections=normed), CHANNEL)),
        Case("grouped-normed-across", around(replace(ATTENTION, kv_heads=2, projections=across), CHANNEL)),
        Case("post-norm", small(BlockConfig(branches=post_norm))),
        Case("macaron-in-loop-in-repeat", small(RepeatConfig(body=LoopConfig(body=macaron, turns=2), times=2))),
        Case("recurrent-loop", small(LoopConfig(body=recurrent, turns=2))),
        Case("scaled-embedding", replace(around(ATTENTION), embedding=FullEmbeddingConfig(scale=4.0))),
        Case("window-sinks-alibi", replace(around(sinking, CHANNEL), position=AlibiPositionConfig())),
        Case("additive-relative", replace(around(additive, CHANNEL), position=RelativePositionConfig(clip=2))),
        Case("grouped-t5", replace(around(replace(ATTENTION, kv_heads=2), CHANNEL), position=T5PositionConfig())),
        Case("latent-rotary", replace(around(latent, CHANNEL), position=RotaryPositionConfig())),
        Case("near-and-far-rotary", near_and_far()),
        Case("grouped-sigmoid-choice", around(ATTENTION, grouped)),
        Case("part-rotary", replace(around(ATTENTION, CHANNEL), position=RotaryPositionConfig(share=0.5))),
        Case("parallel", around(SumConfig(parts=(ATTENTION, CHANNEL, LSTMConfig(hidden=8), ATTENTION)))),
        Case(
            "parallel-norms", around(SumConfig(parts=(ATTENTION, CHANNEL), norms=(LayerNormConfig(), RMSNormConfig())))
        ),
        Case("sandwich", small(sandwich(ATTENTION, replace(EXPERTS, shared=CHANNEL), norm=RMSNormConfig()))),
        Case("sight-all-places", replace(around(ATTENTION, replace(EXPERTS, capacity=few)), sight="all")),
        Case("sight-all", replace(around(ATTENTION, CHANNEL), sight="all")),
        Case(
            "sight-all-window",
            replace(around(replace(ATTENTION, mask=SlidingWindowConfig(size=3)), CHANNEL), sight="all"),
        ),
    ]


def convolutions_and_synthesizers() -> list[Case]:
    """Return those that look both ways, and blends of patterns."""
    guess = SynthesizerConfig(heads=HEADS, head_width=6, pattern=DensePatternConfig(), blend=AlphaConfig())
    both_ways = (
        LightweightConvolutionConfig(taps=4, heads=2, maps=2),
        DynamicConvolutionConfig(taps=3, heads=4),
        EvolvedEncoderConvolutionConfig(long=4),
        EvolvedDecoderConvolutionConfig(long=5, short=3),
        replace(guess, pattern=FactorizedPatternConfig(rank=3)),
    )
    return [
        Case("dense-alpha", around(guess, CHANNEL)),
        Case("shared-filters", around(DynamicConvolutionConfig(taps=3, heads=2, maps=2), CHANNEL)),
        *(Case(f"sight-all-{mixer.kind}", replace(around(mixer, CHANNEL), sight="all")) for mixer in both_ways),
    ]


def with_adapters() -> list[Case]:
    """Return models under adapters, those included whose parts multiply by a map in a way of their own."""
    rotary = replace(around(EXAMPLES[LatentAttentionConfig], CHANNEL), position=RotaryPositionConfig())
    return [
        Case("adapted-latent", replace(rotary, adapters=(LoraConfig(),))),
        Case("adapted-experts", replace(around(ATTENTION, EXPERTS), adapters=(LoraConfig(),))),
        Case("pair-adapted", pair(adapters=(LoraConfig(),))),
        Case("encoder-adapted", encoder(outputs=(TokenClassOutputConfig(classes=4),), adapters=(LoraConfig(),))),
    ]


def more_pairs() -> list[Case]:
    """Return encoder-decoders in which bugs like to live."""
    rotary = replace(tower(ATTENTION, CHANNEL), position=RotaryPositionConfig())
    grouped = tower(replace(ATTENTION, kv_heads=2), replace(CROSS, kv_heads=1), CHANNEL)
    places = replace(EXPERTS, capacity=EXAMPLES[PerDocumentCapacityConfig])
    both = tower(SumConfig(parts=(ATTENTION, CROSS)), EXPERTS)
    return [
        Case("pair", pair()),
        Case("pair-rotary-grouped", pair(rotary, grouped)),
        Case("pair-places", pair(tower(ATTENTION, places), tower(ATTENTION, CROSS, places))),
        Case("pair-parallel-experts", pair(tower(ATTENTION, EXPERTS), both)),
        Case("pair-copying-lstm", replace(attention_rnn_pair(AttentionRNNConfig()), head=PointerGeneratorHeadConfig())),
    ]


def every() -> list[Case]:
    """Return every case of every form."""
    return of_kinds() + of_presets() + more() + convolutions_and_synthesizers() + with_adapters() + more_pairs()


def cases() -> list[Case]:
    """Return every language model."""
    return [case for case in every() if isinstance(case.config, LanguageModelConfig)]


def pairs() -> list[Case]:
    """Return every encoder-decoder."""
    return [case for case in every() if isinstance(case.config, EncoderDecoderConfig)]


def encoders() -> list[Case]:
    """Return every encoder."""
    return [case for case in every() if isinstance(case.config, EncoderConfig)]


def missing(found: list[Case]) -> list[str]:
    """Return the kinds and preset functions that no case holds."""
    kinds_wanted = {cls.__name__ for family in FAMILIES for cls in own(family).values()}
    kinds_held = {type(c).__name__ for case in found for c in find(case.config, Config)}
    presets_wanted = {f"preset={name}" for name in own_presets()}
    return sorted((kinds_wanted - kinds_held) | (presets_wanted - {case.name for case in found}))
