"""The pictures of the documentation come from `make pictures`."""

import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from project.commands import seed_noise as seeds
from project.commands import variants
from project.commands.cli import main

ROOT = Path(__file__).parents[2]
spec = spec_from_file_location("pictures", ROOT / "scripts" / "pictures.py")
assert spec
assert spec.loader
pictures = module_from_spec(spec)
spec.loader.exec_module(pictures)


class Checked(Exception):
    """Raised when everything is parsed and nothing is trained yet."""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Return the arguments of each `python -m project` in the script, for another folder."""
    called: list[list[str]] = []

    def run(command: list[str], check: bool, env: dict[str, str]) -> None:
        assert check
        assert command[:3] == [sys.executable, "-m", "project"]
        called.append(command[3:])
        root = Path(command[command.index("--trainer.default_root_dir") + 1])
        for drawn in pictures.DRAWN.values():
            (root / drawn).parent.mkdir(parents=True, exist_ok=True)
            (root / drawn).write_text(drawn)

    with monkeypatch.context() as patch:
        patch.setattr(pictures.subprocess, "run", run)
        patch.setattr(pictures, "PICTURES", tmp_path / "pictures")
        pictures.main(["--data.root", "there"])
    names = {path.stem: path.read_text() for path in (tmp_path / "pictures").iterdir()}
    assert names == pictures.DRAWN
    return called


def test_commands_are_valid_and_draw_what_is_taken(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fits: list[list[str]] = []
    folders: set[str] = set()

    def configure(args: list[str]) -> dict[str, Any]:
        fits.append(["fit", *args])
        return {"trainer": {"default_root_dir": "runs", "devices": 1}}

    def look(jobs: list[seeds.Job], *_: object) -> None:
        folders.update(job.variant.folder.name for job in jobs)
        raise Checked

    monkeypatch.setattr(variants, "configure", configure)
    monkeypatch.setattr(seeds, "run_jobs", look)
    for command in commands:
        if command[0] == "seed_noise":
            with pytest.raises(Checked):
                seeds.main(command[1:])
    for args in [*(command for command in commands if command[0] != "seed_noise"), *fits]:
        with pytest.raises(SystemExit) as stop:
            main([*args, "--print_config"])
        assert stop.value.code == 0
        assert "root: there" in capsys.readouterr().out
    assert folders == {drawn.split("/")[0] for drawn in pictures.DRAWN.values()}


def test_make_passes_options_on() -> None:
    dry = ["make", "-n", "-C", str(ROOT), "pictures", "ARGS=--data.root there"]
    shown = subprocess.run(dry, capture_output=True, text=True, check=True).stdout
    assert "python scripts/pictures.py --data.root there" in shown


def test_pictures_are_small_and_of_the_script() -> None:
    folder = ROOT / "docs" / "pictures"
    assert {path.stem for path in folder.iterdir()} == pictures.DRAWN.keys()
    assert all(path.stat().st_size < 150_000 for path in folder.iterdir())


def test_pictures_of_the_documentation_exist() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for path in re.findall(r"\]\(([\w/]+\.png)", page.read_text(encoding="utf-8")):
            assert (page.parent / path).is_file(), f"{page.name}: {path}"
