"""Augmentations against torchvision, image by image, and what a row of uniform numbers decides.

Legend: N images, C channels, H height, W width.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from project.data.augment import (
    Augment,
    PaddingMode,
    color_jitter,
    cutout,
    random_crop,
    random_flip,
    random_resized_crop,
    random_rotation,
)
from project.engine.keyed import generator


def noise(channels: int = 3, size: tuple[int, int] = (10, 12), number: int = 6) -> Tensor:
    shape = (number, channels, *size)
    return torch.randint(256, shape, generator=generator(channels), dtype=torch.uint8)


def smooth(channels: int = 3, size: tuple[int, int] = (32, 40), number: int = 4) -> Tensor:
    """Return images of grey levels 32 to 224 without sharp edges, so that interpolations agree."""
    coarse = torch.rand(number, channels, 4, 5, generator=generator(channels))
    return F.resize(32 + 192 * coarse, list(size), antialias=True).round().to(torch.uint8)


def uniform(*shape: int) -> Tensor:
    return torch.rand(shape, generator=generator(*shape))


# Each function, its number of uniform numbers (0: one per image, as a vector), and neutral ones.
FUNCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int, list[float] | float]] = {
    "crop": (lambda x, u: random_crop(x, u, 3), 2, [0.5, 0.5]),
    "crop, zeros": (lambda x, u: random_crop(x, u, 3, "zeros"), 2, [0.5, 0.5]),
    "flip": (random_flip, 0, 0.5),
    "resized crop": (lambda x, u: random_resized_crop(x, u, 0.3), 4, [1.0, 0.5, 0.2, 0.9]),
    "rotation": (lambda x, u: random_rotation(x, u, 30), 0, 0.5),
    "color jitter": (lambda x, u: color_jitter(x, u, 0.5), 3, [0.5, 0.5, 0.5]),
    "cutout": (lambda x, u: cutout(x, u, 0), 2, [0.5, 0.5]),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)
each_channels = pytest.mark.parametrize("channels", [1, 3])


@each_channels
@each_function
def test_neutral_numbers_are_the_identity(name: str, channels: int) -> None:
    function, _, neutral = FUNCTIONS[name]
    images = noise(channels, size=(28, 32))
    u = torch.tensor(neutral).expand(len(images), *torch.tensor(neutral).shape)
    assert torch.equal(function(images, u), images)


@each_channels
@each_function
def test_uint8_of_the_same_shape_and_input_not_modified(name: str, channels: int) -> None:
    function, columns, _ = FUNCTIONS[name]
    images = noise(channels)
    before = images.clone()
    for extreme in (None, 0.0, 1 - 2**-24):  # all that torch.rand gives lies between these
        u = uniform(len(images), columns) if columns else uniform(len(images))
        out = function(images, u if extreme is None else torch.full_like(u, extreme))
        assert out.dtype == torch.uint8
        assert out.shape == images.shape
        assert torch.equal(images, before)
        out.fill_(7)  # not a view of the input either
        assert torch.equal(images, before)


@each_channels
@each_function
def test_image_depends_on_its_own_row_only(name: str, channels: int) -> None:
    function, columns, _ = FUNCTIONS[name]
    images = noise(channels)
    u = uniform(len(images), columns) if columns else uniform(len(images))
    together = function(images, u)
    for k in range(len(images)):
        assert torch.equal(function(images[k : k + 1], u[k : k + 1])[0], together[k])


@pytest.mark.parametrize("mode", ["reflect", "zeros"])
@each_channels
def test_random_crop_is_torchvisions(channels: int, mode: PaddingMode) -> None:
    images = noise(channels, size=(5, 7), number=49)
    offsets = torch.cartesian_prod(torch.arange(7), torch.arange(7))
    out = random_crop(images, (offsets + 0.3) / 7, 3, mode)
    padded = F.pad(images, [3], padding_mode="reflect" if mode == "reflect" else "constant")
    for k, (top, left) in enumerate(offsets.tolist()):
        assert torch.equal(out[k], F.crop(padded[k], top, left, 5, 7))


@each_channels
def test_random_flip_is_torchvisions(channels: int) -> None:
    images = noise(channels, number=4)
    out = random_flip(images, torch.tensor([0.0, 0.499, 0.5, 0.999]))
    assert torch.equal(out[:2], F.horizontal_flip(images[:2]))
    assert torch.equal(out[2:], images[2:])


@pytest.mark.parametrize("u", [0.0, 0.2, 0.7, 1.0])
@each_channels
def test_random_rotation_is_torchvisions_inside(channels: int, u: float) -> None:
    images = smooth(channels)
    out = random_rotation(images, torch.full((len(images),), u), 25)
    angle = 25 * (2 * u - 1)
    expected = F.rotate(images, angle, interpolation=v2.InterpolationMode.BILINEAR)
    # Where the rotated image comes from inside; beyond, one reflects and the other is black. Each
    # rounds once, on coordinates that differ by float32.
    inside = F.rotate(torch.full_like(images, 255), angle, v2.InterpolationMode.BILINEAR) == 255
    inside &= F.rotate(torch.full_like(images, 255), angle, v2.InterpolationMode.NEAREST) == 255
    assert inside.float().mean() > 0.6
    assert (out.int() - expected.int())[inside].abs().max() <= 1
    assert (out.int() - images.int())[inside].abs().max() > 20  # it did rotate


@each_channels
def test_random_rotation_reflects_at_the_border(channels: int) -> None:
    white = torch.full((3, channels, 16, 16), 255, dtype=torch.uint8)
    assert torch.equal(random_rotation(white, torch.tensor([0.0, 0.3, 1.0]), 45), white)


@pytest.mark.parametrize(
    ("area", "aspect", "top", "left"),
    [(0.25, 1.0, 0, 0), (0.25, 1.0, 16, 8), (0.25, 0.75, 5, 7), (0.5, 4 / 3, 9, 2)],
)
@each_channels
def test_random_resized_crop_is_torchvisions(
    channels: int, area: float, aspect: float, top: int, left: int
) -> None:
    # Box of whole pixels, since torchvision cuts no others; its area and aspect follow from it.
    size = 36
    images = smooth(channels, size=(size, size))
    height, width = (round(size * math.sqrt(area / aspect)), round(size * math.sqrt(area * aspect)))
    scale = 0.1
    u = torch.tensor(
        [
            (height * width / size**2 - scale) / (1 - scale),
            math.log(width / height) / math.log(4 / 3) / 2 + 0.5,
            top / (size - height),
            left / (size - width),
        ]
    )
    out = random_resized_crop(images, u.expand(len(images), 4), scale)
    expected = F.resized_crop(images, top, left, height, width, [size, size], antialias=False)
    # Within half a pixel of the box's edge we use the pixels beyond it, which torchvision has cut
    # off: two rows of the enlarged image.
    inner = (..., slice(2, -2), slice(2, -2))
    assert (out.int() - expected.int())[inner].abs().max() <= 1
    assert (out.int() - images.int())[inner].abs().max() > 20


def test_random_resized_crop_keeps_area_and_aspect() -> None:
    # The images hold their own coordinates, so that the output tells which box was cut.
    size, number = 128, 1000
    ramp = torch.arange(size, dtype=torch.uint8)
    grid = torch.stack([ramp.view(-1, 1).expand(size, size), ramp.expand(size, size)])
    out = random_resized_crop(grid.expand(number, 2, size, size), uniform(number, 4), 0.2).float()
    height = (out[:, 0, -9, 8] - out[:, 0, 8, 8]) / (size - 17)  # of 1; the slope inside
    width = (out[:, 1, 8, -9] - out[:, 1, 8, 8]) / (size - 17)
    area, aspect = height * width, width / height
    assert 0.18 < area.min() < 0.22
    assert 0.95 < area.max() < 1.03
    assert 0.72 < aspect.min() < 0.78
    assert 1.30 < aspect.max() < 1.38
    assert abs((area < 0.6).float().mean() - 0.5) < 0.07
    assert abs(aspect.log().mean()) < 0.03
    center = out[:, :, size // 2, size // 2].mean(0) / size
    assert ((center - 0.5).abs() < 0.02).all()


@pytest.mark.parametrize(
    "u", [(0.0, 0.5, 0.5), (0.5, 0.0, 0.5), (0.5, 0.5, 0.0), (0.9, 0.2, 0.8), (0.3, 0.9, 0.9)]
)
@each_channels
def test_color_jitter_is_torchvisions(channels: int, u: tuple[float, float, float]) -> None:
    images = smooth(channels).clamp(64, 160)  # so that nothing has to be clamped on the way
    brightness, contrast, saturation = (1 + 0.4 * (2 * x - 1) for x in u)
    out = color_jitter(images, torch.tensor(u).expand(len(images), 3), 0.4)
    # Of float images, since of uint8 ones torchvision cuts off fractions after each of the steps.
    expected = F.adjust_brightness(images / 255, brightness)
    expected = F.adjust_contrast(expected, contrast)
    if channels == 3:
        expected = F.adjust_saturation(expected, saturation)
    assert (out - 255 * expected).abs().max() < 0.51  # we round once, at the end
    if channels == 3 or u[:2] != (0.5, 0.5):
        assert (out.int() - images.int()).abs().max() > 5


def test_color_jitter_without_brightness_is_black() -> None:
    images = noise()
    assert not color_jitter(images, torch.zeros(len(images), 3), 1.0).any()
    bright = color_jitter(images, torch.tensor([1.0, 0.5, 0.5]).expand(len(images), 3), 1.0)
    assert torch.equal(bright, (2 * images.int()).clamp(max=255).to(torch.uint8))


@pytest.mark.parametrize(
    ("center", "rows", "columns"),
    [
        ((5, 6), (3, 7), (4, 8)),
        ((0, 0), (0, 2), (0, 2)),
        ((9, 11), (7, 10), (9, 12)),
        ((1, 11), (0, 3), (9, 12)),
    ],
)
@each_channels
def test_cutout_covers_a_square(
    channels: int, center: tuple[int, int], rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    images = noise(channels, size=(10, 12))
    fill = (0.2, 0.4, 0.6)[:channels]
    u = torch.tensor([(center[0] + 0.5) / 10, (center[1] + 0.5) / 12])
    expected = images.clone()
    for channel, value in enumerate(fill):
        expected[:, channel, slice(*rows), slice(*columns)] = round(255 * value)
    assert torch.equal(cutout(images, u.expand(len(images), 2), 4, fill), expected)


def test_cutout_of_odd_size_and_one_fill_for_all_channels() -> None:
    images = noise(size=(10, 12))
    expected = images.clone()
    expected[:, :, 4:7, 5:8] = 0
    u = torch.tensor([0.55, 0.52]).expand(len(images), 2)  # row 5, column 6
    assert torch.equal(cutout(images, u, 3), expected)


LABELS = torch.arange(6)
# Option, its columns of u, and what it alone does.
OPTIONS: list[tuple[Augment, slice | int, Callable[[Tensor, Tensor], Tensor]]] = [
    (Augment(resized_crop=0.3), slice(0, 4), lambda x, u: random_resized_crop(x, u, 0.3)),
    (Augment(rotation=30), 4, lambda x, u: random_rotation(x, u, 30)),
    (Augment(crop=3), slice(5, 7), lambda x, u: random_crop(x, u, 3)),
    (Augment(crop=3, padding="zeros"), slice(5, 7), lambda x, u: random_crop(x, u, 3, "zeros")),
    (Augment(flip=True), 7, random_flip),
    (Augment(color_jitter=0.5), slice(8, 11), lambda x, u: color_jitter(x, u, 0.5)),
    (Augment(cutout=4), slice(11, 13), lambda x, u: cutout(x, u, 4, (0.3,))),
]


@pytest.mark.parametrize(("augment", "columns", "function"), OPTIONS)
def test_option_reads_its_own_columns_only(
    augment: Augment, columns: slice | int, function: Callable[[Tensor, Tensor], Tensor]
) -> None:
    images, u = noise(), uniform(6, augment.num_uniforms)
    others = torch.full_like(u, math.nan)
    others[:, columns] = u[:, columns]
    augment.fill = (0.3,)
    out, _ = augment(images, LABELS, others)
    assert torch.equal(out, function(images, u[:, columns]))
    assert not torch.equal(out, images)


def test_all_off_is_the_identity_and_reads_nothing() -> None:
    images, augment = noise(), Augment()
    out, labels = augment(images, LABELS, torch.full((6, augment.num_uniforms), math.nan))
    assert torch.equal(out, images)
    assert torch.equal(labels, LABELS)


def test_composition_in_the_order_of_the_arguments() -> None:
    images, mean = smooth(), (0.1, 0.5, 0.9)
    augment = Augment(0.3, 30, 3, "zeros", True, 0.5, 8)
    augment.fill, u = mean, uniform(4, augment.num_uniforms)
    expected = random_resized_crop(images, u[:, 0:4], 0.3)
    expected = random_rotation(expected, u[:, 4], 30)
    expected = random_crop(expected, u[:, 5:7], 3, "zeros")
    expected = random_flip(expected, u[:, 7])
    expected = color_jitter(expected, u[:, 8:11], 0.5)
    expected = cutout(expected, u[:, 11:13], 8, mean)
    assert torch.equal(augment(images, LABELS[:4], u)[0], expected)


# Masks

MOVES = Augment(resized_crop=0.4, rotation=40, crop=2, padding="zeros", flip=True)


def blocks(number: int = 5, size: tuple[int, int] = (24, 20)) -> Tensor:
    """Return masks of four classes in blocks of 4×4 pixels, int64 (N, H, W)."""
    coarse = torch.randint(4, (number, size[0] // 4, size[1] // 4), generator=generator(number))
    return coarse.repeat_interleave(4, 1).repeat_interleave(4, 2)


@pytest.mark.parametrize(
    "augment",
    [
        Augment(resized_crop=0.4),
        Augment(rotation=40),
        Augment(crop=3),
        Augment(crop=3, padding="zeros"),
        Augment(flip=True),
        MOVES,
    ],
    ids=["resized_crop", "rotation", "crop", "zeros", "flip", "all"],
)
def test_masks_move_as_the_pixels_of_images_do(augment: Augment) -> None:
    masks = blocks() // 2
    u = uniform(len(masks), augment.num_uniforms)
    images = (200 * masks).to(torch.uint8)[:, None]
    moved, moved_masks = augment(images, masks, u)
    assert moved_masks.dtype == torch.int64
    assert moved_masks.shape == masks.shape
    assert not torch.equal(moved_masks, masks)
    # An image is interpolated; inside a block, where its value is that of a class, both agree.
    inside = moved[:, 0] % 200 == 0
    assert inside.float().mean() > 0.5
    assert torch.equal((moved[:, 0] // 200)[inside], moved_masks.to(torch.uint8)[inside])
    assert set(moved_masks.unique().tolist()) <= {0, 1}


def test_neutral_numbers_leave_a_mask_unchanged() -> None:
    masks, u = blocks(), torch.full((5, Augment.num_uniforms), 0.5)
    u[:, 0] = 1
    images = (50 * masks).to(torch.uint8)[:, None]
    assert torch.equal(MOVES(images, masks, u)[1], masks)


def test_colour_changes_and_cutout_leave_masks_unchanged() -> None:
    masks = blocks()
    images = (50 * masks).to(torch.uint8)[:, None].expand(-1, 3, -1, -1)
    changed, targets = Augment(color_jitter=0.9, cutout=9)(images, masks, uniform(5, 13))
    assert not torch.equal(changed, images)
    assert torch.equal(targets, masks)


def test_masks_in_a_dict_move_and_other_targets_do_not() -> None:
    masks, augment = blocks(), MOVES
    images, u = (50 * masks).to(torch.uint8)[:, None], uniform(5, 13)
    others = {"label": torch.arange(5), "heat": masks.float(), "small": masks[:, :12]}
    _, moved = augment(images, {"mask": masks > 1, **others}, u)
    assert torch.equal(moved["mask"], augment(images, masks, u)[1] > 1)
    assert moved["mask"].dtype == torch.bool
    assert all(torch.equal(moved[name], value) for name, value in others.items())


def test_large_numbers_in_masks_are_exact() -> None:
    masks = blocks() + 2**40 + 1
    _, moved = MOVES(torch.zeros(5, 1, 24, 20, dtype=torch.uint8), masks, uniform(5, 13))
    assert set(moved.unique().tolist()) <= {0, *masks.unique().tolist()}
