"""Media inputs: files, folders and manifests to the features that a model reads, by the settings of its run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heddle.core import ConfigError, DataError, UsageError, decode, replace
from heddle.data.media import FeaturesConfig, Media, MediaFault, PixelsConfig
from heddle.data.pictures import ImageSource
from heddle.data.sources import DocumentCounter, MediaSource, SkipReason, SourceConfig

NO_TEXT = (SkipReason.NO_TEXT, SkipReason.MISSING_FIELD)


@dataclass(frozen=True)
class MediaInput:
    """One medium, and the texts that belong to it, where there are some: captions of a picture, or its class."""

    origin: str
    media: Media
    texts: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, float, float | None]:
        """Return what tells it from others: the file, and the part of it."""
        return str(self.media.path.absolute()), self.media.start, self.media.length


@dataclass(frozen=True)
class MediaInputs:
    """How a model reads files: the source that finds and decodes them, and the features that it computes."""

    source: MediaSource
    features: FeaturesConfig
    kinds: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, settings: Mapping[str, Any], reads: str) -> "MediaInputs":
        """Return the inputs of a model that reads this, by the settings that came with it, or refuse."""
        data, rows = settings.get("data"), settings.get("rows")
        if isinstance(data, Mapping) and isinstance(rows, Mapping) and "features" in rows:
            source = decode(SourceConfig, data["sources"][0])
            if isinstance(source, MediaSource):
                return cls(source, decode(FeaturesConfig, rows["features"]))
        if reads == "images" and "image_size" in settings:  # Hugging Face
            return cls._of_pictures(int(settings["image_size"]), int(settings.get("num_channels", 3)))
        raise UsageError(f"want a model that was trained on images, video or sounds; this one reads {reads} alone")

    @classmethod
    def _of_pictures(cls, side: int, channels: int) -> "MediaInputs":
        if channels not in (1, 3):
            raise ConfigError("num_channels", want="1 or 3", got=channels)
        size: Any = {"size": (side, side), "channels": channels}
        return cls(ImageSource(path=".", **size), PixelsConfig(**size))

    def find(self, paths: Sequence[str | Path]) -> list[MediaInput]:
        """Return the media of files, folders and manifests, in order; each once, with all of its texts."""
        found: dict[tuple[str, float, float | None], MediaInput] = {}
        for path in paths:
            source = replace(self.source, path=str(path), split=None)
            entries = list(source.entries(DocumentCounter()))
            if not entries and Path(path).is_dir():
                raise DataError(f"{path}: want files that end in {', '.join(source.extensions)}, found none")
            for entry in entries:
                if isinstance(entry.text, SkipReason) and entry.text not in NO_TEXT and entry.path == Path(path):
                    raise DataError(f"{entry.origin}: {entry.text.words}")
                texts = () if isinstance(entry.text, SkipReason) else (entry.text,)
                one = MediaInput(entry.origin, source.open(entry.path, entry.start, entry.length), texts)
                known = found.get(one.key)
                found[one.key] = one if known is None else MediaInput(known.origin, known.media, known.texts + texts)
        return list(found.values())

    def read(self, one: MediaInput) -> Tensor:
        """Return the features of a medium, or refuse it in a line."""
        try:
            array = one.media.decode()
            self.features.count(array.shape)
            return torch.from_numpy(self.features.compute(array))
        except MediaFault as fault:
            reason = SkipReason(fault.reason).words
            words = f"{reason}: {fault.words}" if fault.words and fault.words != fault.reason else reason
            raise DataError(f"{one.origin}: {words}") from None

    def batches(self, several: Sequence[MediaInput], most: int) -> Iterator[Sequence[MediaInput]]:
        """Yield them in batches, in their order."""
        for first in range(0, len(several), most):
            yield several[first : first + most]
