"""`predict --images`: what the run says of photos, without the data that it was trained on."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from project.commands.cli import main
from project.data import ImageFolderDataModule
from project.engine import image_files
from project.engine.photos import PhotosDataModule

CLASSES = ("cat", "dog", "staffordshire_bull_terrier $\\frac")
FIT = ["fit", "--config=synthetic", "--data=ImageFolderDataModule", "--data.image_size=16"]
FIT += ["--data.batch_size=4", "--data.cache=false", "--model.width=4"]
FIT += ["--trainer.max_epochs=1", "--preflight=false"]
QUIET = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
QUIET += ["--trainer.enable_model_summary=false"]


def write(path: Path, seed: int, size: tuple[int, int] = (30, 20)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(256, size=(*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose `predictions.csv` is written, and its test images; the data are moved away."""
    root = tmp_path_factory.mktemp("trained")
    for split, count in (("train", 12), ("val", 4), ("test", 11)):
        for label, name in enumerate(CLASSES):
            for k in range(count):
                write(root / "data" / split / name / f"{k:02}.jpg", seed=100 * label + k)
    where = [f"--data.root={root / 'data'}", f"--trainer.default_root_dir={root}"]
    main([*FIT, *where, *QUIET])
    run = root / "synthetic" / "version_0"
    main(["predict", f"--run={run}"])
    (root / "data").rename(root / "moved")
    return run, root / "moved" / "test"


@pytest.fixture
def run(trained: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the run, to write into."""
    return Path(shutil.copytree(trained[0], tmp_path / "copy"))


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def test_photos_are_seen_as_the_test_images_were(
    trained: tuple[Path, Path], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = trained[1]
    cli = main(["predict", f"--run={run}", f"--images={images}"])
    assert f"Predictions: {run / 'images.csv'}" in capsys.readouterr().out
    rows, expected = table(run / "images.csv"), table(run / "predictions.csv")
    columns = [f"{x}{k}" for k in ("", "_2", "_3") for x in ("class", "probability")]
    assert list(rows[0]) == ["path", *columns]
    assert [row["path"] for row in rows] == sorted(map(str, images.rglob("*.jpg")))
    assert [row["class"] for row in rows] == [row["prediction"] for row in expected]
    assert [row["probability"] for row in rows] == [row["probability"] for row in expected]
    assert len({row["class"] for row in rows}) > 1
    for row in rows:
        probabilities = [float(row[column]) for column in columns[1::2]]
        assert probabilities == sorted(probabilities, reverse=True)
        assert sum(probabilities) == pytest.approx(1, abs=2e-4)

    data = ImageFolderDataModule(images.parent, 16, cache=False, batch_size=4)
    data.setup("predict")
    photos = cli.datamodule.predict_dataloader()
    for got, wanted in zip(photos, data.predict_dataloader(), strict=True):
        assert torch.equal(got[0], wanted[0])
    with Image.open(run / "images.png") as picture:
        assert min(picture.size) > 300


def test_damaged_files_are_named_and_the_others_predicted(
    run: Path, exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("photos/a.JPG"), 0)
    write(Path("photos/deep/er/b.png"), 1)
    write(Path("photos/.hidden/c.png"), 2)
    Path("photos/notes.txt").write_text("no image")
    Path("photos/.d.png").write_text("no image")
    Path("photos/e.png").write_text("no image")
    Path("photos/f.jpg").write_bytes(Path("photos/a.JPG").read_bytes()[:-300])
    assert exit_code(["predict", f"--run={run}", "--images=photos"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "can't be read" in line]
    assert [line.split()[0] for line in lines] == ["photos/e.png", "photos/f.jpg"]
    assert "truncated" in lines[1]
    rows = table(run / "images.csv")
    assert [row["path"] for row in rows] == ["photos/a.JPG", "photos/deep/er/b.png"]

    for path in ("photos/a.JPG", "photos/deep/er/b.png"):
        Path(path).write_text("no image")
    assert exit_code(["predict", f"--run={run}", "--images=photos"]) == 1
    assert "error: none of the 4 images could be read" in capsys.readouterr().err


def test_photos_are_decoded_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for k in range(20):
        write(Path(f"photos/{k}.png"), k)
    decoded: list[Path] = []
    read_image = image_files.read_image

    def spy(path: Path, *args: Any) -> torch.Tensor:
        decoded.append(path)
        return read_image(path, *args)

    monkeypatch.setattr(image_files, "read_image", spy)
    facts = {"image_size": 8, "in_channels": 1, "class_names": ["a", "b"]}
    data = PhotosDataModule(Path("photos"), {**facts, "mean": [0.4], "std": [0.2]}, batch_size=2)
    data.setup("predict")
    batches = iter(data.predict_dataloader())
    assert not decoded
    assert next(batches)[0].shape == (4, 1, 8, 8)
    assert len(decoded) == 4


@pytest.mark.parametrize(
    ("make", "args", "code", "message"),
    [
        (
            False,
            ["--images=photos"],
            1,
            "--images: photos is not a folder: name one with images to classify",
        ),
        (True, ["--images=photos"], 1, "--images: there are no images in photos (JPEG, PNG"),
        (True, ["--image=photos"], 2, "unknown option --image (did you mean --images?)"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Path,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
    make: bool,
    args: list[str],
    code: int,
    message: str,
) -> None:
    if make:
        Path("photos").mkdir()
    capsys.readouterr()
    assert exit_code(["predict", f"--run={run}", *args]) == code
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_checkpoint_of_before_is_one_sentence(run: Path) -> None:
    path = run / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["ImageFolderDataModule"]["preprocessing"]
    torch.save(checkpoint, path)
    with pytest.raises(ValueError, match="best.ckpt was not trained on images, or is older"):
        main(["predict", f"--run={run}", "--images=photos"])
