"""Real data for the tests that need them: FashionMNIST and CIFAR-10 in `shared/data`.

That folder is next to the checkout, or where PROJECT_TEST_DATA says. Nothing is downloaded.
"""

import os
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from project.__main__ import console
from project.callbacks import CurvesMonitor, PredictionGrid
from project.engine.signals import SIGNALS

SHARED = Path(os.environ.get("PROJECT_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))

# Each core has a process of tests, and a second thread would wait for the tests of the other.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the long tests first, so that no process still has one of them while the others wait."""
    items.sort(key=lambda item: "slow" not in item.keywords)


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in a folder of its own, which holds whatever it leaves behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)  # which a notebook leaves set
    monkeypatch.delenv("COLUMNS", raising=False)  # of which tables are as wide


@pytest.fixture(autouse=True)
def _without_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs draw nothing except in tests with the marker: drawing takes longer than the runs."""
    if "pictures" not in request.keywords:
        for callback in (PredictionGrid, CurvesMonitor):
            monkeypatch.setattr(callback, "_draw", lambda *_: None)


@pytest.fixture
def exit_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    """Return the exit code of `python -m project` with some arguments, run in this process."""

    def run(args: list[str]) -> int:
        monkeypatch.setattr(sys, "argv", ["project", *args])
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        try:
            console()
        except SystemExit as stop:
            return int(stop.code or 0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return 0

    return run


@pytest.fixture(scope="session")
def fashion_mnist_root() -> Path:
    """Return the folder of the four original IDX files, gzipped."""
    root = SHARED / "fashion-mnist"
    if not root.is_dir():
        pytest.skip(f"no FashionMNIST in {root}: set PROJECT_TEST_DATA")
    return root


@pytest.fixture(scope="session")
def cifar_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of about 2,000 CIFAR-10 JPEGs, `train/<class>/…` and `test/<class>/…`."""
    archive = SHARED / "cifar10-images.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no {archive}: set PROJECT_TEST_DATA")
    root = tmp_path_factory.mktemp("cifar10")
    wanted = {"train": 150, "test": 50}
    counts: dict[tuple[str, ...], int] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = tuple(Path(member.name).parts[-3:-1])
            if (
                len(parts) == 2
                and member.isfile()
                and counts.get(parts, 0) < wanted.get(parts[0], 0)
            ):
                counts[parts] = counts.get(parts, 0) + 1
                member.name = "/".join(Path(member.name).parts[-3:])
                tar.extract(member, root, filter="data")
    return root
