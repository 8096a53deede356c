"""Streaming with attention sinks (Xiao et al. 2023), and scoring past the trained length."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heddle.core import ConfigError, HeddleError, UsageError, replace, swap
from heddle.decoding import generation_config
from heddle.decoding.generation import generate
from heddle.decoding.runtime import Streaming, StreamingConfig
from heddle.decoding.scoring import Continuation, ScoringWindows, nll_long_texts, nll_sliding_window
from heddle.models.networks import AutoregressiveModel, LanguageModel, LanguageModelConfig
from heddle.models.presets import preset
from heddle.nn.attention import Attention, AttentionConfig, LatentAttentionConfig, LatentWidthsConfig
from heddle.nn.layers import MaskConfig, SlidingWindowConfig
from heddle.nn.positions import (
    AlibiPositionConfig,
    DualRotaryPositionConfig,
    LearnedPositionConfig,
    NoPositionConfig,
    PositionConfig,
    RelativePositionConfig,
    RotaryPositionConfig,
    SinusoidalPositionConfig,
    T5PositionConfig,
    YarnScalingConfig,
)

VOCAB, CONTEXT = 50, 16
POSITIONS: dict[str, PositionConfig] = {
    "rotary": RotaryPositionConfig(),
    "interleaved": RotaryPositionConfig(order="interleaved", share=0.5),
    "yarn": RotaryPositionConfig(scaling=YarnScalingConfig(factor=4.0, original=16)),
    "dual": DualRotaryPositionConfig(),
    "alibi": AlibiPositionConfig(),
    "t5": T5PositionConfig(),
    "relative": RelativePositionConfig(clip=5),
    "none": NoPositionConfig(),
}


def small(position: PositionConfig | None = None, name: str = "first", layers: int = 2) -> LanguageModel:
    sizes: dict[str, Any] = {"layers": layers, "width": 32, "vocab": VOCAB, "context": CONTEXT}
    config = preset(name).config(**sizes, **({} if name == "lstm_lm" else {"heads": 2}))
    assert isinstance(config, LanguageModelConfig)
    model = (config if position is None else replace(config, position=position)).build(0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape, generator=draw))
    return model.eval()


def ids(rows: int, length: int) -> Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(2))


def streamed(model: LanguageModel, config: StreamingConfig, given: Tensor) -> Tensor:
    reader = Streaming(model, config)
    with torch.inference_mode():
        return torch.cat([v for _, v, _ in reader.read(given, None, reader.new_state(len(given)))], 1)


class Dropped(MaskConfig):
    """What streaming without sinks leaves: keys that were not dropped before the query was read."""

    def __init__(self, config: StreamingConfig) -> None:
        object.__setattr__(self, "streaming", config)

    def restrict(self, allowed: Tensor | None, distance: Tensor, place: Tensor) -> Tensor:
        query, config = distance + place[:, None], self.__dict__["streaming"]
        times = (query - config.capacity).div(config.dropped, rounding_mode="floor") + 1
        kept = place[:, None] >= times.clamp(min=0) * config.dropped
        return kept[:, None] if allowed is None else allowed & kept[:, None]

    def keys_per_query(self, length: int) -> int:
        return length


@pytest.mark.parametrize("position", POSITIONS)
def test_without_sinks_it_is_attention_to_what_was_not_dropped(position: str) -> None:
    model, config, given = small(POSITIONS[position]), StreamingConfig(window=17, sinks=0), ids(2, 70)
    found = streamed(model, config, given)
    for attention in [one for one in model.modules() if isinstance(one, Attention)]:
        attention.mask = Dropped(config)
    with torch.inference_mode():
        if position == "dual":  # its rotation is that of full attention, which the mask above is not
            model.position.near = model.position.far  # type: ignore[union-attr, assignment]
        torch.testing.assert_close(found, model(given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("position", POSITIONS)
def test_in_one_layer_it_is_a_pass_over_the_sinks_and_the_window(position: str) -> None:
    model, config, given = small(POSITIONS[position], layers=1), StreamingConfig(window=16, sinks=3), ids(2, 60)
    reader = Streaming(model, config)
    with torch.inference_mode():
        state = reader.new_state(2)
        for step in range(60):
            state = reader.evict(state)
            vectors, state = model.step(given[:, step : step + 1], state)
            kept = int(state.lengths[0])
            assert kept <= 19
            seen = given[:, : step + 1]
            if kept < step + 1:
                seen = torch.cat((given[:, :3], given[:, step + 1 - (kept - 3) : step + 1]), 1)
            torch.testing.assert_close(vectors[:, -1], model(seen)[:, -1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_token_by_token_is_in_pieces_and_batched_is_alone(name: str) -> None:
    model, config, given = small(name=name), StreamingConfig(window=12, sinks=2), ids(3, 50)
    whole, reader = streamed(model, config, given), Streaming(model, config)
    with torch.inference_mode():
        state, pieces = reader.new_state(3), []
        for step in range(50):
            state = reader.evict(state)
            vectors, state = model.step(given[:, step : step + 1], state)
            pieces.append(vectors)
        torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-4, atol=1e-4)
        lengths = torch.tensor([50, 13, 31])
        padded = [(s, v) for s, v, _ in reader.read(given, lengths, reader.new_state(3))]
        found = torch.cat([v for _, v in padded], 1)
    for row, length in enumerate(lengths.tolist()):
        alone = streamed(model, config, given[row : row + 1, :length])
        torch.testing.assert_close(found[row, :length], alone[0], rtol=1e-4, atol=1e-4)


def test_texts_go_on_past_the_context_the_same_alone_and_batched() -> None:
    model = small()
    how = generation_config({"max_tokens": 60, "sinks": 2, "window": 12})
    prompts = [[1, 2, 3], [4] * 40, [5]]
    together = generate(model, prompts, how)
    assert [len(row) for row in together] == [60] * 3
    assert together == [generate(model, [prompt], how)[0] for prompt in prompts]
    drawn = generation_config({"max_tokens": 30, "sinks": 2, "window": 12, "temperature": 1.0, "seed": 4, "samples": 2})
    assert generate(model, prompts, drawn)[2:4] == generate(model, prompts[1:2], drawn)
    within = generation_config({"max_tokens": 10, "sinks": 4, "window": 12})
    assert generate(model, [[1, 2]], within) == generate(model, [[1, 2]], generation_config({"max_tokens": 10}))


def test_the_state_does_not_grow() -> None:
    model, config = small(), StreamingConfig(window=16, sinks=4)
    reader, sizes = Streaming(model, config), set()
    with torch.inference_mode():
        for _, _, state in reader.read(ids(1, 300), None, reader.new_state(1)):
            sizes.add(state.nbytes())
            assert int(state.lengths.max()) <= config.capacity
    assert len(sizes) == 1


@pytest.mark.full
def test_two_hundred_thousand_tokens_take_no_more_memory() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    model, seen = small(), []

    def measure(vectors: Tensor, targets: Tensor) -> Tensor:
        seen.append(resident())
        return model.head.nll(vectors, targets)

    text = np.random.default_rng(0).integers(0, VOCAB, 200_000)
    (losses,) = nll_long_texts(model, [text], 0, StreamingConfig(window=252, sinks=4), measure)
    assert len(losses) == 200_000 and bool(torch.isfinite(losses).all())
    assert max(seen[100:]) - seen[100] < 32 << 20


# --- losses -----------------------------------------------------------------------------------------------------------

TEXTS = [np.random.default_rng(0).integers(0, VOCAB, n) for n in (3, 0, 100, 64, 1, 64)]


@pytest.mark.parametrize("name", ["first", "lstm_lm"])
def test_losses_of_whole_texts_are_those_of_one_window(name: str) -> None:
    model = small(name=name)
    wide = replace(model.config, context=128).build(0).eval()
    wide.load_weights(model.weights())
    windows = ScoringWindows(length=128, stride=128)
    for own, other in zip(nll_long_texts(model, TEXTS, 0), nll_sliding_window(wide, TEXTS, windows, 0), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-4)


def test_losses_with_sinks_are_the_same_alone_and_after_a_context() -> None:
    model, config = small(), StreamingConfig(window=12, sinks=2)
    together = list(nll_long_texts(model, TEXTS, 0, config))
    for text, losses in zip(TEXTS, together, strict=True):
        (alone,) = nll_long_texts(model, [text], 0, config)
        torch.testing.assert_close(losses, alone, rtol=1e-4, atol=1e-4)
    (rest,) = nll_long_texts(model, [Continuation(TEXTS[2][70:], TEXTS[2][:70])], 0, config)
    torch.testing.assert_close(rest, together[2][70:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("position", [LearnedPositionConfig(), SinusoidalPositionConfig()])
def test_positions_that_are_cached_are_refused(position: PositionConfig) -> None:
    with pytest.raises(ConfigError, match=r"sinks: want a model whose positions are distances .* got '"):
        Streaming(small(position), StreamingConfig(window=8))


def test_texts_past_learned_positions_are_refused() -> None:
    model = small(LearnedPositionConfig())
    with pytest.raises(UsageError, match="sequence length 100 exceeds the model's context of 16 learned positions"):
        list(nll_long_texts(model, [TEXTS[2]], 0))
    assert len(next(iter(nll_long_texts(model, [TEXTS[2][:16]], 0)))) == 16


def test_a_model_with_a_window_of_its_own_is_not_widened() -> None:
    model = small()
    for attention in [one for one in model.modules() if isinstance(one, Attention)]:
        attention.mask = SlidingWindowConfig(size=8)
    Streaming(model, StreamingConfig(window=20, sinks=4))
    with pytest.raises(ConfigError, match="window: want at most 20"):
        Streaming(model, StreamingConfig(window=21, sinks=4))


def test_an_encoder_decoder_without_attention_is_refused() -> None:
    model = preset("seq2seq_lstm").config(layers=1, width=16, vocab=VOCAB).build(0)
    assert isinstance(model, AutoregressiveModel)
    with pytest.raises(UsageError, match="sinks: want a language model, got an encoder-decoder"):
        Streaming(model, StreamingConfig(window=8))


def test_other_attention_is_refused() -> None:
    config = preset("first").config(layers=1, width=32, heads=2, vocab=VOCAB, context=CONTEXT)
    widths = LatentWidthsConfig(key=8, rotary=4, value=8)
    latent = swap(AttentionConfig, LatentAttentionConfig(heads=2, latent=8, widths=widths))(config)
    with pytest.raises(ConfigError, match="sinks: want plain attention or recurrence in every layer, got 'LatentAtt"):
        Streaming(latent.build(0), StreamingConfig(window=8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 8}, "window: only used with attention sinks"),
        ({"sinks": 4}, "window: want a number of tokens beside sinks"),
        ({"sinks": -1, "window": 8}, "sinks: want at least 0, got -1"),
        ({"sinks": 1, "window": 0}, "window: want at least 1, got 0"),
        ({"sinks": 1.5, "window": 8}, "sinks: want a whole number"),
        ({"sinks": 1, "window": 8, "beams": 2}, "sinks: not supported by beam"),
        ({"sinks": 1, "window": 8, "contrast": 0.5}, "sinks: not supported by contrastive"),
        ({"sinks": 1, "window": 8, "cache": "int8"}, "cache: want full with sinks"),
        ({"sinks": 1, "window": 8, "compile": "on"}, "compile: want auto or off with sinks"),
    ],
)
def test_options_that_contradict_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(HeddleError, match=message):
        generation_config(options)  # type: ignore[arg-type]
