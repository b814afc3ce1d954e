"""Names of files and classes that are no text, or that a spreadsheet would run."""

import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from project.commands.cli import main
from project.runs.files import readable, write_rows

CLASSES = (b"\xe9t\xe9", b"=1+1", b"-dog")
FILES = [b"caf\xe9", b"=a", b"@b", *(b"%d" % k for k in range(9))]
FIT = ["fit", "--config=synthetic", "--data=ImageFolderDataModule", "--data.root=data"]
FIT += ["--data.image_size=8", "--data.batch_size=4", "--model=MLP", "--model.hidden_sizes=[8]"]
FIT += ["--trainer.max_epochs=1", "--preflight=false", "--trainer.accelerator=cpu"]
FIT += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
FIT += ["--data.val_size=0.25", "--data.test_size=0.25"]


@pytest.fixture
def images() -> list[Path]:
    """Images with odd names in classes with odd names."""
    paths = []
    for label, name in enumerate(CLASSES):
        os.makedirs(os.path.join(b"data", name))
        for k, file in enumerate(FILES):
            paths.append(Path(os.fsdecode(os.path.join(b"data", name, file + b".png"))))
            pixels = np.random.default_rng([label, k]).integers(256, size=(8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(paths[-1])
    return paths


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def plain(cell: str) -> str:
    """A cell without the quote before a formula."""
    return cell[1:] if cell.startswith("'") else cell


@pytest.mark.pictures
def test_odd_names_are_kept_everywhere(images: list[Path]) -> None:
    main(FIT)
    run = Path("runs/synthetic/version_0")
    cli = main(["predict", f"--run={run}"])
    rows = read_table(run / "predictions.csv")
    assert list(rows[0]) == ["index", "label", "prediction", "probability", "path"]
    assert len(rows) == len(cli.datamodule.sets["test"][2]) > 0
    for row in rows:
        path = Path("data", plain(row["path"]))
        assert path in images
        assert path.parent.name == plain(row["label"])
        assert row["label"][0] not in "=+-@"
        assert 0 < float(row["probability"]) <= 1
    main(["predict", f"--run={run}", "--images=data"])
    rows = read_table(run / "images.csv")
    assert sorted(row["path"] for row in rows) == sorted(map(str, images))
    names = {os.fsdecode(name) for name in CLASSES}
    assert {plain(row["class"]) for row in rows} <= names
    assert set(json.loads((run / "run.json").read_text())["classes"]) == names
    assert {path.name for path in run.glob("*.png")} >= {"confusion.png", "images.png"}


def test_a_damaged_image_with_an_odd_name_is_named(
    images: list[Path], exit_code: Callable[[list[str]], int], capfd: pytest.CaptureFixture[str]
) -> None:
    images[0].write_bytes(b"no image")
    assert exit_code(FIT) == 1
    assert r"data/\xe9t\xe9/caf\xe9.png" in capfd.readouterr().err.replace("\\udce9", "\\xe9")


def test_an_option_that_is_no_text_is_named(
    exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code([*FIT, os.fsdecode(b"--data.root=caf\xe9")]) == 2
    assert r"error: --data.root=caf\xe9 is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_formulas_get_a_quote_and_numbers_none(begin: str) -> None:
    write_rows(Path("table.csv"), [[f"{begin}cmd|' C'!A0", "a=b", -1.5, "-1.5", "+3e-7", "nan"]])
    with open("table.csv", newline="") as file:
        (row,) = csv.reader(file)
    assert row == [f"'{begin}cmd|' C'!A0", "a=b", "-1.5", "-1.5", "+3e-7", "nan"]


def test_readable() -> None:
    assert readable(os.fsdecode(b"caf\xe9 \xc3\xa9")) == r"caf\xe9 é"
