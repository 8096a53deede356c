"""Classification of images, and of other media: the class of each by an encoder, such as a Vision Transformer."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heddle.core import DataError, UsageError
from heddle.decoding.runtime import device_of, eval_mode, pad_sources
from heddle.models.networks import Encoder, Model, require
from heddle.tasks.inputs import MediaInput, MediaInputs
from heddle.tasks.labelling.classify import KINDS, ClassifiedText, named_classes


@dataclass(frozen=True)
class ClassifiedMedia:
    """The classes of a medium; or, in one line, why it could not be read."""

    input: MediaInput
    found: ClassifiedText | None = None
    error: str | None = None


@dataclass(frozen=True)
class MediaClassifier:
    """An encoder of images or other media, with an output for their class."""

    model: Encoder
    inputs: MediaInputs

    @classmethod
    def of(cls, model: Model, inputs: MediaInputs) -> "MediaClassifier":
        """Return a classifier; refuse a model without classes."""
        encoder = require(model, Encoder, UsageError(f"classify: want an encoder of images, got {model.config.noun}"))
        encoder.output_of(*KINDS)
        return cls(encoder, inputs)

    def run(self, several: Iterable[MediaInput], batch: int = 32) -> Iterator[ClassifiedMedia]:
        """Yield the classes of each medium, in order; one that cannot be read has its error instead."""
        for some in self.inputs.batches(list(several), batch):
            read: list[Tensor | str] = [self._read(one) for one in some]
            results = iter(self._classes([features for features in read if isinstance(features, Tensor)]))
            for one, features in zip(some, read, strict=True):
                if isinstance(features, str):
                    yield ClassifiedMedia(one, error=features)
                else:
                    yield ClassifiedMedia(one, next(results))

    def _read(self, one: MediaInput) -> Tensor | str:
        try:
            return self.inputs.read(one)
        except DataError as error:
            return str(error)

    @torch.inference_mode()
    def _classes(self, features: Sequence[Tensor]) -> list[ClassifiedText]:
        if not features:
            return []
        config = self.model.output_of(*KINDS)
        sources, lengths = pad_sources(features, device_of(self.model))
        names = config.class_names
        with eval_mode(self.model):
            ctx = None if lengths is None else self.model.context_for(lengths)
            scores = self.model.scores(config.name, sources, ctx)
        numbers = self.model.output(config.name).probabilities(scores).float().cpu().tolist()
        return [named_classes(one, names or [str(n) for n in range(len(one))], str(config.kind)) for one in numbers]
