"""Picture files: images and video with captions, images with classes, and speech in video."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from heddle.core import Positive, fields_of, part, within
from heddle.data.files import find_files
from heddle.data.media import (
    FILMS,
    IMAGES,
    VIDEOS,
    Channels,
    Fit,
    Media,
    PictureSize,
    VideoMedia,
    audio_visual_media,
    frame_files,
    image_media,
    sound_media,
    video_media,
)
from heddle.data.sources import (
    ClassLabels,
    Label,
    LabelKind,
    ManifestColumns,
    MediaSource,
    SkipReason,
    SourceConfig,
)


class PictureSource(MediaSource):
    """What images and video share: every picture becomes one size, and each line of the text beside it is a caption."""

    alone = True

    size: tuple[Positive, Positive]
    channels: Channels
    fit: Fit

    @property
    def picture(self) -> PictureSize:
        """Return what every picture becomes."""
        return PictureSize(*self.size, self.channels, self.fit)

    def texts(self, path: Path) -> Sequence[str | SkipReason]:
        return self.lines_beside(path)


class ImageFiles(PictureSource):
    """What sources of images share."""

    extensions = IMAGES

    @property
    def medium(self) -> str | None:
        """Return that they are images."""
        return "image"

    def open(self, path: Path, start: float, length: float | None) -> Media:
        return image_media(path, self.picture)


@part("image")
class ImageSource(ImageFiles):
    """Images with captions: a folder with a text beside each file, a caption in each line, or a manifest.

    path: a folder, or a manifest (.jsonl, or .tsv with a header).
    split: which rows of a manifest are read, by its column of splits; null: all.
    columns: the names of the manifest's columns.
    size: rows and columns of pixels that every image becomes.
    channels: 3: colours, 1: grey.
    fit: what becomes of another shape: squeezed, cropped or padded.
    """

    path: str
    split: str | None = None
    columns: ManifestColumns = ManifestColumns()
    size: tuple[Positive, Positive] = (112, 112)
    channels: Channels = 3
    fit: Fit = "squeeze"

    def resolve(self, wanted: LabelKind | None) -> SourceConfig:
        return ImageClassSource(**fields_of(self)) if wanted == "classes" else self


@part("image_classes")
class ImageClassSource(ImageFiles):
    """Images with classes: a folder with a folder of images for each class, or a manifest whose texts are classes.

    path: a folder, or a manifest (.jsonl, or .tsv with a header).
    split: which rows of a manifest are read, by its column of splits; null: all.
    columns: the names of the manifest's columns; the text is the class.
    size: rows and columns of pixels that every image becomes.
    channels: 3: colours, 1: grey.
    fit: what becomes of another shape: squeezed, cropped or padded.
    """

    path: str
    split: str | None = None
    columns: ManifestColumns = ManifestColumns()
    size: tuple[Positive, Positive] = (112, 112)
    channels: Channels = 3
    fit: Fit = "squeeze"

    @classmethod
    def at(cls, path: str) -> SourceConfig | None:
        """Return none: a folder of images has captions, unless an objective wants classes of it."""
        return None

    @property
    def labelled(self) -> bool:
        return True

    def label(self, text: str) -> Label | None:
        return ClassLabels((text,))

    def texts(self, path: Path) -> Sequence[str | SkipReason]:
        alone = path.parent == Path(self.path).expanduser().absolute() or path.parent == Path(self.path)
        return [SkipReason.NO_TEXT if alone else path.parent.name]


class VideoFiles(PictureSource):
    """What sources of video share: films, animations, arrays of frames, and folders that hold the frames of one."""

    extensions = (".gif", *FILMS)
    beside = (".txt", ".npy", ".wav", *IMAGES)

    every: Positive
    longest: Positive

    def video(self, path: Path, start: float, length: float | None) -> VideoMedia:
        """Return the video at a path."""
        return video_media(path, self.picture, (start, length), self.every, self.longest)

    def parts(self, path: Path) -> list[Path]:
        return frame_files(path) if path.is_dir() else [path]

    def files(self) -> list[Path]:
        found = find_files(self.path)
        folders = {path.parent for path in found if path.suffix.lower() in IMAGES and path.suffix.lower() != ".gif"}
        return sorted({path for path in found if path.suffix.lower() in VIDEOS} | folders)


@part("video")
class VideoSource(VideoFiles):
    """Video with captions: a folder with a text beside each film, GIF or folder of frames, or a manifest.

    path: a folder, or a manifest (.jsonl, or .tsv with a header); start and length count frames.
    split: which rows of a manifest are read, by its column of splits; null: all.
    columns: the names of the manifest's columns.
    size: rows and columns of pixels that every frame becomes.
    channels: 3: colours, 1: grey.
    fit: what becomes of another shape: squeezed, cropped or padded.
    every: 2: every second frame alone, and so on.
    longest: frames; longer videos are left out and counted.
    """

    path: str
    split: str | None = None
    columns: ManifestColumns = ManifestColumns()
    size: tuple[Positive, Positive] = (32, 32)
    channels: Channels = 3
    fit: Fit = "squeeze"
    every: Positive = 1
    longest: Positive = 256

    @property
    def medium(self) -> str | None:
        """Return that they are video."""
        return "video"

    def open(self, path: Path, start: float, length: float | None) -> Media:
        return self.video(path, start, length)


@part("audio_visual")
class AudioVisualSource(VideoFiles):
    """Speech in video, with transcripts: videos, each with a sound of the same name beside it.

    path: a folder, or a manifest (.jsonl, or .tsv with a header) of videos.
    split: which rows of a manifest are read, by its column of splits; null: all.
    columns: the names of the manifest's columns.
    size: rows and columns of pixels that every frame becomes.
    channels: 3: colours, 1: grey.
    fit: what becomes of another shape: squeezed, cropped or padded.
    longest: frames; longer videos are left out and counted.
    sound: how the names of the sounds end.
    sample_rate: samples a second; sounds at another rate are resampled.
    frame_rate: frames a second of the videos.
    """

    every = 1

    path: str
    split: str | None = None
    columns: ManifestColumns = ManifestColumns()
    size: tuple[Positive, Positive] = (32, 32)
    channels: Channels = 1
    fit: Fit = "squeeze"
    longest: Positive = 256
    sound: str = ".wav"
    sample_rate: Positive = 16_000
    frame_rate: Annotated[float, within("1 to 240", lambda rate: 1 <= rate <= 240)] = 25.0

    @property
    def medium(self) -> str | None:
        """Return that they are sound with video."""
        return "audio_visual"

    def parts(self, path: Path) -> list[Path]:
        return [*super().parts(path), self._beside(path)]

    def open(self, path: Path, start: float, length: float | None) -> Media:
        rate, most = self.frame_rate, self.longest / self.frame_rate + 1
        seconds = None if length is None else length / rate
        sound = sound_media(self._beside(path), self.sample_rate, start / rate, seconds, most)
        return audio_visual_media(self.video(path, start, length), sound, rate)

    def _beside(self, path: Path) -> Path:
        return path.parent / f"{path.name if path.is_dir() else path.stem}{self.sound}"
