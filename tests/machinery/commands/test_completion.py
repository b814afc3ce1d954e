"""The script that completes the command line, in a real bash."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from project.__main__ import console

NAME = console.__module__.partition(".")[0]  # of the package and of its command
PATH = Path(__file__).parents[3] / "scripts" / "completion.py"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("completion", PATH)
    assert spec
    assert spec.loader
    completion = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(completion)
    path = tmp_path_factory.mktemp("completion") / "completion.bash"
    found = completion.options()
    path.write_text(completion.bash(found))
    path.with_suffix(".fish").write_text(completion.fish(found))
    return path


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("see", {"seed_noise"}),
        ("r", {"runs"}),
        ("fit --model.opt", {"--model.optimizer", "--model.optimizer.lr"}),
        ("fit --data.ro", {"--data.root"}),
        ("fit --early_stopping.pat", {"--early_stopping.patience"}),
        ("fit --model Res", {"ResNet18"}),
        ("fit --model.optimizer AdamW", {"AdamW"}),
        ("fit --config presets/d", {"presets/debug", "presets/deterministic"}),
        ("fit --model.norm l", {"layer"}),
        ("fit --trainer.precision bf16-m", {"bf16-mixed"}),
        ("runs --so", {"--sort"}),
    ],
)
def test_bash_offers(script: Path, line: str, expected: set[str]) -> None:
    line = f"{NAME} {line}"
    words = line.split()
    code = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _{NAME}; "
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    offered = set(done.stdout.split())
    assert expected <= offered
    assert all(word.startswith(words[-1]) for word in offered)
    assert not done.stderr


def test_it_is_short_and_has_no_option_that_is_refused(script: Path) -> None:
    assert len(script.read_text()) < 20_000  # read at each start of a shell
    assert "--model.num_classes " not in script.read_text()
    fish = script.with_suffix(".fish").read_text()
    assert re.search(rf"complete -c {NAME} -l model -xa '.*FastNet", fish)
