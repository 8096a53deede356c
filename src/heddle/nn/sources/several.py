"""Several sources at once, such as sound with video: vectors side by side, each with a learned mark of its kind."""

import dataclasses
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from heddle.core import Config, ConfigError, Positive, UsageError, part, settings
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Module, Place, Role
from heddle.nn.ends import Embedding, EmbeddingConfig
from heddle.nn.positions import NoPositionConfig, PositionConfig

Rows = Float[Tensor, "batch rows numbers"]


@settings
class OneSourceConfig(Config):
    """One of several sources that run at the same time.

    shape: of one of its frames, such as [80] of a log-mel spectrum, or [1, 32, 64] of a grey video.
    embedding: how its frames become vectors.
    steps: how many of its frames stand in a row: 4, where sound has 100 frames a second and video 25.
    position: its own positions, which are added to the vectors.
    """

    shape: tuple[Positive, ...]
    embedding: EmbeddingConfig
    steps: Positive = 1
    position: PositionConfig = NoPositionConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position.provides != "stream":
            raise ConfigError("position", want="one that is added to the stream", got=self.position.kind)
        if self.embedding.reads not in ("frames", "video"):
            raise ConfigError("embedding", want="one of frames or of video", got=self.embedding.kind)

    @property
    def numbers(self) -> int:
        """Return how many numbers of a row are its own."""
        return self.steps * math.prod(self.shape)


@part("several")
class SeveralEmbeddingConfig(EmbeddingConfig):
    """Several sources at once: the vectors of each stand one after the other, with a learned mark of their kind.

    Each row of the input has the numbers of all sources for the same stretch of time, one source after the other.

    sources: each source, in the order in which a row has them.
    """

    reads = "frames"

    sources: tuple[OneSourceConfig, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sources) < 2:
            raise ConfigError("sources", want="two or more", got=len(self.sources))

    @property
    def item_shape(self) -> tuple[int, ...] | None:
        return (sum(source.numbers for source in self.sources),)

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return SeveralEmbedding(width, self, place)


class SeveralEmbedding(Embedding):
    """[source(frames) + position + mark of the source, ...], with the padding of all sources at the end."""

    roles = {"marks": Role.EMBEDDING}

    def __init__(self, width: int, config: SeveralEmbeddingConfig, place: Place) -> None:
        super().__init__()
        self.configs, self.numbers = config.sources, [source.numbers for source in config.sources]
        self.sources = nn.ModuleList(OneSource(width, one, place) for one in config.sources)
        self.readers = tuple(one.embedding for one in self.sources if isinstance(one, OneSource))
        self.marks = nn.Parameter(torch.empty(len(config.sources), width))

    def forward(self, inputs: Rows, ctx: Context) -> Stream:
        streams, real = [], []
        for number, (one, own) in enumerate(zip(self.sources, self.split(inputs), strict=True)):
            lengths = self.own_lengths(number, ctx.lengths)
            x = one(own, dataclasses.replace(ctx, lengths=lengths))
            streams.append(x + self.marks[number].to(x.dtype))
            known = self.readers[number].real_lengths(own, lengths)
            places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
            real.append(places >= 0 if known is None else places < known[:, None])
        x = torch.cat(streams, dim=1)
        if ctx.lengths is None:
            return x
        order = torch.cat(real, dim=1).logical_not().long().argsort(dim=1, stable=True)  # what is real comes first
        return x.gather(1, order[..., None].expand_as(x))

    def split(self, inputs: Rows) -> list[Tensor]:
        """Return the frames of each source."""
        if inputs.dim() != 3 or inputs.shape[2] != sum(self.numbers) or not inputs.is_floating_point():
            listed = " + ".join(map(str, self.numbers))
            raise UsageError(f"source: want [batch, rows, {listed}] as floats, got {list(inputs.shape)}")
        both = zip(self.configs, inputs.split(self.numbers, dim=2), strict=True)
        return [own.unflatten(2, (one.steps, *one.shape)).flatten(1, 2) for one, own in both]

    def own_lengths(self, number: int, lengths: Int[Tensor, " batch"] | None) -> Int[Tensor, " batch"] | None:
        """Return how many frames of a source are no padding, from how many rows are none."""
        return None if lengths is None else lengths * self.configs[number].steps

    def length(self, inputs: Tensor) -> int:
        both = zip(self.readers, self.split(inputs), strict=True)
        return sum(one.length(own) for one, own in both)

    def real_lengths(self, inputs: Tensor, lengths: Int[Tensor, " batch"] | None) -> Int[Tensor, " batch"] | None:
        if lengths is None:
            return None
        total = torch.zeros_like(lengths)
        for number, (one, own) in enumerate(zip(self.readers, self.split(inputs), strict=True)):
            known = one.real_lengths(own, self.own_lengths(number, lengths))
            total = total + (one.length(own) if known is None else known)
        return total

    def place_names(self, inputs: Tensor) -> tuple[str, ...]:
        both = zip(self.readers, self.split(inputs), strict=True)
        named = [reader.place_names(own) for reader, own in both]
        return tuple(f"source {number}: {name}" for number, names in enumerate(named) for name in names)

    def check_input(self, source: Tensor) -> None:
        self.split(source[None])


class OneSource(Module):
    """embedding(frames) + position."""

    def __init__(self, width: int, config: OneSourceConfig, place: Place) -> None:
        super().__init__()
        self.embedding = config.embedding.build(None, width, place)
        self.position = config.position.build(width, place)

    def forward(self, inputs: Tensor, ctx: Context) -> Stream:
        x = self.embedding(inputs, ctx)
        self.position.reserve(x.shape[1])
        placed, _ = self.position(x, Context())
        return placed  # type: ignore[no-any-return]
