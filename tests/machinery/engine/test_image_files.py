"""Odd images that can be read nevertheless, and errors that name those that can't be."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from project.engine.image_files import ImageFiles, read_image
from project.engine.photos import Photos

GRADIENT = np.linspace(0, 255, 64).round().astype(np.uint8)


def picture(height: int = 64, width: int = 64) -> Image.Image:
    """Return an image that is dark at its top and bright at its bottom."""
    column = np.linspace(0, 255, height).round().astype(np.uint8)
    return Image.fromarray(np.broadcast_to(column[:, None, None], (height, width, 3)).copy())


def exif_block(path: Path) -> tuple[int, int]:
    """Return the start and the end of the TIFF structure in a JPEG's EXIF block."""
    content = path.read_bytes()
    start = content.index(b"Exif\0\0") + 6
    (length,) = struct.unpack(">H", content[start - 8 : start - 6])
    return start, start - 8 + length


@pytest.fixture
def turned(tmp_path: Path) -> Path:
    """A JPEG to be turned by 180°, with a tag beside that."""
    exif = Image.Exif()
    exif[0x0112], exif[0x011A], exif[0x010F] = 3, 72.0, "camera"
    path = tmp_path / "a.jpg"
    picture().transpose(Image.Transpose.ROTATE_180).save(path, exif=exif, quality=95)
    return path


def bright_below(path: Path) -> bool:
    image = read_image(path, 16, 1)[0].float()
    return bool(image[:4].mean() + 50 < image[-4:].mean())


@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
@pytest.mark.parametrize("kind", range(1, 13))
def test_a_tag_of_the_wrong_type_does_not_matter(turned: Path, kind: int) -> None:
    content = turned.read_bytes()
    for order in (b"\x01\x1a\x00\x05", b"\x1a\x01\x05\x00"):
        wrong = struct.pack(">H" if order[0] == 1 else "<H", kind)
        content = content.replace(order, order[:2] + wrong)
    turned.write_bytes(content)
    assert bright_below(turned)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
def test_no_damage_to_exif_data_makes_an_image_unreadable(turned: Path) -> None:
    """Each byte of the block in turn, and some at random."""
    whole = turned.read_bytes()
    start, end = exif_block(turned)
    rng = np.random.default_rng(0)
    for k in range(400):
        content = bytearray(whole)
        places = [start + k] if start + k < end else rng.integers(start, end, 5).tolist()
        for place in places:
            content[place] = int(rng.integers(256))
        turned.write_bytes(content)
        assert read_image(turned, 16, 3).shape == (3, 16, 16)


@pytest.mark.parametrize("suffix", ["png", "webp", "jpg"])
@pytest.mark.parametrize("block", [b"Exif", b"MM", b"no EXIF data at all", b"MM\0*\0\0\0\x08\0"])
def test_a_block_that_is_no_exif_data_does_not_matter(
    tmp_path: Path, suffix: str, block: bytes
) -> None:
    picture().save(tmp_path / f"a.{suffix}", exif=block, quality=95)
    assert bright_below(tmp_path / f"a.{suffix}")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["tif", "jpg", "png", "webp", "avif"])
def test_every_format_is_turned_once(tmp_path: Path, suffix: str, orientation: int) -> None:
    """As Pillow's own `exif_transpose` does on a JPEG."""
    if f".{suffix}" not in Image.registered_extensions():
        pytest.skip(f"this Pillow reads no {suffix}")
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    picture().rotate(30).save(path, exif=exif, quality=95)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("L"), dtype=float)
    got = read_image(path, 64, 1)[0].double().numpy()
    assert np.abs(got - expected).max() < 3


def test_the_first_picture_of_a_gif(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "green", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "a.gif", 8, 3)[:, 4, 4].tolist() == [255, 0, 0]


def test_the_first_page_of_a_tiff(tmp_path: Path) -> None:
    pages = [Image.new("RGB", (8, 8), color) for color in ("blue", "red")]
    pages[0].save(
        tmp_path / "a.tif", save_all=True, append_images=pages[1:], compression="tiff_lzw"
    )
    assert read_image(tmp_path / "a.tif", 8, 3)[:, 4, 4].tolist() == [0, 0, 255]


@pytest.mark.parametrize(
    ("dtype", "high", "message"),
    [(np.float32, 1, "floating point"), (np.int32, 2**20, "more than 16 bits")],
)
def test_values_without_a_known_range_are_named(
    tmp_path: Path, dtype: Any, high: int, message: str
) -> None:
    path = tmp_path / "a.tif"
    Image.fromarray((GRADIENT[:, None] / 255 * high).astype(dtype).repeat(8, 1)).save(path)
    with pytest.raises(ValueError, match=rf"a\.tif can't be read as an image \(its .*{message}"):
        ImageFiles([path], 8, 1)[0]


def test_large_jpegs_are_read_at_reduced_size(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    picture(1600, 1600).save(path)  # 2.56 megapixels, of which an eighth a side is decoded
    assert read_image(path, 16, 3, megapixels=0.05).shape == (3, 16, 16)
    with pytest.raises(ValueError, match="1600×1600 pixels, 3 megapixels"):
        read_image(path, 1000, 3, megapixels=0.05)  # decoded as it is
    picture(1600, 1600).save(path, progressive=True)  # held in memory as it is
    with pytest.raises(ValueError, match=r"set --data\.max_megapixels above 0\.05"):
        read_image(path, 16, 3, megapixels=0.05)


def png_of(width: int, height: int) -> bytes:
    """The header of a black and white PNG, and pixels that are too few."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"0")), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("kind", [ImageFiles, Photos])
def test_a_huge_image_names_the_option(tmp_path: Path, kind: type[ImageFiles]) -> None:
    path = tmp_path / "huge.png"
    path.write_bytes(png_of(20_000, 20_000))
    files = kind([path], 8, 3)
    expected = (
        f"{path} can't be read as an image (it has 20000×20000 pixels, 400 megapixels: to read it "
        "anyway, set --data.max_megapixels above 179)"
    )
    if isinstance(files, Photos):
        assert not files[0].any()
        assert files.unreadable == {0: expected}
    else:
        with pytest.raises(ValueError, match="megapixels") as error:
            files[0]
        assert str(error.value) == expected
    path.write_bytes(png_of(13_300, 13_300))  # below 179, and only then decoded
    with pytest.raises(ValueError, match="truncated"):
        ImageFiles([path], 8, 3)[0]


@pytest.mark.parametrize("content", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"GIF8"])
def test_only_formats_in_wide_use_are_decoded(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"\(its format is not known\)"):
        ImageFiles([path], 8, 3)[0]


def test_the_identity_is_of_the_chosen_images_and_their_size(tmp_path: Path) -> None:
    files = ImageFiles([tmp_path / "a", tmp_path / "b"], 8, 3, digests=[b"A" * 16, b"B" * 16])
    both = files.identity(torch.tensor([0, 1]))
    assert both != files.identity(torch.tensor([1, 0])) != files.identity(torch.tensor([1]))
    other = ImageFiles(files.paths, 9, 3, digests=files.digests)
    assert other.identity(torch.tensor([0, 1])) != both
