"""FashionMNIST: the real files, and files of the same format that are made or damaged here."""

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from torch import Tensor

from project.data import FashionMNISTDataModule
from project.data.fashion_mnist import FILES, read_idx
from project.engine.keyed import generator


def set_up(root: Path, *stages: str, **kwargs: int) -> FashionMNISTDataModule:
    data = FashionMNISTDataModule(root, **kwargs)
    data.prepare_data()
    for stage in stages:
        data.setup(stage)
    return data


@pytest.fixture(scope="module")
def fashion(fashion_mnist_root: Path) -> FashionMNISTDataModule:
    return set_up(fashion_mnist_root, "fit", "test", train_size=5000, val_size=2000)


def test_fashion_mnist_statistics(fashion: FashionMNISTDataModule) -> None:
    mean, std = fashion.statistics
    assert [round(value, 4) for value in (*mean, *std)] == [0.2873, 0.3542]
    _, labels, indices = fashion.sets["train"]
    counts = labels[indices].bincount().tolist()
    assert counts == [503, 495, 488, 482, 475, 490, 518, 529, 497, 523]


def test_fashion_mnist_split(fashion: FashionMNISTDataModule) -> None:
    train, val = fashion.sets["train"][2], fashion.sets["val"][2]
    order = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(train, order[:5000])
    assert torch.equal(val, order[5000:7000])
    assert not set(train.tolist()) & set(val.tolist())


def test_fashion_mnist_test_set_is_whole(fashion: FashionMNISTDataModule) -> None:
    images, labels, indices = fashion.sets["test"]
    assert isinstance(images, Tensor)
    assert images.shape == (10_000, 1, 28, 28)
    assert indices.tolist() == list(range(10_000))
    assert labels.bincount().tolist() == [1000] * 10
    assert torch.equal(torch.cat([y for _, y in fashion.test_dataloader()]), labels)
    assert torch.equal(torch.cat([y for _, y in fashion.predict_dataloader()]), labels)


def test_training_images_are_normalised(fashion: FashionMNISTDataModule) -> None:
    images = torch.cat([x for x, _ in fashion.train_dataloader()])
    assert images.shape == (5000, 1, 28, 28)
    torch.testing.assert_close(images.mean(), torch.tensor(0.0), atol=1e-4, rtol=0)
    torch.testing.assert_close(images.std(), torch.tensor(1.0), atol=1e-4, rtol=0)


def write_idx(path: Path, values: Tensor, pack: bool = False) -> None:
    header = struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape)
    data = header + values.numpy().tobytes()
    path = path.with_name(path.name + ".gz") if pack else path
    path.write_bytes(gzip.compress(data) if pack else data)


def small_fashion(folder: Path, pack: bool = False, train: int = 100) -> dict[str, Tensor]:
    """Write four IDX files of random images, and return the images."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for split, size in (("train", train), ("test", 30)):
        images = torch.randint(256, (size, 28, 28), generator=generator(size), dtype=torch.uint8)
        write_idx(folder / FILES[split][0], images, pack)
        write_idx(folder / FILES[split][1], (torch.arange(size) % 10).to(torch.uint8), pack)
        written[split] = images.unsqueeze(1)
    return written


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("folder", ["", "FashionMNIST/raw"])
def test_fashion_mnist_file_forms(tmp_path: Path, folder: str, pack: bool) -> None:
    written = small_fashion(tmp_path / folder, pack)
    data = set_up(tmp_path, "fit", "test", val_size=20)
    for split in ("train", "test"):
        images, labels, _ = data.sets[split]
        assert torch.equal(images, written[split])
        assert torch.equal(labels, torch.arange(len(labels)) % 10)
    assert len(data.sets["train"][2]) == 80


def damage(kind: str, data: bytes) -> bytes:
    """Damage a file: bytes go missing, change, or belong to something else."""
    middle = len(data) // 2
    return {
        "empty": b"",
        "cut in the header": data[:9],
        "cut": data[:middle],
        "one byte gone": data[:-1],
        "one byte more": data + b"\0",
        "wrong bytes": data[:middle] + bytes(64) + data[middle + 64 :],
        "a web page": b"<!DOCTYPE html><html><body>404</body></html>" * 10,
        "a picture": b"\xff\xd8\xff\xe0" + bytes(range(256)) * 10,
        "of float32": data[:2] + b"\x0d" + data[3:],
    }[kind]


DAMAGES = ["empty", "cut in the header", "cut", "one byte gone", "a web page", "a picture"]


@pytest.mark.parametrize("kind", [*DAMAGES, "one byte more", "of float32"])
def test_damaged_idx_file_is_named(tmp_path: Path, kind: str) -> None:
    small_fashion(tmp_path)
    path = tmp_path / FILES["train"][0]
    path.write_bytes(damage(kind, path.read_bytes()))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte is .*[Cc]opy it again"):
        set_up(tmp_path, "fit", val_size=20)


@pytest.mark.parametrize("kind", [*DAMAGES, "wrong bytes"])
def test_damaged_gzip_file_is_named(tmp_path: Path, kind: str) -> None:
    small_fashion(tmp_path, pack=True)
    path = tmp_path / (FILES["test"][0] + ".gz")
    path.write_bytes(damage(kind, path.read_bytes()))
    data = set_up(tmp_path, "fit", val_size=20)
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte\.gz is .*[Cc]opy it again"):
        data.setup("test")


def test_gzip_file_with_a_wrong_deflate_block(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"")[:10] + b"\x07" + bytes(20))  # block type 3 does not exist
    with pytest.raises(ValueError, match=r"x\.gz is truncated or damaged"):
        read_idx(path)


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (torch.zeros(100, 32, 32), torch.zeros(100)),
        (torch.zeros(100), torch.zeros(100)),
        (torch.zeros(100, 28, 28), torch.zeros(90)),
        (torch.zeros(100, 28, 28), torch.full((100,), 10)),
    ],
)
def test_idx_files_of_other_data_are_named(tmp_path: Path, images: Tensor, labels: Tensor) -> None:
    small_fashion(tmp_path)
    write_idx(tmp_path / FILES["train"][0], images.to(torch.uint8))
    write_idx(tmp_path / FILES["train"][1], labels.to(torch.uint8))
    with pytest.raises(
        ValueError, match=r"train-images.* and .*train-labels.* do not hold FashionMNIST"
    ):
        set_up(tmp_path, "fit", val_size=20)


def test_read_idx_of_any_shape(tmp_path: Path) -> None:
    values = torch.arange(24, dtype=torch.uint8).view(2, 3, 1, 4)
    write_idx(tmp_path / "x", values)
    assert torch.equal(read_idx(tmp_path / "x"), values)


def test_no_download_where_the_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_fashion(tmp_path)
    monkeypatch.setattr("torchvision.datasets.FashionMNIST.download", lambda _: 1 / 0)
    FashionMNISTDataModule(tmp_path).prepare_data()
    (tmp_path / FILES["test"][1]).unlink()
    with pytest.raises(ValueError, match="no FashionMNIST"):
        FashionMNISTDataModule(tmp_path).prepare_data()


def test_no_more_is_inflated_than_the_header_promises(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    header = struct.pack(">HBBI", 0, 8, 1, 100)
    path.write_bytes(gzip.compress(header + bytes(200_000_000), compresslevel=1))
    tracemalloc.start()
    with pytest.raises(ValueError, match="x.gz .* promises 100 bytes, more follow"):
        read_idx(path)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_a_header_that_promises_more_than_there_is_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack(">HBBIII", 0, 8, 3, 2**31, 2**31, 2**31) + bytes(100))
    with pytest.raises(ValueError, match=r"x is truncated .* promises \d{28} bytes, 100 follow"):
        read_idx(path)


def test_another_type_of_numbers_is_not_told_by_its_length(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(struct.pack(">HBBI", 0, 9, 1, 100) + bytes(100))
    with pytest.raises(ValueError, match="x is not an IDX file of unsigned bytes"):
        read_idx(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    small_fashion(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    os.mkfifo(tmp_path / "train-labels-idx1-ubyte")
    with pytest.raises(ValueError, match="train-labels-idx1-ubyte is not a regular file but a pip"):
        set_up(tmp_path, "fit")
