"""Random small models for R27: presets with their dials turned, and parts put together by chance."""

import random
from typing import Any

from laws.cases import (
    CHANNEL,
    CROSS,
    EXPERTS,
    HEADS,
    SMALL,
    VOCAB,
    Case,
    own_presets,
    pair,
    small,
    tower,
)

from heddle.core import ConfigError, find, replace
from heddle.models.networks import EncoderDecoderConfig, LanguageModelConfig, TowerConfig, pre_norm, sandwich
from heddle.models.presets import Preset
from heddle.nn.attention import (
    AdditiveScoreConfig,
    AttentionConfig,
    DotScoreConfig,
    GeneralScoreConfig,
    LatentAttentionConfig,
    LatentWidthsConfig,
    ProjectionsConfig,
    SinkScoreConfig,
)
from heddle.nn.channels import FeedForwardConfig, GatedFeedForwardConfig, ProductKeysConfig
from heddle.nn.convolution import DynamicConvolutionConfig, LightweightConvolutionConfig
from heddle.nn.ends import EmbeddingConfig
from heddle.nn.layers import FullMaskConfig, LayerNormConfig, RMSNormConfig, SlidingWindowConfig
from heddle.nn.positions import (
    AlibiPositionConfig,
    BinaryIndexPositionConfig,
    LearnedPositionConfig,
    NoPositionConfig,
    RelativePositionConfig,
    RotaryPositionConfig,
    SinusoidalPositionConfig,
    T5PositionConfig,
)
from heddle.nn.recurrent import GRUConfig, LSTMConfig, NGramConfig, QRNNConfig
from heddle.nn.stack import ChainConfig, LoopConfig, RepeatConfig, SumConfig

CONTEXT = 32  # more than the smallest windows and their slack: their caches go round


def presets() -> list[Case]:
    """Return every preset that writes, small, edits of another included."""
    found = []
    for name, named in own_presets().items():
        if named.make.__name__ in SMALL and reads_ids(named):
            made = named.make(**SMALL[named.make.__name__] | _sizes(named.option_names))
            found.append(Case(f"preset={name}", made if named.edit is None else named.edit(made)))
    return found


def reads_ids(named: Preset) -> bool:
    """Tell whether a preset's sources, if it has any, are texts: a recognizer's are frames, a captioner's images."""
    return all(one.reads == "ids" for one in find(named.make(), EmbeddingConfig))


def _sizes(known: list[str]) -> dict[str, int]:
    return {dial: size for dial, size in (("vocab", VOCAB), ("context", CONTEXT)) if dial in known}


def random_case(number: int) -> Case:
    """Return one random model, a language model or an encoder-decoder; the number decides it alone."""
    draw = random.Random(number)
    forms = (turned_preset, turned_preset, put_together, put_together, paired)
    while True:
        form = draw.choice(forms)
        try:
            name, config = form(draw)
            config.build()  # pairs without meaning are refused here at the latest
        except ConfigError:
            continue
        return Case(f"{number}: {name}", config)


def turned_preset(draw: random.Random) -> tuple[str, Any]:
    """Return a preset with its dials turned by chance."""
    writing = {
        name: named for name, named in own_presets().items() if named.make.__name__ in SMALL and reads_ids(named)
    }
    edited = draw.choice([name for name, named in writing.items() if named.edit is not None])
    name = draw.choice([edited, *(name for name, named in writing.items() if named.edit is None)])
    named = writing[name]
    heads = draw.choice((1, 2, 4))
    turned: dict[str, Any] = {
        "layers": draw.choice((1, 2, 3)),
        "width": draw.choice((8, 16, 24)),
        "heads": heads,
        "kv_heads": draw.choice([n for n in (1, 2, 4) if n <= heads]),
        "head_width": draw.choice((4, 6)),
        "hidden": draw.choice((10, 24)),
        "experts": draw.choice((2, 3, 5)),
        "window": draw.choice((2, 3, 7)),
    }
    dials: dict[str, Any] = {d: turned.get(d, size) for d, size in SMALL[named.make.__name__].items()}
    made = named.make(**dials | _sizes(named.option_names))
    words = " ".join(f"{dial}={value}" for dial, value in dials.items())
    return f"{name} {words}", made if named.edit is None else named.edit(made)


def attention(draw: random.Random) -> AttentionConfig:
    """Return attention of some form."""
    window = SlidingWindowConfig(size=draw.choice((1, 2, 3, 6)), sinks=draw.choice((0, 0, 1, 2)))
    scores = (DotScoreConfig(), DotScoreConfig(), DotScoreConfig(softcap=5.0), SinkScoreConfig())
    return AttentionConfig(
        heads=HEADS,
        kv_heads=draw.choice((None, 1, 2)),
        head_width=draw.choice((None, 6)),
        projections=draw.choice((ProjectionsConfig(), ProjectionsConfig(bias=True, norm=RMSNormConfig()))),
        score=draw.choice((*scores, AdditiveScoreConfig(), GeneralScoreConfig())),
        mask=draw.choice((FullMaskConfig(), window)),
    )


def channel(draw: random.Random) -> Any:
    """Return a channel of some form."""
    experts = replace(EXPERTS, experts=draw.choice((2, 5)), shared=draw.choice((None, CHANNEL)))
    keys = ProductKeysConfig(keys=6, heads=2, top_k=3, key_width=8)
    return draw.choice((FeedForwardConfig(hidden=24), GatedFeedForwardConfig(hidden=12), experts, keys))


def mixer(draw: random.Random) -> Any:
    """Return a mixer of some form, attention half the time."""
    widths = LatentWidthsConfig(key=3, rotary=4, value=5)
    others = (
        LSTMConfig(hidden=8),
        GRUConfig(),
        QRNNConfig(hidden=12, window=draw.choice((1, 2))),
        NGramConfig(n=draw.choice((2, 4))),
        DynamicConvolutionConfig(taps=3, heads=4),
        LightweightConvolutionConfig(taps=4, heads=2),
        LatentAttentionConfig(heads=HEADS, latent=6, widths=widths, mask=draw.choice((FullMaskConfig(), _near(draw)))),
    )
    if draw.random() < 0.5:
        return attention(draw)
    return draw.choice((*others, SumConfig(parts=(attention(draw), draw.choice(others[:2])))))


def _near(draw: random.Random) -> SlidingWindowConfig:
    return SlidingWindowConfig(size=draw.choice((2, 5)))


def position(draw: random.Random) -> Any:
    """Return a position of some form."""
    in_the_stream = (LearnedPositionConfig(), SinusoidalPositionConfig(), BinaryIndexPositionConfig())
    between = (
        RotaryPositionConfig(share=draw.choice((0.5, 1.0))),
        AlibiPositionConfig(),
        T5PositionConfig(buckets=8, farthest=10),
        RelativePositionConfig(clip=draw.choice((2, 5))),
    )
    return draw.choice((NoPositionConfig(), *in_the_stream, *between, *between))


def put_together(draw: random.Random) -> tuple[str, LanguageModelConfig]:
    """Return a language model of a few unlike blocks."""
    norm, around_it = draw.choice((LayerNormConfig(), RMSNormConfig())), draw.choice((pre_norm, sandwich))
    blocks = tuple(around_it(mixer(draw), channel(draw), norm=norm) for _ in range(draw.choice((1, 2, 3))))
    plan = draw.choice((ChainConfig(bodies=blocks), LoopConfig(body=blocks[0], turns=2)))
    config = small(plan, position=position(draw), norm=norm)
    kinds = ", ".join(branch.part.kind for block in blocks for branch in block.branches)
    return f"{kinds} / {config.position.kind}", replace(config, context=CONTEXT)


def paired(draw: random.Random) -> tuple[str, EncoderDecoderConfig]:
    """Return an encoder-decoder whose sides are unlike."""
    reading, writing = position(draw), position(draw)
    encoder = replace(tower(attention(draw), channel(draw)), position=reading)
    own = mixer(draw)
    norm = LayerNormConfig()
    block = pre_norm(own, replace(CROSS, kv_heads=draw.choice((None, 1, 2))), channel(draw), norm=norm)
    decoder = TowerConfig(plan=RepeatConfig(body=block, times=draw.choice((1, 2))), position=writing, norm=norm)
    config = replace(pair(encoder, decoder), context=CONTEXT)
    return f"{reading.kind} -> {own.kind} / {writing.kind}", config
