"""Media: sounds and arrays to features: decoding, resampling, log-mel spectra, cepstra, augmentation."""

from heddle.data.media.arrays import ARRAYS, ArrayMedia, array_media
from heddle.data.media.audio_visual import AudioVisualConfig, audio_visual_media
from heddle.data.media.augmentation import (
    AugmentationConfig,
    SpecAugmentConfig,
    SpeedConfig,
    augmented,
    augmented_length,
)
from heddle.data.media.features import (
    CepstraConfig,
    FeaturesConfig,
    GivenFeaturesConfig,
    LogMelConfig,
    WhisperFeaturesConfig,
)
from heddle.data.media.images import IMAGES, Channels, Fit, PictureSize, image_media, read_image
from heddle.data.media.media import Media, MediaFault, MediaFormat
from heddle.data.media.pixels import BrightnessConfig, ClipConfig, CropConfig, FlipConfig, PixelsConfig
from heddle.data.media.resampling import resample
from heddle.data.media.sound import SOUNDS, SoundMedia, read_sound, sound_media
from heddle.data.media.video import FILMS, VIDEOS, VideoMedia, frame_files, video_media
