"""Sources that are not text: patches equal a convolution, tubelets one in three dimensions, padding changes nothing."""

from typing import Any

import pytest
import torch
from torch import nn

from heddle.core import ConfigError, UsageError
from heddle.nn.base import Context, FanInInitConfig, Module, Place, initialize
from heddle.nn.ends import EmbeddingConfig, FrameEmbeddingConfig, FullEmbeddingConfig
from heddle.nn.positions import LearnedPositionConfig, RotaryPositionConfig
from heddle.nn.sources import (
    ConvolutionalStemConfig,
    LearnedGridConfig,
    OneSourceConfig,
    PatchEmbeddingConfig,
    SeveralEmbeddingConfig,
    SinusoidalGridConfig,
    TubeletEmbeddingConfig,
)

WIDTH = 12
STEM = ConvolutionalStemConfig(channels=(8, 16), blocks=1, frames=3)
MOUTH = TubeletEmbeddingConfig(frames=2, size=2, channels=1, stem=STEM, grid=LearnedGridConfig())
SOUND = OneSourceConfig(
    shape=(5,), steps=2, embedding=FrameEmbeddingConfig(features=5, halvings=0), position=LearnedPositionConfig()
)
TOGETHER = SeveralEmbeddingConfig(sources=(OneSourceConfig(shape=(1, 8, 8), embedding=MOUTH), SOUND))


def built(config: EmbeddingConfig) -> Any:
    holder = Module()
    holder.made = config.build(None, WIDTH, Place(context=50))
    initialize(holder, FanInInitConfig(embedding=0.5), depth=1, seed=0)
    return holder.made.double().eval()


def video(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_squares_equal_a_convolution_that_steps_by_its_own_size() -> None:
    made = built(PatchEmbeddingConfig(size=3, channels=2))
    images = video(2, 2, 6, 9)
    kernel = made.map.weight.view(WIDTH, 2, 3, 3)
    squares = nn.functional.conv2d(images, kernel, made.map.bias, stride=3).flatten(2).transpose(1, 2)
    got = made(images, Context())
    assert made.length(images) == got.shape[1] == 7
    torch.testing.assert_close(got[:, 1:], squares)
    torch.testing.assert_close(got[:, :1], made.first.expand(2, 1, WIDTH))


@pytest.mark.parametrize("shape", [(1, 2, 7, 6), (1, 3, 6, 6), (2, 6), (1, 2, 0, 6)], ids=str)
def test_images_that_squares_do_not_fill_are_refused(shape: tuple[int, ...]) -> None:
    made = built(PatchEmbeddingConfig(size=3, channels=2))
    with pytest.raises(UsageError, match="images: want"):
        made.length(torch.zeros(shape, dtype=torch.long if len(shape) == 2 else torch.float32))


def test_tubelets_equal_a_convolution_in_three_dimensions() -> None:
    made = built(TubeletEmbeddingConfig(frames=2, size=4, channels=3))
    clips = video(2, 5, 3, 8, 12)  # the last tubelet is half filled
    kernel = made.map.weight.view(WIDTH, 2, 3, 4, 4).transpose(1, 2)
    padded = nn.functional.pad(clips, (0, 0, 0, 0, 0, 0, 0, 1)).transpose(1, 2)
    want = nn.functional.conv3d(padded, kernel, made.map.bias, stride=(2, 4, 4)).flatten(2).transpose(1, 2)
    got = made(clips, Context())
    assert made.length(clips) == got.shape[1] == 1 + 3 * 2 * 3
    torch.testing.assert_close(got[:, 1:], want)


@pytest.mark.parametrize("stem", [ConvolutionalStemConfig(channels=(8,)), STEM], ids=["plain", "blocks"])
def test_a_padded_clip_gives_the_vectors_of_the_clip_alone(stem: ConvolutionalStemConfig) -> None:
    made = built(TubeletEmbeddingConfig(frames=2, size=2, channels=1, stem=stem, grid=LearnedGridConfig()))
    clips, lengths = video(3, 7, 1, 16, 8), torch.tensor([7, 4, 1])
    together = made(clips, Context(lengths=lengths))
    found = made.real_lengths(clips, lengths)
    assert found.tolist() == [made.length(clips[:1, :count]) for count in lengths.tolist()]
    for row, (count, real) in enumerate(zip(lengths.tolist(), found.tolist(), strict=True)):
        alone = made(clips[row : row + 1, :count], Context())
        torch.testing.assert_close(together[row, :real], alone[0])


@pytest.mark.parametrize("grid", [LearnedGridConfig(), SinusoidalGridConfig()], ids=lambda grid: grid.kind)
def test_equal_patches_differ_by_their_places_only(grid: Any) -> None:
    made = built(TubeletEmbeddingConfig(frames=1, size=2, channels=1, grid=grid))
    vectors = made(torch.ones(1, 3, 1, 4, 6, dtype=torch.float64), Context())[0, 1:].view(3, 2, 3, WIDTH)
    flat = vectors.flatten(0, 2)
    assert torch.cdist(flat, flat).add(10 * torch.eye(len(flat))).min() > 1e-3
    steps = vectors[:, :, 1:] - vectors[:, :, :-1]  # the step from one column to the next is that of every row
    torch.testing.assert_close(steps, steps[:1, :1].expand_as(steps))


def test_a_grid_beyond_its_learned_positions_is_refused() -> None:
    made = built(TubeletEmbeddingConfig(frames=1, size=1, channels=1, grid=LearnedGridConfig(side=4, frames=2)))
    with pytest.raises(UsageError, match="want at most 4 columns of patches, the learned positions, got 5"):
        made(video(1, 2, 1, 4, 5), Context())
    with pytest.raises(UsageError, match="want at most 2 frames"):
        made(video(1, 3, 1, 4, 4), Context())


def both(rows: int, batch: int = 2) -> torch.Tensor:
    """Draw rows of a frame of video and two frames of sound each."""
    return video(batch, rows, 64 + 2 * 5)


def test_several_sources_stand_side_by_side_and_padding_comes_last() -> None:
    made = built(TOGETHER)
    rows, lengths = both(4), torch.tensor([2, 4])
    together, counts = made(rows, Context(lengths=lengths)), made.real_lengths(rows, lengths)
    assert counts.tolist() == [2 + 4, 3 + 8]  # the class token and tubelets of two frames, and each frame of sound
    for row, count in enumerate(lengths.tolist()):
        alone = made(rows[row : row + 1, :count], Context())
        assert alone.shape[1] == counts[row] == made.length(rows[row : row + 1, :count])
        torch.testing.assert_close(together[row, : counts[row]], alone[0])
    sound = rows[:1, :2, 64:].reshape(1, 4, 5)
    torch.testing.assert_close(together[0, 2:6], made.sources[1](sound, Context())[0] + made.marks[1])
    picture = made.sources[0](rows[:1, :2, :64].reshape(1, 2, 1, 8, 8), Context()) + made.marks[0]
    torch.testing.assert_close(together[0, :2], picture[0])


def test_every_weight_of_the_sources_has_a_gradient() -> None:
    made = built(TOGETHER)
    made(both(4), Context(lengths=torch.tensor([2, 4]))).square().sum().backward()
    assert [name for name, weight in made.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_sources_that_cannot_be_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="sources: want two or more, got 1"):
        SeveralEmbeddingConfig(sources=(SOUND,))
    with pytest.raises(ConfigError, match="position: want one that is added to the stream"):
        OneSourceConfig(shape=(1, 8, 8), embedding=MOUTH, position=RotaryPositionConfig())
    with pytest.raises(ConfigError, match="embedding: want one of frames or of video, got 'full'"):
        OneSourceConfig(shape=(1,), embedding=FullEmbeddingConfig())
    with pytest.raises(ConfigError, match="frames: want an odd number"):
        ConvolutionalStemConfig(frames=2)
    with pytest.raises(ConfigError, match="channels: want at least one stage"):
        ConvolutionalStemConfig(channels=())
    with pytest.raises(UsageError, match=r"source: want \[batch, rows, 64 \+ 10\] as floats, got \[1, 2, 73\]"):
        built(TOGETHER)(torch.zeros(1, 2, 73), Context())
