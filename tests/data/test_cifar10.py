"""CIFAR-10 in its four official forms, made here from real images, and the files it refuses."""

import io
import os
import pickle
import shutil
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from project.data import CIFAR10DataModule, cifar10
from project.data.cifar10 import read_batch


def set_up(root: Path, *stages: str) -> CIFAR10DataModule:
    data = CIFAR10DataModule(root, val_size=200)
    data.prepare_data()
    for stage in stages:
        data.setup(stage)
    return data


def damage(kind: str, data: bytes) -> bytes:
    """Damage a file: bytes go missing, change, or belong to something else."""
    middle = len(data) // 2
    return {
        "empty": b"",
        "cut in the header": data[:9],
        "cut": data[:middle],
        "one byte gone": data[:-1],
        "wrong bytes": data[:middle] + bytes(64) + data[middle + 64 :],
        "a web page": b"<!DOCTYPE html><html><body>404</body></html>" * 10,
    }[kind]


class Python2Pickler(pickle._Pickler):
    """Pickles bytes and text as Python 2 did, with which the official files were written."""

    def save_string(self, value: bytes | str) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(value)

    dispatch = {**pickle._Pickler.dispatch, bytes: save_string, str: save_string}


def python2_pickle(batch: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(batch)
    return file.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def batch_dict(images: np.ndarray, labels: list[int]) -> dict[bytes, Any]:
    return {b"batch_label": b"a batch", b"labels": labels, b"data": images, b"filenames": []}


Batches = dict[str, tuple[np.ndarray, list[int]]]
PYTHON, BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"
PACKED = {PYTHON: "cifar-10-python.tar.gz", BINARY: "cifar-10-binary.tar.gz"}
FORMS = [PYTHON, BINARY, *PACKED.values()]


@pytest.fixture(scope="module")
def cifar_batches(cifar_images: Path) -> Batches:
    """Return real images as rows of the official files, 300 in each of five training files."""

    def rows(split: str) -> tuple[np.ndarray, np.ndarray]:
        files = sorted((cifar_images / split).glob("*/*.jpg"))
        names = sorted({file.parent.name for file in files})
        pixels = np.stack([np.asarray(Image.open(file)) for file in files])
        labels = np.array([names.index(file.parent.name) for file in files])
        order = np.random.default_rng(0).permutation(len(files))
        return pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)[order], labels[order]

    pixels, labels = rows("train")
    batches = {
        f"data_batch_{k + 1}": (pixels[300 * k :][:300], labels[300 * k :][:300].tolist())
        for k in range(5)
    }
    pixels, labels = rows("test")
    return {**batches, "test_batch": (pixels, labels.tolist())}


@pytest.fixture(scope="module")
def cifar_forms(tmp_path_factory: pytest.TempPathFactory, cifar_batches: Batches) -> Path:
    """Write the two official folders and the two official archives."""
    root = tmp_path_factory.mktemp("cifar")
    for folder in (PYTHON, BINARY):
        (root / folder).mkdir()
        for name, (pixels, labels) in cifar_batches.items():
            if folder == PYTHON:
                data = python2_pickle(batch_dict(pixels, labels))
                (root / folder / name).write_bytes(data)
            else:
                row = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
                (root / folder / f"{name}.bin").write_bytes(row.tobytes())
        (root / folder / "readme.html").write_text("<html>")
        with tarfile.open(root / PACKED[folder], "w:gz", compresslevel=1) as archive:
            archive.add(root / folder, folder)
    return root


@pytest.fixture
def cifar_root(tmp_path: Path, cifar_forms: Path) -> Callable[[str], Path]:
    """Return a function that copies one form into a folder of its own, which a test may damage."""

    def copy(form: str) -> Path:
        source = cifar_forms / form
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / form)
        return tmp_path

    return copy


@pytest.mark.parametrize("form", FORMS)
def test_cifar10_forms(
    form: str, cifar_root: Callable[[str], Path], cifar_batches: Batches
) -> None:
    data = set_up(cifar_root(form), "fit", "test")
    training = [cifar_batches[f"data_batch_{k}"] for k in range(1, 6)]
    for split, batches in (("train", training), ("test", [cifar_batches["test_batch"]])):
        images, labels, _ = data.sets[split]
        assert isinstance(images, Tensor)
        assert images.dtype == torch.uint8
        expected = torch.from_numpy(np.concatenate([pixels for pixels, _ in batches]))
        assert torch.equal(images, expected.view(-1, 3, 32, 32))
        assert labels.tolist() == [label for _, part in batches for label in part]
    assert len(data.sets["train"][2]) == 1300


@pytest.mark.parametrize("form", [PYTHON, BINARY])
def test_cifar10_root_may_be_the_folder_itself(
    form: str, cifar_root: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchvision.datasets.CIFAR10.download", lambda _: 1 / 0)
    data = set_up(cifar_root(form) / form, "fit")
    assert len(data.sets["train"][1]) == 1500


def test_cifar10_colors_are_in_place(cifar_images: Path, cifar_root: Callable[[str], Path]) -> None:
    # A row of the official files is all red, then all green, then all blue, row by row.
    images, labels = CIFAR10DataModule(cifar_root(BINARY)).load("test")  # type: ignore[misc]
    folder = cifar_images / "test" / CIFAR10DataModule.class_names[int(labels[0])]
    known = [torch.from_numpy(np.array(Image.open(file))) for file in folder.iterdir()]
    assert any(torch.equal(images[0].permute(1, 2, 0), image) for image in known)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar10_batch_pickled_by_python_3(protocol: int, cifar_batches: Batches) -> None:
    pixels, labels = cifar_batches["test_batch"]
    data = pickle.dumps(batch_dict(pixels, labels), protocol)
    images, got = read_batch(data, pickled=True)
    assert torch.equal(images.view(-1, 3072), torch.from_numpy(pixels))
    assert got.tolist() == labels


@pytest.mark.parametrize("kind", ["empty", "cut", "cut in the header", "wrong bytes", "a web page"])
@pytest.mark.parametrize("form", PACKED.values())
def test_damaged_cifar10_archive_is_named(
    form: str, kind: str, cifar_root: Callable[[str], Path]
) -> None:
    root = cifar_root(form)
    (root / form).write_bytes(damage(kind, (root / form).read_bytes()))
    with pytest.raises(ValueError, match=rf"{form}(:data_batch_\d(\.bin)?)? is truncated or dam"):
        set_up(root, "fit")


@pytest.mark.parametrize("kind", ["empty", "cut in the header", "one byte gone", "a web page"])
@pytest.mark.parametrize("name", ["data_batch_3", "data_batch_3.bin"])
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_cifar10_batch_is_named(
    packed: bool, name: str, kind: str, cifar_root: Callable[[str], Path]
) -> None:
    form = BINARY if name.endswith(".bin") else PYTHON
    root = cifar_root(form)
    path = root / form / name
    path.write_bytes(damage(kind, path.read_bytes()))
    if packed:
        with tarfile.open(root / PACKED[form], "w:gz", compresslevel=1) as archive:
            archive.add(root / form, form)
        shutil.rmtree(root / form)
    with pytest.raises(ValueError, match=rf"[/:]{name} is truncated or damaged .*: copy it again"):
        set_up(root, "fit")


@pytest.mark.parametrize("packed", [False, True])
def test_missing_cifar10_batch_is_named(packed: bool, cifar_root: Callable[[str], Path]) -> None:
    root = cifar_root(PYTHON)
    (root / PYTHON / "data_batch_3").unlink()
    if packed:
        with tarfile.open(root / PACKED[PYTHON], "w:gz", compresslevel=1) as archive:
            archive.add(root / PYTHON, PYTHON)
        shutil.rmtree(root / PYTHON)
    form = PACKED[PYTHON] if packed else PYTHON
    with pytest.raises(ValueError, match=rf"{form} is truncated or damaged \(.*data_batch_3.*\)"):
        set_up(root, "fit")


@pytest.mark.parametrize("change", ["a label of 10", "a label less", "no labels", "not a dict"])
def test_cifar10_batch_with_other_content_is_refused(
    change: str, cifar_root: Callable[[str], Path], cifar_batches: Batches
) -> None:
    pixels, labels = cifar_batches["data_batch_2"]
    batch: Any = {
        "a label of 10": batch_dict(pixels, [10, *labels[1:]]),
        "a label less": batch_dict(pixels, labels[1:]),
        "no labels": {b"data": pixels},
        "not a dict": [pixels, labels],
    }[change]
    root = cifar_root(PYTHON)
    (root / PYTHON / "data_batch_2").write_bytes(python2_pickle(batch))
    with pytest.raises(ValueError, match="data_batch_2 is truncated or damaged"):
        set_up(root, "fit")


class Call:
    """Pickles as a function call, which a plain `pickle.loads` would carry out."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.args


@pytest.mark.parametrize(
    "function",
    [
        lambda path: Call(eval, f"open({str(path)!r}, 'w').close()"),
        lambda path: Call(Path.touch, path),
        lambda path: Call(np.save, str(path), [0]),  # numpy is trusted for arrays only
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_pickle_that_runs_code_is_refused(
    protocol: int,
    function: Callable[[Path], Call],
    tmp_path: Path,
    cifar_root: Callable[[str], Path],
    cifar_batches: Batches,
) -> None:
    target = tmp_path / "created.npy"
    batch = batch_dict(*cifar_batches["data_batch_1"])
    data = pickle.dumps({**batch, b"filenames": function(target)}, protocol)
    pickle.loads(data)
    assert target.exists()  # so it is a payload
    target.unlink()

    root = cifar_root(PYTHON)
    (root / PYTHON / "data_batch_1").write_bytes(data)
    with pytest.raises(ValueError, match=r"data_batch_1 is .* \(it would call .+\)"):
        set_up(root, "fit")
    assert not target.exists()


PIXELS = np.zeros((3, 3072), np.uint8)


@pytest.mark.parametrize(
    ("images", "labels", "why"),
    [
        (PIXELS, [0, 1, -1], "from -1 to 1, not from 0 to 9"),
        (PIXELS, [0.5, 1.0, 2.0], r"labels torch.float32 \(3,\)"),
        (PIXELS, [True, False, True], "labels torch.bool"),
        (PIXELS, [[0], [1], [2]], r"labels torch.int64 \(3, 1\)"),
        (PIXELS[:0], [], r"0 images"),
        (PIXELS.astype(float), [0, 1, 2], "images are float64"),
        (PIXELS.reshape(9, 1024), [0] * 9, r"uint8 \(9, 1024\), not uint8 \(N, 3072\)"),
        (b"text", [0], "images are .S4"),
    ],
)
def test_images_and_labels_of_other_kinds_are_refused(images: Any, labels: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_batch(pickle.dumps({b"data": images, b"labels": labels}), pickled=True)


@pytest.mark.parametrize(
    "names",
    ["numpy.f2py.__main__ dtype", "numpy.core encode", "numpy ctypeslib", "numpy.testing ndarray"],
)
def test_nothing_but_exact_names_is_imported(names: str) -> None:
    was = set(sys.modules)
    module, name = names.split()
    with pytest.raises(pickle.UnpicklingError, match=f"it would call {module}.{name}"):
        read_batch(f"c{module}\n{name}\n.".encode(), pickled=True)
    with pytest.raises(pickle.UnpicklingError, match="it has bytes in 'idna', not in latin1"):
        read_batch(b"c_codecs\nencode\n(Vx\nVidna\ntR.", pickled=True)
    assert set(sys.modules) == was


def test_an_exit_while_data_are_read_is_an_error(
    cifar_root: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10, "read_batch", lambda *_: sys.exit(0))
    with pytest.raises(ValueError, match="data_batch_1 is truncated or damaged"):
        set_up(cifar_root(PYTHON), "fit")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", [f"{PYTHON}/data_batch_3", "cifar-10-python.tar.gz"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    if "/" in name:
        (tmp_path / PYTHON).mkdir()
        for k in range(1, 6):
            batch = {b"data": PIXELS, b"labels": [0, 1, 2]}
            (tmp_path / PYTHON / f"data_batch_{k}").write_bytes(pickle.dumps(batch))
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name} is not a regular file but a pipe"):
        set_up(tmp_path, "fit")
