"""Media: sounds and arrays to features: decoding, resampling, log-mel spectra, cepstra, augmentation."""

from heddle.data.media.arrays import ARRAYS, ArrayMedia, array_media
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
from heddle.data.media.media import Media, MediaFault, MediaFormat
from heddle.data.media.resampling import resample
from heddle.data.media.sound import SOUNDS, SoundMedia, read_sound, sound_media
