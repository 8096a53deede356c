"""Images and video: pixels are right whatever the format, and bad files are faults with a reason, in little memory."""

import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heddle.core import ConfigError, Purpose, numpy_generator
from heddle.data.media import (
    BrightnessConfig,
    ClipConfig,
    CropConfig,
    FlipConfig,
    MediaFault,
    PictureSize,
    PixelsConfig,
    image_media,
    read_image,
    video_media,
)

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
SMALL = PictureSize(rows=8, columns=8)
MOST_MEMORY = 700 << 20


def gradient(rows: int = 8, columns: int = 8) -> np.ndarray:
    """Draw a picture whose every pixel differs."""
    red, green = np.meshgrid(np.linspace(0, 255, rows), np.linspace(0, 255, columns), indexing="ij")
    return np.stack([red, green, 255 - red], -1).astype(np.uint8)


def saved(path: Path, pixels: np.ndarray, mode: str | None = None, **options: object) -> Path:
    picture = Image.fromarray(pixels)
    (picture if mode is None else picture.convert(mode)).save(path, **options)
    return path


def png(width: int, height: int, data: bytes, colour: int = 2, depth: int = 8) -> bytes:
    """Write a PNG by hand, whose header may say anything."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["png", "bmp", "webp"])
def test_pixels_are_those_that_were_saved(tmp_path: Path, ending: str) -> None:
    path = saved(tmp_path / f"a.{ending}", gradient(), **({"lossless": True} if ending == "webp" else {}))
    np.testing.assert_array_equal(read_image(path, SMALL), gradient())


def test_a_jpeg_is_nearly_what_was_saved(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", gradient(64, 64), quality=95)
    found = read_image(path, PictureSize(rows=64, columns=64)).astype(int)
    assert np.abs(found - gradient(64, 64)).mean() < 3


def test_transparency_is_white_and_sixteen_bits_become_eight(tmp_path: Path) -> None:
    clear = np.concatenate([gradient(), np.zeros((8, 8, 1), np.uint8)], -1)
    assert (read_image(saved(tmp_path / "clear.png", clear), SMALL) == 255).all()
    deep = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    found = read_image(saved(tmp_path / "deep.png", deep), PictureSize(rows=8, columns=8, channels=1))
    np.testing.assert_array_equal(found[..., 0], (deep // 257).astype(np.uint8))


@pytest.mark.parametrize("mode", ["P", "L", "1", "CMYK", "LA"])
def test_every_mode_is_read(tmp_path: Path, mode: str) -> None:
    ending = "jpg" if mode == "CMYK" else "png"
    path = saved(tmp_path / f"a.{ending}", gradient(), mode)
    assert read_image(path, SMALL).shape == (8, 8, 3)


def test_a_photograph_stands_upright(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 3  # by half a turn
    picture = Image.fromarray(gradient())
    picture.save(tmp_path / "a.png", exif=turned)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png", SMALL), gradient()[::-1, ::-1])


@pytest.mark.parametrize("cut", range(8, 40, 2))
def test_damaged_exif_is_ignored_without_a_warning(tmp_path: Path, cut: int, recwarn: pytest.WarningsRecorder) -> None:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 3, "words that stand elsewhere"
    saved(tmp_path / "plain.jpg", gradient())
    saved(tmp_path / "damaged.jpg", gradient(), exif=exif.tobytes()[:cut])
    found, plain = (read_image(tmp_path / f"{name}.jpg", SMALL) for name in ("damaged", "plain"))
    assert np.array_equal(found, plain) or np.array_equal(found, plain[::-1, ::-1])
    assert not recwarn.list


def test_another_shape_is_squeezed_cropped_or_padded(tmp_path: Path) -> None:
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, 4:12] = 200  # what is in the middle
    path = saved(tmp_path / "a.png", wide)
    squeezed, cropped, padded = (read_image(path, PictureSize(8, 8, 3, fit)) for fit in ("squeeze", "crop", "pad"))
    assert (cropped == 200).all()
    assert squeezed[4, 0, 0] < 50 < 150 < squeezed[4, 4, 0]
    assert (padded[0] == 255).all()
    assert (padded[4, :, 0] < 255).all()


def moving(frames: int = 4) -> np.ndarray:
    """Draw grey frames, each of its own brightness."""
    return np.stack([np.full((8, 8), 20 * number + 10, np.uint8) for number in range(frames)])


def as_folder(path: Path) -> Path:
    path.mkdir()
    for number, frame in enumerate(moving(12)):
        saved(path / f"frame{number}.png", frame)  # 10 comes after 9, not after 1
    return path


def as_gif(path: Path) -> Path:
    first, *rest = [Image.fromarray(frame) for frame in moving()]
    first.save(path, save_all=True, append_images=rest)
    return path


def as_array(path: Path) -> Path:
    np.save(path, moving())
    return path


def as_film(path: Path) -> Path:
    av = pytest.importorskip("av", reason="av is not installed")
    with av.open(str(path), "w") as film:
        stream = film.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 64
        for frame in moving():
            whole = np.repeat(np.kron(frame, np.ones((8, 8), np.uint8))[..., None], 3, -1)
            film.mux(stream.encode(av.VideoFrame.from_ndarray(whole, format="rgb24")))
        film.mux(stream.encode(None))
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {"": as_folder, ".gif": as_gif, ".npy": as_array, ".mp4": as_film}


@pytest.mark.parametrize("ending", MAKERS, ids=lambda ending: ending or "folder")
def test_frames_come_in_their_order(tmp_path: Path, ending: str) -> None:
    path = MAKERS[ending](tmp_path / f"clip{ending}")
    grey = PictureSize(rows=8, columns=8, channels=1)
    whole = video_media(path, grey, (0, None), 1, 64).decode()
    count = 12 if path.is_dir() else 4
    want = moving(count)[..., None].astype(int)
    assert whole.shape == (count, 8, 8, 1)
    assert np.abs(whole.astype(int) - want).max() <= (4 if ending == ".mp4" else 0)
    part = video_media(path, grey, (1, 3), 2, 64).decode()
    np.testing.assert_array_equal(part, whole[1:4:2])
    with pytest.raises(MediaFault, match="more than 2 frames") as fault:
        video_media(path, grey, (0, None), 1, 2).decode()
    assert fault.value.reason == "too_long"


@pytest.mark.parametrize("ending", MAKERS, ids=lambda ending: ending or "folder")
def test_a_part_past_the_end_is_refused(tmp_path: Path, ending: str) -> None:
    path = MAKERS[ending](tmp_path / f"clip{ending}")
    count = 12 if path.is_dir() else 4
    assert len(video_media(path, SMALL, (1, count - 1), 2, 64).decode()) == count // 2
    with pytest.raises(MediaFault, match=f"want frames 1 on, for {count}; it ends before") as fault:
        video_media(path, SMALL, (1, count), 1, 64).decode()
    assert fault.value.reason == "bad_media"


def test_colours_of_an_array_are_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.stack([gradient(), gradient()[::-1]]))
    found = video_media(tmp_path / "a.npy", SMALL, (0, None), 1, 9).decode()
    np.testing.assert_array_equal(found, [gradient(), gradient()[::-1]])


# --- what cannot be read ----------------------------------------------------------------------------------------------


def whole_jpeg() -> bytes:
    out = io.BytesIO()
    Image.fromarray(gradient(64, 64)).save(out, "JPEG")
    return out.getvalue()


BOMB = png(40_000, 40_000, zlib.compress(bytes(1000)))  # claims 4.8 GB
HUGE = png(9_000, 9_000, zlib.compress(bytes(1000)))  # below Pillow's own limit
BAD: dict[str, tuple[bytes, str]] = {
    "empty.png": (b"", "empty"),
    "no picture.png": (b"this is no picture", "bad_media"),
    "wrong header.jpg": (b"\xff\xd8\xff\xe0" + bytes(200), "bad_media"),
    "truncated.jpg": (whole_jpeg()[:400], "bad_media"),
    "half.png": (png(8, 8, zlib.compress(gradient().tobytes())[:20]), "bad_media"),
    "bomb.png": (BOMB, "too_large"),
    "huge.png": (HUGE, "too_large"),
    "no pixels.png": (png(0, 8, zlib.compress(b"")), "bad_media"),
    "postscript.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "bad_media"),
    "gzip bomb.png": (png(8, 8, zlib.compress(bytes(300_000_000), 9)), ""),
    "text.gif": (b"GIF89a" + bytes(3), "bad_media"),
    "wrong sums.png": (BOMB[:20] + bytes(30), "bad_media"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_a_fault_with_a_reason(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BAD[name][0])
    reason = BAD[name][1]
    if not reason:  # Pillow reads as many rows as the header says, and no more
        assert read_image(tmp_path / name, SMALL).shape == (8, 8, 3)
        return
    with pytest.raises(MediaFault) as fault:
        read_image(tmp_path / name, SMALL)
    assert fault.value.reason == reason
    assert "\n" not in fault.value.words
    assert len(fault.value.words) < 160


def test_a_missing_image_and_a_folder_are_faults(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.png", "no_file"), (tmp_path, "unreadable")):
        with pytest.raises(MediaFault) as fault:
            image_media(path, SMALL).decode()
        assert fault.value.reason == reason


def bad_videos(folder: Path) -> dict[str, tuple[Path, str]]:
    """Make the videos that cannot be used."""
    (folder / "empty").mkdir()
    (folder / "half").mkdir()
    saved(folder / "half" / "1.png", gradient())
    (folder / "half" / "2.png").write_bytes(b"\x89PNG")
    (folder / "bad.gif").write_bytes(as_gif(folder / "good.gif").read_bytes()[:60])
    (folder / "none.gif").write_bytes(b"")
    np.save(folder / "floats.npy", np.zeros((3, 8, 8)))
    np.save(folder / "flat.npy", np.zeros((3, 8), np.uint8))
    np.save(folder / "nothing.npy", np.zeros((0, 8, 8), np.uint8))
    np.save(folder / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (folder / "noise.mp4").write_bytes(bytes(range(256)) * 8)
    wanted = {"empty": "empty", "half": "bad_media", "bad.gif": "bad_media", "none.gif": "empty", "gone.gif": "no_file"}
    wanted |= {"floats.npy": "bad_media", "flat.npy": "bad_media", "nothing.npy": "empty", "objects.npy": "bad_media"}
    wanted |= {"noise.mp4": "bad_media"}
    return {name: (folder / name, reason) for name, reason in wanted.items()}


def fault_of(path: Path) -> MediaFault | None:
    try:
        video_media(path, SMALL, (0, None), 1, 64).decode()
    except MediaFault as fault:
        return fault
    return None


def test_a_bad_video_is_a_fault_with_a_reason(tmp_path: Path) -> None:
    for name, (path, reason) in bad_videos(tmp_path).items():
        if name.endswith("mp4"):
            pytest.importorskip("av", reason="av is not installed")
        fault = fault_of(path)
        assert fault is not None, name
        assert fault.reason == reason, name
        assert len(fault.words) < 200


SCRIPT = """
import sys
from pathlib import Path
from heddle.data.media import MediaFault, PictureSize, read_image
for path in map(Path, sys.argv[1:]):
    try:
        print(read_image(path, PictureSize(rows=8, columns=8)).shape)
    except MediaFault as fault:
        print(fault.reason)
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) << 10)
"""


def test_bombs_and_large_pictures_need_little_memory(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(png(5_000, 4_900, zlib.compress(bytes(4_900 * 15_001), 1)))
    (tmp_path / "bomb.png").write_bytes(BOMB)
    paths = [str(tmp_path / name) for name in ("large.png", "bomb.png")]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *paths], capture_output=True, text=True, check=True)
    *found, memory = done.stdout.split("\n")[:-1]
    assert found == ["(8, 8, 3)", "too_large"]
    assert int(memory) < MOST_MEMORY


# --- what a model reads -----------------------------------------------------------------------------------------------


def test_features_are_pixels_about_zero_with_channels_first() -> None:
    pixels = gradient()
    found = PixelsConfig(size=(8, 8), mean=0.25, deviation=0.5).compute(pixels)
    np.testing.assert_allclose(found, ((pixels / 255 - 0.25) / 0.5).transpose(2, 0, 1), atol=1e-6)
    assert found.dtype == np.float32
    clip = ClipConfig(size=(8, 8), channels=1)
    assert clip.count((4, 8, 8, 1)) == 4
    assert clip.compute(moving()[..., None]).shape == (4, 1, 8, 8)
    with pytest.raises(ConfigError, match=r"features.size: want \[8, 9\], as the data have"):
        clip.count((4, 8, 9, 1))


def test_augmentation_changes_pictures_in_the_way_that_it_says() -> None:
    frames = PixelsConfig(size=(8, 8)).compute(gradient())
    draw = numpy_generator(0, Purpose.DATA, "test")
    np.testing.assert_array_equal(FlipConfig(share=1.0).apply(frames.copy(), draw), frames[..., ::-1])
    np.testing.assert_array_equal(FlipConfig(share=0.0).apply(frames.copy(), draw), frames)
    np.testing.assert_allclose(CropConfig(least=1.0).apply(frames.copy(), draw), frames, atol=1e-6)
    cropped = CropConfig(least=0.5).apply(frames.copy(), draw)
    assert cropped.shape == frames.shape
    assert np.diff(cropped[0], axis=0).max() < 0.9 * np.diff(frames[0], axis=0).max()  # stretched: slopes are smaller
    clip = np.stack([frames, frames])
    for one in (FlipConfig(), CropConfig(), BrightnessConfig()):
        first, second = one.apply(clip.copy(), draw)
        np.testing.assert_array_equal(first, second)  # every frame alike
    bright = BrightnessConfig(strength=0.3).apply(frames.copy(), draw)
    slope = np.polyfit(frames.ravel(), bright.ravel(), 1)
    np.testing.assert_allclose(np.polyval(slope, frames), bright, atol=1e-5)
