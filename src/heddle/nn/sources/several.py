"""Several sources at once: memories side by side, each with a learned mark of its kind (sound with video, say)."""

import dataclasses

import torch
from jaxtyping import Int
from torch import Tensor, nn

from heddle.core import Config, ConfigError, UsageError, part, settings
from heddle.core.shapes import Stream
from heddle.nn.base import Context, Module, Place, Role
from heddle.nn.ends import Embedding, EmbeddingConfig
from heddle.nn.positions import NoPositionConfig, PositionConfig


@settings
class OneSourceConfig(Config):
    """One of several sources.

    embedding: how it becomes vectors.
    position: its own positions, which are added to them.
    """

    embedding: EmbeddingConfig
    position: PositionConfig = NoPositionConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.position.provides != "stream":
            raise ConfigError("position", want="one that is added to the stream", got=self.position.kind)


@part("several")
class SeveralEmbeddingConfig(EmbeddingConfig):
    """Several sources at once: the vectors of each stand one after the other, with a learned mark of their kind.

    sources: the embedding and the positions of each, in the order in which a row has them.
    """

    sources: tuple[OneSourceConfig, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.sources) < 2:
            raise ConfigError("sources", want="two or more", got=len(self.sources))

    @property
    def reads_ids(self) -> bool:
        return any(source.embedding.reads_ids for source in self.sources)

    def build(self, vocab: int | None, width: int, place: Place) -> Embedding:
        return SeveralEmbedding(vocab, width, self, place)


class SeveralEmbedding(Embedding):
    """[source(input) + position + mark of the source, ...], with the padding of all sources at the end."""

    roles = {"marks": Role.EMBEDDING}

    def __init__(self, vocab: int | None, width: int, config: SeveralEmbeddingConfig, place: Place) -> None:
        super().__init__()
        self.sources = nn.ModuleList(OneSource(vocab, width, one, place) for one in config.sources)
        self.marks = nn.Parameter(torch.empty(len(config.sources), width))

    def forward(self, inputs: Tensor | tuple[Tensor, ...], ctx: Context) -> Stream:
        streams, real = [], []
        for number, (one, own) in enumerate(zip(self.sources, self.check(inputs), strict=True)):
            lengths = None if ctx.lengths is None else ctx.lengths[:, number]
            x = one(own, dataclasses.replace(ctx, lengths=lengths))
            streams.append(x + self.marks[number].to(x.dtype))
            known = one.embedding.real_lengths(own, lengths)
            places = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
            real.append(places >= 0 if known is None else places < known[:, None])
        x = torch.cat(streams, dim=1)
        if ctx.lengths is None:
            return x
        order = torch.cat(real, dim=1).logical_not().long().argsort(dim=1, stable=True)  # what is real comes first
        return x.gather(1, order[..., None].expand_as(x))

    def check(self, inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the inputs, one for each source, or refuse them."""
        if not isinstance(inputs, tuple) or len(inputs) != len(self.sources):
            found = f"{len(inputs)}" if isinstance(inputs, tuple) else "one"
            raise UsageError(f"source: want {len(self.sources)} sources at once, got {found}")
        return inputs

    def length(self, inputs: Tensor | tuple[Tensor, ...]) -> int:
        both = zip(self.sources, self.check(inputs), strict=True)
        return sum(one.embedding.length(own) for one, own in both)

    def real_lengths(
        self, inputs: Tensor | tuple[Tensor, ...], lengths: Int[Tensor, "batch sources"] | None
    ) -> Int[Tensor, " batch"] | None:
        if lengths is None:
            return None
        total = torch.zeros_like(lengths[:, 0])
        for number, (one, own) in enumerate(zip(self.sources, self.check(inputs), strict=True)):
            known = one.embedding.real_lengths(own, lengths[:, number])
            total = total + (one.embedding.length(own) if known is None else known)
        return total


class OneSource(Module):
    """embedding(input) + position."""

    def __init__(self, vocab: int | None, width: int, config: OneSourceConfig, place: Place) -> None:
        super().__init__()
        self.embedding = config.embedding.build(vocab if config.embedding.reads_ids else None, width, place)
        self.position = config.position.build(width, place)

    def forward(self, inputs: Tensor, ctx: Context) -> Stream:
        x = self.embedding(inputs, ctx)
        self.position.reserve(x.shape[1])
        return self.position(x, Context())[0]
