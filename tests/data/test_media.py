"""Media: samples as they were written, spectra as an independent reference has them, and faults by a named reason."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from data.sounds import tones, write_wav

from heddle.core import ConfigError, MissingExtra
from heddle.data.media import (
    CepstraConfig,
    GivenFeaturesConfig,
    LogMelConfig,
    MediaFault,
    SpecAugmentConfig,
    SpeedConfig,
    WhisperFeaturesConfig,
    array_media,
    augmented,
    augmented_length,
    read_sound,
    resample,
    sound_media,
)

SOUND = tones("abca", rate=16_000).astype(np.float32)


def reference_log_mel(samples: np.ndarray, mels: int, rate: int, low: float, high: float) -> np.ndarray:
    """Compute a log-mel spectrum with plain loops and a Fourier transform written as sums."""
    window, hop, fft = int(0.025 * rate), int(0.01 * rate), 512

    def mel(f: float) -> float:
        return 2595 * np.log10(1 + f / 700)

    edges = [700 * (10 ** ((mel(low) + k * (mel(high) - mel(low)) / (mels + 1)) / 2595) - 1) for k in range(mels + 2)]
    angle = -2j * np.pi * np.outer(np.arange(window), np.arange(fft // 2 + 1)) / fft
    fourier = np.exp(angle)
    found = []
    for start in range(0, len(samples) - window + 1, hop):
        piece = samples[start : start + window].astype(np.float64)
        weighted = piece * np.array([0.5 * (1 - np.cos(2 * np.pi * n / window)) for n in range(window)])
        power = np.abs(weighted @ fourier) ** 2
        row = []
        for k in range(mels):
            total = 0.0
            for b, p in enumerate(power):
                f = b * rate / fft
                if edges[k] < f <= edges[k + 1]:
                    total += p * (f - edges[k]) / (edges[k + 1] - edges[k])
                elif edges[k + 1] < f < edges[k + 2]:
                    total += p * (edges[k + 2] - f) / (edges[k + 2] - edges[k + 1])
            row.append(np.log(max(total, 1e-10)))
        found.append(row)
    return np.array(found)


def test_a_log_mel_spectrum_is_that_of_an_independent_reference() -> None:
    config = LogMelConfig(mels=26, low=20.0, high=7600.0, normalize="none")
    wanted = reference_log_mel(SOUND, 26, 16_000, 20.0, 7600.0)
    found = config.compute(SOUND)
    assert found.shape == wanted.shape == (config.count(SOUND.shape), 26)
    assert np.abs(found - wanted).max() < 1e-5
    normalized = LogMelConfig(mels=26, high=7600.0).compute(SOUND)
    assert np.abs((wanted - wanted.mean(0)) / wanted.std(0) - normalized).max() < 1e-4


@pytest.mark.parametrize("mels", [80, 128])
def test_whispers_features_are_those_of_its_authors(mels: int) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.audio_utils import mel_filter_bank

    bank = mel_filter_bank(201, mels, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    whole = np.pad(np.pad(SOUND.astype(np.float64), (0, 480_000 - len(SOUND))), 200, mode="reflect")
    fourier = np.exp(-2j * np.pi * np.outer(np.arange(400), np.arange(201)) / 400)
    weights = np.array([0.5 * (1 - np.cos(2 * np.pi * n / 400)) for n in range(400)])
    frames = np.stack([whole[start : start + 400] for start in range(0, 480_000, 160)])
    bands = np.log10(np.maximum(np.abs((frames * weights) @ fourier) ** 2 @ bank, 1e-10))
    wanted = (np.maximum(bands, bands.max() - 8) + 4) / 4
    found = WhisperFeaturesConfig(mels=mels).compute(SOUND)
    assert found.shape == wanted.shape == (3000, mels)
    assert np.abs(found - wanted).max() < 1e-5
    extract = transformers.WhisperFeatureExtractor(feature_size=mels)
    theirs = extract(SOUND, sampling_rate=16_000, return_tensors="np")["input_features"][0].T
    assert np.abs(found - theirs).max() < 2e-4  # it computes in single precision
    alone = WhisperFeaturesConfig(mels=mels, seconds=None)
    assert alone.compute(SOUND).shape == (alone.count(SOUND.shape), mels)


def test_cepstra_are_the_cosine_transform_with_slopes() -> None:
    from scipy.fft import dct  # type: ignore[import-untyped]

    config = CepstraConfig(cepstra=13, mels=40, normalize="none")
    wanted = dct(LogMelConfig(mels=40, normalize="none").log_mel(SOUND), norm="ortho", axis=1)[:, :13]
    found = config.compute(SOUND)
    assert found.shape[1:] == config.shape == (39,) and np.abs(found[:, :13] - wanted).max() < 1e-4
    slope = (wanted[3] - wanted[1] + 2 * (wanted[4] - wanted[0])) / 10
    assert np.abs(found[2, 13:26] - slope).max() < 1e-4
    level = GivenFeaturesConfig(width=13, deltas=1).compute(np.ones((5, 13), np.float32))
    assert np.abs(level).max() == 0  # what never changes has no slope, and no deviation to divide by


@pytest.mark.parametrize(("rate", "wanted"), [(8000, 16_000), (44_100, 16_000), (96_000, 16_000), (16_000, 11_025)])
def test_a_resampled_sine_is_the_sine(rate: int, wanted: int) -> None:
    def sine(at: int) -> np.ndarray:
        return np.sin(2 * np.pi * 1000 * np.arange(at) / at).astype(np.float32)

    found = resample(sine(rate), rate, wanted)
    assert len(found) == wanted
    edge = wanted // 50  # the filter sees nothing before the sound
    assert np.abs(found - sine(wanted))[edge:-edge].max() < 1e-3
    above = np.sin(2 * np.pi * 0.47 * rate * np.arange(rate) / rate).astype(np.float32)
    if wanted < 0.9 * rate:
        assert np.abs(resample(above, rate, wanted))[edge:-edge].max() < 1e-3  # no alias


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_plain_wav_is_read_without_libsndfile(tmp_path: Path, size: int, channels: int) -> None:
    path = write_wav(tmp_path / "a.wav", SOUND.astype(np.float64), 16_000, channels, size)
    found, rate = read_sound(path)
    assert rate == 16_000 and len(found) == len(SOUND)
    assert np.abs(found - SOUND).max() < 2.0 ** (1 - 8 * size) + 1e-7
    part, _ = read_sound(path, start=0.1, length=0.2)
    assert np.array_equal(part, found[1600:4800])


def header(frames: int, rate: int = 16_000, channels: int = 1, bits: int = 16) -> bytes:
    """Return the header of a WAV that claims some frames."""
    size = frames * channels * bits // 8
    form = struct.pack("<HHIIHH", 1, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits)
    return (
        b"RIFF"
        + struct.pack("<I", 36 + size)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + b"data"
        + struct.pack("<I", size)
    )


BAD_SOUNDS: dict[str, tuple[bytes, str]] = {
    "zero bytes": (b"", "empty"),
    "no samples": (header(0), "empty"),
    "cut": (header(16_000) + b"\0" * 1000, "bad_media"),
    "no rate": (header(4, rate=0) + b"\0" * 8, "bad_media"),
    "a rate beyond reason": (header(4, rate=4_000_000) + b"\0" * 8, "bad_media"),
    "many channels": (header(4, channels=300) + b"\0" * 2400, "bad_media"),
    "too long": (header(16_000 * 61) + b"\0" * (32_000 * 61), "too_long"),
}


@pytest.mark.parametrize("name", BAD_SOUNDS)
def test_a_bad_sound_has_a_named_reason(tmp_path: Path, name: str) -> None:
    raw, reason = BAD_SOUNDS[name]
    path = tmp_path / "bad.wav"
    path.write_bytes(raw)
    with pytest.raises(MediaFault) as caught:
        sound_media(path, 16_000).decode()
    assert caught.value.reason == reason


@pytest.mark.parametrize("size", [3, 18, 4000, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("place", [4, 16, 36, 44])
def test_a_damaged_size_of_a_chunk_is_bad_media(tmp_path: Path, place: int, size: int) -> None:
    raw = bytearray(header(100)[:36] + b"LIST" + struct.pack("<I", 4) + b"abcd" + header(100)[36:] + bytes(200))
    raw[place : place + 4] = struct.pack("<I", size)
    (tmp_path / "bad.wav").write_bytes(raw)
    with contextlib.suppress(MediaFault, MissingExtra):  # and nothing else
        assert len(sound_media(tmp_path / "bad.wav", 16_000).decode()) <= 100


@pytest.mark.parametrize(
    "raw", [b"not a sound at all", b"RIFF\0\0\0\0WAVEjunk", b"fLaC" + b"\0" * 64, b"OggS" + b"\1" * 99]
)
def test_what_is_no_sound_is_bad_media_or_needs_libsndfile(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "bad.flac"
    path.write_bytes(raw)
    with pytest.raises((MediaFault, MissingExtra)) as caught:
        sound_media(path, 16_000).decode()
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, MediaFault):
        assert caught.value.reason == "bad_media"


@pytest.mark.parametrize(("ending", "form"), [("flac", "PCM_16"), ("ogg", "VORBIS"), ("wav", "FLOAT"), ("wav", "ALAW")])
def test_what_libsndfile_reads_is_the_sound(tmp_path: Path, ending: str, form: str) -> None:
    soundfile = pytest.importorskip("soundfile", reason="the extra media is not installed")
    path = tmp_path / f"a.{ending}"
    soundfile.write(path, np.stack([SOUND, SOUND], 1), 16_000, subtype=form)
    found, rate = read_sound(path)
    assert rate == 16_000 and len(found) == len(SOUND)
    assert np.corrcoef(found, SOUND)[0, 1] > 0.99
    part = sound_media(path, 8000, start=0.1, length=0.2).decode()
    assert part.shape == (1600, 1)
    path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 3])
    try:
        assert len(read_sound(path)[0]) <= len(SOUND)  # a stream that was cut ends early
    except MediaFault as fault:
        assert fault.reason == "bad_media"


def test_missing_files_and_folders_have_reasons(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.wav", "no_file"), (tmp_path, "unreadable")):
        with pytest.raises(MediaFault) as caught:
            sound_media(path, 16_000).decode()
        assert caught.value.reason == reason


def test_bad_arrays_have_reasons_and_never_run_code(tmp_path: Path) -> None:
    cases = {
        "objects": np.array([[{}]], object),
        "flat": np.zeros(4),
        "texts": np.array([["a"]]),
        "nan": np.full((2, 3), np.nan),
        "huge": np.full((2, 3), 1e300),
    }
    for name, array in cases.items():
        np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "nan.npy").read_bytes()[:-8])
    (tmp_path / "junk.npy").write_bytes(b"junk")
    for name in (*cases, "cut", "junk"):
        with pytest.raises(MediaFault) as caught:
            array_media(tmp_path / f"{name}.npy").decode()
        assert caught.value.reason == "bad_media", name
    np.save(tmp_path / "good.npy", np.arange(12).reshape(6, 2))
    assert array_media(tmp_path / "good.npy", 1, 2).decode().tolist() == [[2.0, 3.0], [4.0, 5.0]]
    for start, length in ((5, 4), (0.5, 1), (7, None)):
        with pytest.raises(MediaFault):
            array_media(tmp_path / "good.npy", start, length).decode()


def test_augmentation_is_keyed_by_the_row_and_its_length_is_known_before() -> None:
    frames = LogMelConfig(mels=20).compute(SOUND)
    both = (SpeedConfig(), SpecAugmentConfig(bands=1, band_width=5, times=1, time_width=8))
    made = [augmented(both, frames.copy(), seed=3, number=number) for number in range(30)]
    assert all(np.array_equal(made[n], augmented(both, frames.copy(), 3, n)) for n in range(30))
    lengths = [augmented_length(both, len(frames), 3, number) for number in range(30)]
    assert [len(one) for one in made] == lengths and len(set(lengths)) == 3
    masked = [one for number, one in enumerate(made) if lengths[number] == len(frames)]
    assert all(0 < (one != frames).mean() < 0.6 for one in masked)


def test_features_that_do_not_fit_are_refused_by_their_field(tmp_path: Path) -> None:
    media = sound_media(tmp_path / "a.wav", 8000)
    with pytest.raises(ConfigError, match="sample_rate: want 8000"):
        LogMelConfig().check(media.format)
    with pytest.raises(ConfigError, match="kind: want one that reads sounds"):
        GivenFeaturesConfig().check(media.format)
    with pytest.raises(ConfigError, match="width: want 4"):
        GivenFeaturesConfig(width=13).count((9, 4))
    with pytest.raises(ConfigError, match="high: want above 20"):
        LogMelConfig(high=9000.0)
    with pytest.raises(ConfigError, match="at most the 12 bands"):
        CepstraConfig(mels=12)
