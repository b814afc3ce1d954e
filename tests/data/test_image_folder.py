"""Folders of images: which files are found, what they decode to, and how errors name them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from project.data import Augment, ImageFolderDataModule, TensorLoader
from project.engine.image_files import DamagedImageError, ImageFiles, read_image

PARTS = ("train", "val", "test")


def noise(*shape: int, seed: int = 0, dtype: Any = np.uint8) -> np.ndarray:
    high = np.iinfo(dtype).max + 1
    return np.random.default_rng(seed).integers(0, high, shape, dtype=dtype)


def write(path: Path, seed: int = 0, size: int = 16) -> Path:
    """Write a small colour image of noise in the format that the suffix names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(size, size, 3, seed=seed)).save(path)
    return path


def make(root: Path, **kwargs: Any) -> ImageFolderDataModule:
    data = ImageFolderDataModule(root, **{"image_size": 16, "batch_size": 4, **kwargs})
    data.prepare_data()
    data.setup("fit")
    return data


def epoch_of(loader: TensorLoader | list[TensorLoader], epoch: int = 0) -> list[Any]:
    assert isinstance(loader, TensorLoader)
    loader.set_epoch(epoch)
    return list(loader)


@pytest.fixture
def one_level(tmp_path: Path) -> Path:
    """Write 30 images of cats and 20 of dogs."""
    for first, name, count in ((0, "cat", 30), (30, "dog", 20)):
        for k in range(count):
            write(tmp_path / name / f"{k:02}.png", seed=first + k)
    return tmp_path


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    """Write 6 training, 3 validation and 4 test images of each class."""
    seed = 0
    for part, count in zip(PARTS, (6, 3, 4), strict=True):
        for name in ("cat", "dog"):
            for k in range(count):
                seed += 1
                write(tmp_path / part / name / f"{k}.png", seed)
    return tmp_path


def test_nested_form(nested: Path) -> None:
    data = make(nested)
    data.setup("test")
    assert data.class_names == ["cat", "dog"]
    assert data.num_classes == 2
    for part, count in zip(PARTS, (6, 3, 4), strict=True):
        images, labels, indices = data.sets[part]  # type: ignore[index]
        assert isinstance(images, Tensor)
        assert labels.tolist() == [0] * count + [1] * count
        assert indices.sort().values.tolist() == list(range(2 * count))
        expected = [
            read_image(nested / part / name / f"{k}.png", 16, 3)
            for name in ("cat", "dog")
            for k in range(count)
        ]
        assert torch.equal(images, torch.stack(expected))


def test_nested_form_without_val_and_test_cuts_them_off(nested: Path) -> None:
    shutil.rmtree(nested / "val")
    shutil.rmtree(nested / "test")
    data = make(nested, val_size=0.3, test_size=0.3)
    data.setup("test")
    parts = [data.sets[part][2].tolist() for part in PARTS]  # type: ignore[index]
    assert sorted(index for part in parts for index in part) == list(range(12))


def test_test_folder_alone_leaves_validation_to_the_split(nested: Path) -> None:
    shutil.rmtree(nested / "val")
    data = make(nested, val_size=0.3, test_size=0.3)
    data.setup("test")
    train, val, test = (data.sets[part][2].tolist() for part in PARTS)  # type: ignore[index]
    assert sorted(train + val) == list(range(12))
    assert test == list(range(8))


def test_one_level_form_is_split_by_seed(one_level: Path) -> None:
    def parts(**kwargs: int) -> list[list[int]]:
        data = make(one_level, val_size=0.2, test_size=0.1, **kwargs)
        data.setup("test")
        assert len({id(data.sets[part][0]) for part in PARTS}) == 1  # type: ignore[index]
        return [data.sets[part][2].tolist() for part in PARTS]  # type: ignore[index]

    base = parts()
    assert sorted(index for part in base for index in part) == list(range(50))
    assert parts(seed=4) == base
    other = parts(split_seed=1)
    assert all(set(a) != set(b) for a, b in zip(base, other, strict=True))


def test_one_level_form_can_have_a_class_called_test(one_level: Path) -> None:
    (one_level / "dog").rename(one_level / "test")
    data = make(one_level, test_size=0.3)
    data.setup("test")
    assert data.class_names[-1] == "test"
    assert data.sets["test"][0] is data.sets["train"][0]


def test_images_carry_the_label_of_their_folder(one_level: Path) -> None:
    data = make(one_level)
    images, labels, _ = data.sets["train"]
    assert labels.bincount().tolist() == [30, 20]
    assert torch.equal(images[3], read_image(one_level / "cat" / "03.png", 16, 3))
    assert torch.equal(images[31], read_image(one_level / "dog" / "01.png", 16, 3))


def test_suffixes_in_any_case_and_nothing_else(tmp_path: Path) -> None:
    written = ["a.jpg", "b.JPEG", "c.png", "d.PNG", "e.webp", "f.bmp", "g.Jpg", "h.BMP"]
    written += ["i.tif", "j.TIFF", "k.gif", "l.jfif", "m.jp2", "n.ppm"]
    for name in written:
        write(tmp_path / "cat" / name)
    write(tmp_path / "dog" / "a.WebP")
    for name in (".hidden.png", "notes.txt", "Thumbs.db", "labels.csv", "png", "x.png.part"):
        (tmp_path / "cat" / name).write_text("no image")
    (tmp_path / "cat" / "more").mkdir()
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / "readme.md").write_text("no class")
    data = make(tmp_path, memory_budget=0, val_size=0, test_size=0)
    images, labels, _ = data.sets["train"]
    assert isinstance(images, ImageFiles)
    assert data.class_names == ["cat", "dog"]
    names = [path.name for path in images.paths]
    assert names == [*written, "a.WebP"]
    assert labels.tolist() == [0] * len(written) + [1]
    assert len(torch.stack([images[i] for i in range(len(images))])) == len(names)


@pytest.fixture
def decode(tmp_path: Path) -> Callable[..., Tensor]:
    """Save an image and read it, uint8 (C, image_size, image_size)."""

    def function(
        image: Image.Image, suffix: str = "png", size: int = 8, channels: int = 3, **options: Any
    ) -> Tensor:
        image.save(tmp_path / f"image.{suffix}", **options)
        return read_image(tmp_path / f"image.{suffix}", size, channels)

    return function


def chw(pixels: np.ndarray) -> Tensor:
    """Return an array, uint8 (H, W, C) or (H, W), as a tensor (C, H, W)."""
    return torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())


@pytest.mark.parametrize("suffix", ["png", "bmp", "webp"])
def test_lossless_formats_are_exact(decode: Callable[..., Tensor], suffix: str) -> None:
    pixels = noise(8, 8, 3)
    options = {"lossless": True} if suffix == "webp" else {}
    got = decode(Image.fromarray(pixels), suffix, **options)
    assert got.dtype == torch.uint8
    assert torch.equal(got, chw(pixels))


def test_images_of_the_right_size_are_pils_pixels(cifar_images: Path) -> None:
    paths = sorted((cifar_images / "test").glob("*/*.jpg"))[::20]
    assert len(paths) == 25
    for path in paths:
        with Image.open(path) as image:
            assert torch.equal(read_image(path, 32, 3), chw(np.asarray(image)))
            assert torch.equal(read_image(path, 32, 1), chw(np.asarray(image.convert("L"))))


def test_grey_images(decode: Callable[..., Tensor]) -> None:
    pixels = noise(8, 8)
    assert torch.equal(decode(Image.fromarray(pixels)), chw(pixels).expand(3, 8, 8))
    assert torch.equal(decode(Image.fromarray(pixels), channels=1), chw(pixels))
    black_and_white = Image.fromarray(pixels > 127)
    assert torch.equal(decode(black_and_white, channels=1), chw(pixels > 127).to(torch.uint8) * 255)


def test_grey_of_colors_is_luma(decode: Callable[..., Tensor]) -> None:
    pixels = noise(8, 8, 3)
    expected = pixels @ np.array([0.299, 0.587, 0.114])  # ITU-R 601-2
    got = decode(Image.fromarray(pixels), channels=1)
    assert got.shape == (1, 8, 8)
    assert np.abs(got[0].numpy() - expected).max() < 1


def palette_image() -> tuple[Image.Image, np.ndarray]:
    """Return an image of four colours, and its pixels."""
    colors, index = noise(4, 3, seed=5), noise(8, 8, seed=6) % 4
    image = Image.fromarray(index)
    image.putpalette(colors.flatten().tolist())
    assert image.mode == "P"
    return image, colors[index]


@pytest.mark.parametrize("suffix", ["png", "bmp"])
def test_palette(decode: Callable[..., Tensor], suffix: str) -> None:
    image, pixels = palette_image()
    assert torch.equal(decode(image, suffix), chw(pixels))


@pytest.mark.parametrize("transparency", [2, bytes([255, 255, 0, 255])])
def test_transparent_palette_color_becomes_white(
    decode: Callable[..., Tensor], transparency: int | bytes
) -> None:
    image, pixels = palette_image()
    pixels[np.asarray(image) == 2] = 255
    assert torch.equal(decode(image, transparency=transparency), chw(pixels))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_over_white(decode: Callable[..., Tensor], mode: str) -> None:
    channels = len(mode)
    pixels = noise(8, 8, channels)
    pixels[:4, :, -1] = 0
    pixels[6:, :, -1] = 255
    share = pixels[..., -1:] / 255
    expected = chw(pixels[..., :-1] * share + 255 * (1 - share)).expand(3, 8, 8)
    image = Image.fromarray(pixels)
    assert image.mode == mode
    got = decode(image)
    assert (got - expected).abs().max() <= 1  # of rounding
    assert (got[:, :4] == 255).all()
    assert torch.equal(got[:, 6:].double(), expected[:, 6:])


def test_transparent_color_of_an_opaque_mode_becomes_white(decode: Callable[..., Tensor]) -> None:
    pixels = noise(8, 8, 3)
    got = decode(Image.fromarray(pixels), transparency=tuple(pixels[3, 4].tolist()))
    pixels[3, 4] = 255
    assert torch.equal(got, chw(pixels))


@pytest.mark.parametrize("channels", [1, 3])
def test_16_bits_are_scaled_and_not_clipped(decode: Callable[..., Tensor], channels: int) -> None:
    pixels = noise(8, 8, dtype=np.uint16)
    pixels[0, :4] = [0, 255, 256, 65535]
    image = Image.fromarray(pixels)
    assert image.mode == "I;16"
    got = decode(image, channels=channels)
    assert torch.equal(got, chw((pixels // 256).astype(np.uint8)).expand(channels, 8, 8))
    assert got[0, 0, :4].tolist() == [0, 0, 1, 255]


def test_cmyk_jpeg(decode: Callable[..., Tensor]) -> None:
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # magenta and yellow: red
    got = decode(image, "jpg", quality=100)
    assert (got - torch.tensor([255, 0, 0]).view(3, 1, 1)).abs().max() <= 3


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(decode: Callable[..., Tensor], orientation: int, suffix: str) -> None:
    upright = np.full((8, 8), 128, np.uint8)
    upright[:4, :4], upright[:4, 4:], upright[4:, :4] = 0, 80, 200  # four quarters that differ
    # What a camera held that way has stored; EXIF 2.32, 4.6.4: where row 0 and column 0 are.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright, 1),
        7: upright[::-1, ::-1].T,
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    got = decode(Image.fromarray(stored.copy()), suffix, channels=1, exif=exif, quality=100)
    assert (got - chw(upright).int()).abs().max() <= 6


def test_crop_is_the_center_square(decode: Callable[..., Tensor]) -> None:
    wide = noise(8, 14, 3)
    assert torch.equal(decode(Image.fromarray(wide)), chw(wide[:, 3:11]))
    high = noise(12, 8, 3)
    assert torch.equal(decode(Image.fromarray(high)), chw(high[2:10]))


def test_large_photo_is_scaled_down(decode: Callable[..., Tensor]) -> None:
    # JPEG decodes at an eighth of its size here, and the rest is interpolated.
    ramp = np.linspace(0, 255, 600).round().astype(np.uint8)
    photo = Image.fromarray(np.broadcast_to(ramp[:, None, None], (600, 800, 3)).copy())
    got = decode(photo, "jpg", size=32, quality=95).float()
    expected = (torch.arange(32) + 0.5) / 32 * 255
    assert (got - expected.view(1, 32, 1)).abs().max() < 3


def test_small_image_is_enlarged(decode: Callable[..., Tensor]) -> None:
    assert decode(Image.new("RGB", (3, 2), (10, 20, 30)), size=8)[:, 5, 2].tolist() == [10, 20, 30]


@pytest.mark.parametrize("in_channels", [1, 3])
def test_shape_of_the_batches(one_level: Path, in_channels: Any) -> None:
    data = make(one_level, in_channels=in_channels, image_size=12)
    (images, labels), *_ = epoch_of(data.train_dataloader())
    assert images.shape == (4, in_channels, 12, 12)
    assert images.dtype == torch.float32
    assert labels.shape == (4,)
    assert [len(values) for values in data.statistics] == [in_channels] * 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_streamed_batches_are_those_in_memory(one_level: Path, num_workers: int) -> None:
    augment = Augment(resized_crop=0.5, crop=2, flip=True, cutout=4)
    kwargs = {"augment": augment, "num_workers": num_workers, "seed": 2}
    memory, disk = make(one_level, **kwargs), make(one_level, memory_budget=0, **kwargs)
    assert isinstance(memory.sets["train"][0], Tensor)
    assert isinstance(disk.sets["train"][0], ImageFiles)
    assert disk.statistics == memory.statistics
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        got, expected = (epoch_of(getattr(data, name)(), 3) for data in (disk, memory))
        for batch, expected_batch in zip(got, expected, strict=True):
            assert torch.equal(batch[0], expected_batch[0])
            assert torch.equal(batch[1], expected_batch[1])


def test_memory_budget_is_in_gb_of_pixels(one_level: Path) -> None:
    size = 50 * 3 * 16 * 16 / 1e9
    assert isinstance(make(one_level, memory_budget=size).sets["train"][0], Tensor)
    assert isinstance(make(one_level, memory_budget=0.99 * size).sets["train"][0], ImageFiles)
    grey = make(one_level, in_channels=1, memory_budget=size / 3)
    assert isinstance(grey.sets["train"][0], Tensor)


def cached(root: Path) -> list[Path]:
    """Return the paths of the files of decoded pixels."""
    return sorted((root / ".cache").glob("*.npy")) if (root / ".cache").is_dir() else []


def test_a_second_start_decodes_nothing(one_level: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(one_level)
    assert len(cached(one_level)) == 1
    monkeypatch.setattr("project.engine.image_files.decode", None)
    again = make(one_level)
    assert torch.equal(again.sets["train"][0], first.sets["train"][0])  # type: ignore[arg-type]
    assert again.sha256 == first.sha256
    assert again.class_names == first.class_names


def test_a_file_that_changes_is_decoded_anew(one_level: Path) -> None:
    before = make(one_level).sets["train"][0]
    (stale,) = cached(one_level)
    make(one_level, image_size=8)
    write(one_level / "dog" / "03.png", seed=99)
    images = make(one_level).sets["train"][0]
    assert isinstance(before, Tensor)
    assert isinstance(images, Tensor)
    changed = (images != before).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [33]
    assert np.array_equal(images[33].permute(1, 2, 0).numpy(), noise(16, 16, 3, seed=99))
    assert stale not in cached(one_level)
    assert len(cached(one_level)) == 2
    (one_level / "cat" / "00.png").rename(one_level / "dog" / "00_was_a_cat.png")
    assert torch.equal(make(one_level).sets["train"][1].bincount(), torch.tensor([29, 21]))


@pytest.mark.parametrize("damage", [b"", b"half", None])
def test_a_damaged_cache_is_made_again(one_level: Path, damage: bytes | None) -> None:
    first = make(one_level).sets["train"][0]
    (path,) = cached(one_level)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000] if damage is None else damage)
    assert torch.equal(make(one_level).sets["train"][0], first)  # type: ignore[arg-type]
    assert path.read_bytes() == whole


def test_a_folder_that_takes_no_cache_is_read_without(one_level: Path) -> None:
    make(one_level, cache=False)
    assert not cached(one_level)
    (one_level / ".cache").write_text("a file of the user")
    assert len(make(one_level).sets["train"][0]) == 50  # type: ignore[arg-type]
    assert (one_level / ".cache").read_text() == "a file of the user"


def test_sha256_of_streamed_images_changes_with_the_files(one_level: Path) -> None:
    base = make(one_level, memory_budget=0).sha256
    assert make(one_level, memory_budget=0).sha256 == base
    assert make(one_level, memory_budget=0, image_size=8).sha256 != base
    write(one_level / "cat" / "03.png", size=20)
    assert make(one_level, memory_budget=0).sha256 != base


def test_bad_images_are_listed_at_once(one_level: Path) -> None:
    good = (one_level / "cat" / "00.png").read_bytes()
    (one_level / "cat" / "01.png").write_bytes(good[: len(good) // 2])
    (one_level / "cat" / "02.png").write_bytes(b"")
    (one_level / "dog" / "03.png").write_text("<html>")
    write(one_level / "dog" / "04.jpg").rename(one_level / "dog" / "04.png")  # which is no fault
    with pytest.raises(ValueError, match="remove or replace 3 of 50 files:") as error:
        make(one_level)
    _, _, listed = str(error.value).partition("files: ")
    names = [line.split(" can't be read as an image (")[0] for line in listed.split("; ")]
    bad = ["cat/01.png", "cat/02.png", "dog/03.png"]
    assert names == [str(one_level / name) for name in bad]


def test_ten_bad_images_are_listed(one_level: Path) -> None:
    for path in list(one_level.glob("cat/*"))[:11]:
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match="remove or replace 11 of 50 files: ") as error:
        make(one_level)
    assert "\n" not in str(error.value)
    *listed, last = str(error.value).split("; ")
    assert len(listed) == 10
    assert last == "and 1 more"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_image_that_breaks_later_is_one_sentence(one_level: Path, num_workers: int) -> None:
    data = make(one_level, memory_budget=0, val_size=0, test_size=0)
    path = one_level / "dog" / "03.png"
    path.write_bytes(b"no image")
    loader = TensorLoader(*data.sets["train"][:2], 10, num_workers=num_workers)
    with pytest.raises(DamagedImageError) as error:
        list(loader)
    assert str(error.value) == f"{path} can't be read as an image (its format is not known)"


def test_one_class_is_refused(one_level: Path) -> None:
    shutil.rmtree(one_level / "dog")
    with pytest.raises(ValueError, match=r"needs two or more class folders .* only 'cat'"):
        make(one_level)
    shutil.rmtree(one_level / "cat")
    with pytest.raises(ValueError, match=r"needs two or more class folders .* found none"):
        make(one_level)


def test_empty_class_is_named(one_level: Path) -> None:
    (one_level / "emu").mkdir()
    with pytest.raises(ValueError, match=r"class folder .*emu has no images \(it is empty; JPEG"):
        make(one_level)
    (one_level / "emu" / "a.heic").write_bytes(b"")
    expected = r"emu has no images \(left out: other suffix 1 \(\.heic 1\); JPEG, .* are read"
    with pytest.raises(ValueError, match=expected):
        make(one_level)


def test_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"/photos is not a folder: set --data\.root to"):
        make(tmp_path / "photos")


@pytest.mark.parametrize("part", ["val", "test"])
def test_class_without_training_images_is_named(nested: Path, part: str) -> None:
    write(nested / part / "emu" / "0.png")
    with pytest.raises(ValueError, match=rf"{part} has classes that .* training .* lack: .*emu"):
        make(nested).setup("test")


def test_class_without_validation_images_is_no_error(nested: Path) -> None:
    shutil.rmtree(nested / "val" / "cat")
    assert make(nested).sets["val"][1].tolist() == [1] * 3
