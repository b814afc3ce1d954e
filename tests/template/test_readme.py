"""Every command of the README is run on a small part of the real data; the names in it exist."""

import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from project.commands.cli import main
from project.commands.sources import config_folder
from project.commands.table import OWN_MAIN
from project.data.cifar10 import BATCHES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OPTIONS = (ROOT / "docs/options.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README + OPTIONS, re.DOTALL)
LINES = [line for kind, block in BLOCKS if kind != "python" for line in block.strip().splitlines()]
COMMANDS = [shlex.split(line)[3:] for line in LINES if line.startswith("python -m project ")]
FAST = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2"]
FAST += ["--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
FAST += ["--trainer.enable_model_summary", "false"]


@pytest.fixture
def workplace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fashion_mnist_root: Path, cifar_images: Path
) -> Path:
    """Return a folder with only `data`, as after the downloads, and `my_photos`."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    cifar = data / "cifar-10-batches-bin"
    cifar.mkdir(parents=True)
    for path in fashion_mnist_root.iterdir():
        (data / path.name).symlink_to(path)
    for split in ("train", "test"):
        rows = [
            np.insert(np.asarray(Image.open(path)).transpose(2, 0, 1).ravel(), 0, label)
            for label, folder in enumerate(sorted((cifar_images / split).iterdir()))
            for path in sorted(folder.iterdir())[:30]
        ]
        for name in BATCHES[split]:  # each the same, which does not matter here
            (cifar / f"{name}.bin").write_bytes(np.stack(rows).astype(np.uint8).tobytes())
    (tmp_path / "my_photos").symlink_to(cifar_images)
    return tmp_path


@pytest.mark.slow
def test_every_command_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) >= 10
    for args in COMMANDS:
        shown = any("help" in arg or arg == "--print_config" for arg in args)
        if shown:
            with pytest.raises(SystemExit) as stop:
                main(args)
            assert stop.value.code == 0
        elif args[0] in OWN_MAIN:
            few = ["--seeds", "2", "--jobs", "2", *FAST] if args[0] == "seed_noise" else []
            assert import_module(OWN_MAIN[args[0]]).main([*args[1:], *few]) == 0
        elif args[0] == "fit":
            small = [] if "configs/fashion_mnist.yaml" in args else ["--model.width", "4"]
            if "configs/cifar.yaml" in args:
                small += ["--data.val_size", "100"]
            main([*args, *FAST, *small])
        else:
            main(args)
        assert capsys.readouterr().out or "presets/debug" in args
    assert (workplace / "runs/fashion_mnist/version_0/predictions.csv").is_file()


def test_python_blocks_run(workplace: Path) -> None:
    loop, command = [block for kind, block in BLOCKS if kind == "python"]
    assert "L.Trainer(max_epochs=3)" in loop
    off = "logger=False, enable_checkpointing=False, enable_progress_bar=False"
    exec(loop.replace("max_epochs=3", f"max_epochs=1, limit_train_batches=2, {off}"), {})
    assert '"--trainer.max_epochs", "3"' in command
    fast = ", ".join(f'"{word}"' for word in FAST)
    exec(command.replace('"--trainer.max_epochs", "3"', fast), {})


def test_make_calls_the_commands_that_the_readme_shows() -> None:
    for target in ("fit", "test"):
        assert target in [line.removeprefix("make ") for line in LINES]
        dry = ["make", "--dry-run", "--always-make", "-C", str(ROOT), target]
        shown = subprocess.run(dry, capture_output=True, text=True, check=True).stdout
        for line in ("fit --config configs/synthetic.yaml",) if target == "fit" else ("pytest",):
            assert f".venv/bin/python -m {'project ' * (target == 'fit')}{line}" in shown
        assert '.venv/bin/python -m pip install --quiet --editable ".[dev,notebooks]"' in shown
    command = ["make", "-n", "-C", str(ROOT), "fit", "CONFIG=configs/fashion_mnist.yaml"]
    shown = subprocess.run(
        [*command, "ARGS=--trainer.max_epochs 3"], capture_output=True, text=True
    )
    assert "fit --config configs/fashion_mnist.yaml --trainer.max_epochs 3" in shown.stdout


def test_names_in_the_readme_exist() -> None:
    for path in re.findall(r"`((?:project|configs|notebooks)/[\w/.]*)`", README):
        assert (ROOT / path).exists(), path
    presets = re.search(r"The presets are (.*?)\. ", OPTIONS, re.DOTALL)
    assert presets
    named = set(re.findall(r"`(\w+)`", presets[1]))
    assert named == {path.stem for path in (config_folder() / "presets").glob("*.yaml")}


def test_readme_is_short() -> None:
    assert 600 <= len(README.split()) <= 750


def test_readme_leads_to_every_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert set(re.findall(r"\(docs/(\w+\.md)", README)) == pages


def test_no_sentence_of_the_readme_is_in_a_page() -> None:
    def sentences(text: str) -> set[str]:
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        found = re.split(r"(?<=[.:]) |[|\n]{2,}|\| ", " ".join(prose.split(" ")))
        return {" ".join(part.split()) for part in found if len(part.split()) > 5}

    for page in (ROOT / "docs").glob("*.md"):
        if page.name != "new_project.md":  # whose first line is that of the README
            assert not sentences(README) & sentences(page.read_text()), page.name
