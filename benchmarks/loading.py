"""Batches: `TensorLoader` against a DataLoader; files: `ImageFolderDataModule` against a bare loop.

Everything runs on one core, except decoding, for which both sides use one thread per core.

python -m benchmarks.loading
"""

import argparse
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from benchmarks.timing import REPEATS, RESULTS, Row, faster, interleave, report, seconds
from project.data import Augment, Compose, ImageFolderDataModule, Normalize, TensorLoader
from project.data.synthetic import stripes

SIZE, BATCH_SIZE = 32, 512
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)  # CIFAR-10's
RANDOM = [v2.RandomCrop(SIZE, padding=4), v2.RandomHorizontalFlip()]
FINISH = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


class Transformed(Dataset[tuple[Tensor, int]]):
    """Images in memory, each of which is transformed when it is requested."""

    def __init__(self, images: Any, labels: list[int], transform: Callable[[Any], Tensor]) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def batch_rows(number: int, repeats: int) -> list[Row]:
    """Measure crop, flip and normalisation of 32×32 colour images, in batches of 512."""
    images, targets = stripes(number, SIZE, 0)
    labels = targets.tolist()
    pictures = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).numpy()]
    ours = TensorLoader(
        images,
        targets,
        BATCH_SIZE,
        shuffle=True,
        transform=Compose([Augment(crop=4, padding="zeros", flip=True), Normalize(MEAN, STD)]),
    )
    # torchvision's data sets give PIL images. The competitors are v2 as documented, v2 on tensors
    # kept in memory, and v2 with PIL for the geometry.
    by_hand: dict[str, tuple[Any, list[nn.Module]]] = {
        "torchvision v2": (pictures, [v2.ToImage(), *RANDOM, *FINISH]),
        "torchvision v2 on tensors": (images, [*RANDOM, *FINISH]),
        "PIL": (pictures, [*RANDOM, v2.PILToTensor(), *FINISH]),
    }
    loaders: dict[str, Iterable[Any]] = {"ours": ours}
    for name, (kept, steps) in by_hand.items():
        data = Transformed(kept, labels, v2.Compose(steps))
        loaders[name] = DataLoader(data, BATCH_SIZE, shuffle=True)

    def consume(loader: Iterable[Any]) -> float:
        return seconds(lambda: [None for _ in loader])

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = interleave({k: partial(consume, v) for k, v in loaders.items()}, repeats)
    torch.set_num_threads(threads)
    rows = []
    for name in by_hand:
        target = 13.0 if name == "PIL" else 20.0
        row = faster(f"augmented batches, {name} per image", found["ours"], found[name], target)
        per_image = {"ours_us": 1e6 * row["ours_s"] / number}
        rows.append(row | per_image | {"theirs_us": 1e6 * row["theirs_s"] / number})
    return rows


def write_jpegs(folder: Path, number: int, size: int) -> list[Path]:
    """Write colour images in two class folders."""
    images, _ = stripes(number, size, 0)
    paths = [folder / "ab"[k % 2] / f"{k}.jpg" for k in range(number)]
    for path, image in zip(paths, images.permute(0, 2, 3, 1).numpy(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, quality=90)
    return paths


def with_pil(path: Path) -> Any:
    """Decode a JPEG, and nothing else."""
    with Image.open(path) as file:
        return np.asarray(file.convert("RGB"))


def with_libjpeg(path: Path) -> Tensor:
    """Decode a JPEG with torchvision's libjpeg, and nothing else."""
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    return decode_image(data, ImageReadMode.RGB)


def decoding_rows(number: int, size: int, repeats: int) -> list[Row]:
    """Measure decoding all images of a folder, at the size that they have on disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_jpegs(folder, number, size)

        def ours(cache: bool) -> Any:
            data = ImageFolderDataModule(
                folder, image_size=size, val_size=0, test_size=0, cache=cache
            )
            return data.load("train")

        def bare(decode: Callable[[Path], Any]) -> None:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for _ in pool.map(decode, paths):
                    pass

        runs = {"ours": partial(seconds, partial(ours, cache=False))}
        for name, decode in (("libjpeg", with_libjpeg), ("PIL", with_pil)):
            runs[name] = partial(seconds, partial(bare, decode))
        ours(cache=True)
        runs["again"] = partial(seconds, partial(ours, cache=True))
        found = interleave(runs, repeats)
    again = faster(f"second start, {number} JPEGs", found["again"], found["ours"], None)
    rows: list[Row] = [again]
    for name in ("libjpeg", "PIL"):
        # Our share of a bare loop's speed; the loop does not crop, scale or keep anything.
        row = faster(
            f"decoding JPEGs, {size}×{size}, bare {name} loop", found["ours"], found[name], 0.7
        )
        speed = {"ours_images_per_s": number / row["ours_s"]}
        rows.append(row | speed | {"theirs_images_per_s": number / row["theirs_s"]})
    return rows


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--images", type=int, default=10 * BATCH_SIZE, help="images to batch")
    parser.add_argument("--jpegs", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RESULTS / "loading.json")
    options = parser.parse_args(args)
    rows = batch_rows(options.images, options.repeats)
    for size in (SIZE, 256):
        number = max(2, options.jpegs // (1 if size == SIZE else 8))
        rows += decoding_rows(number, size, options.repeats)
    report("python -m benchmarks.loading", rows, options.out)


if __name__ == "__main__":
    main()
