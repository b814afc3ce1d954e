"""The code of docs/data.md works as written, and batches pass through the functions it lists."""

import importlib
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from PIL import Image

from project.commands.cli import main
from project.data import Augment, ImageFolderDataModule, StreamDataModule, TensorLoader

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "data.md").read_text()
REVIEWS, MIXUP = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OPTIONS = re.search(r"`(--data\.transforms\+ .*?)`", PAGE)
(CONFIG,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
STEPS = re.findall(r"^\d\. `([\w.]+)` in `([\w/]+)\.py`", PAGE, re.MULTILINE)


@pytest.fixture
def _my_transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_transforms.py").write_text(MIXUP)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_data_module_of_tokens(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        torch.save((torch.arange(60).view(12, 5), torch.arange(12) % 2), tmp_path / f"{split}.pt")
    scope: dict[str, Any] = {}
    exec(REVIEWS, scope)
    data = scope["ReviewsDataModule"](tmp_path, batch_size=4)
    assert isinstance(data, StreamDataModule)
    data.setup("fit")
    batches = list(data.train_dataloader())
    assert [tokens.shape for tokens, _ in batches] == [(4, 5)] * 3
    assert torch.cat([tokens for tokens, _ in batches]).unique().numel() == 60


@pytest.mark.usefixtures("_my_transforms")
def test_a_transform_of_your_own_is_short_and_mixes_alike_on_two_ranks() -> None:
    lines = MIXUP[MIXUP.index("class ") :].splitlines()
    assert len([line for line in lines if line.strip()]) <= 15
    mixup = importlib.import_module("my_transforms").Mixup(3)
    images, labels = torch.rand(16, 1, 4, 4), torch.arange(16) % 3

    def batch(rank: int, world_size: int) -> Any:
        options: dict[str, Any] = {"rank": rank, "world_size": world_size, "shuffle": True}
        return next(iter(TensorLoader(images, labels, 8, transform=mixup, **options)))

    whole, shares = batch(0, 1), [batch(rank, 2) for rank in range(2)]
    assert torch.allclose(whole[1].sum(1), torch.ones(8))
    assert (whole[1].max(1).values < 1).any()
    for rank, share in enumerate(shares):
        assert torch.equal(share[0], whole[0][rank::2])
        assert torch.equal(share[1], whole[1][rank::2])


@pytest.mark.usefixtures("_my_transforms")
@pytest.mark.parametrize("by", ["option", "config"])
def test_a_run_trains_with_it(by: str) -> None:
    assert OPTIONS
    Path("mixup.yaml").write_text(CONFIG)
    given = OPTIONS[1].split() if by == "option" else ["--config", "mixup.yaml"]
    args = ["fit", "--config", "synthetic", *given, "--config", "presets/debug"]
    args += ["--trainer.accelerator", "cpu", "--data.image_size", "8", "--model.width", "4"]
    cli = main(args)
    (mixup,) = cli.datamodule.transforms
    assert (type(mixup).__name__, mixup.num_classes) == ("Mixup", 10)
    assert cli.trainer.callback_metrics["train/loss"].isfinite()


def test_a_batch_passes_the_functions_of_the_list(tmp_path: Path) -> None:
    assert len(STEPS) <= 8
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(6):
            Image.new("RGB", (9, 9), (40 * k, 20, 90)).save(tmp_path / name / f"{k}.png")
    data = ImageFolderDataModule(
        tmp_path,
        image_size=8,
        batch_size=4,
        memory_budget=0,
        val_size=0,
        num_workers=1,
        augment=Augment(crop=1),
        test_size=0,
    )
    data.setup("fit")
    passed = calls(data.train_dataloader())
    data.num_workers = 0  # this process sees what the others do
    passed |= calls(data.train_dataloader())
    missing = [name for name, file in STEPS if (f"{file}.py", name) not in passed]
    assert missing == []


def calls(loader: TensorLoader) -> set[tuple[str, str]]:
    """Return file (relative to the package) and name of our functions that process a batch."""
    found = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "project"):
            place = path.relative_to(ROOT / "project").as_posix()
            found.add((place, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        next(iter(loader))
    finally:
        sys.setprofile(None)
    return found
