"""`export`: files that say what the checkpoint says, without this package and the data."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor

from project.commands import export
from project.commands.cli import main
from project.models import MLP, FastNet, ResNet18, Task

DOCS = Path(__file__).parents[3] / "docs" / "export.md"
TINY = ["--data.train_size=40", "--data.val_size=20", "--data.image_size=16"]
TINY += ["--data.batch_size=20", "--trainer.max_epochs=1", "--preflight=false"]
TINY += ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
TINY += ["--trainer.enable_model_summary=false"]
MODELS: dict[str, list[str]] = {
    "MLP": ["--model=MLP"],
    "ResNet18": ["--model=ResNet18", "--model.width=16"],  # channels last
    "FastNet": ["--model=FastNet", "--model.width=16", "--model.mirror=true"],
}
CLASSES = {"MLP": MLP, "ResNet18": ResNet18, "FastNet": FastNet}


class Branching(Task):
    """A network that looks at its numbers before it decides what to do."""

    def __init__(self, num_classes: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.weight = torch.nn.Parameter(torch.ones(num_classes))

    def forward(self, images: Tensor) -> Tensor:
        mean = images.mean((1, 2, 3))[:, None]
        return mean * self.weight if mean.sum() > 0 else -mean * self.weight


def fit(folder: Path, *options: str) -> Path:
    main(["fit", "--config=synthetic", *TINY, *options, f"--trainer.default_root_dir={folder}"])
    return folder / "synthetic" / "version_0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run folder of a network, shared by the tests that leave it as it is."""
    root = tmp_path_factory.mktemp("runs")

    def run(name: str) -> Path:
        folder = root / name / "synthetic" / "version_0"
        return folder if folder.is_dir() else fit(root / name, *MODELS[name])

    return run


def exported(run: Path, form: str) -> Path:
    """The file that `export` writes by default, made once."""
    path = run / export.FILES[form]
    if not path.is_file():
        assert export.main([f"--run={run}", f"--format={form}"]) == 0
    return path


def run_onnx(path: Path, images: Tensor) -> tuple[Tensor, dict[str, str]]:
    session = onnxruntime.InferenceSession(path)
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    return torch.from_numpy(logits), session.get_modelmeta().custom_metadata_map


def run_torch(path: Path, images: Tensor) -> tuple[Tensor, dict[str, str]]:
    extra = {"metadata.json": ""}
    logits = torch.export.load(path, extra_files=extra).module()(images)
    return logits, {k: json.dumps(v) for k, v in json.loads(extra["metadata.json"]).items()}


@pytest.mark.parametrize(
    ("name", "form", "read"),
    [
        *(("MLP", "onnx", run_onnx), ("ResNet18", "onnx", run_onnx), ("FastNet", "onnx", run_onnx)),
        *(("MLP", "torch", run_torch), ("FastNet", "torch", run_torch)),
    ],
)
def test_file_gives_the_logits_of_the_checkpoint(
    runs: Callable[[str], Path],
    name: str,
    form: str,
    read: Callable[[Path, Tensor], tuple[Tensor, dict[str, str]]],
) -> None:
    path = exported(runs(name), form)
    checkpoint = runs(name) / "checkpoints" / "best.ckpt"
    saved = torch.load(checkpoint, weights_only=True)["SyntheticDataModule"]["preprocessing"]
    mean, std = (torch.tensor(saved[key]).view(-1, 1, 1) for key in ("mean", "std"))
    model = CLASSES[name].load_from_checkpoint(checkpoint).eval()
    for size in (1, 7):
        images = torch.randint(256, (size, 3, 16, 16), dtype=torch.uint8)
        logits, metadata = read(path, images)
        with torch.no_grad():
            expected = model((images / 255 - mean) / std)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    facts = {key: json.loads(value) for key, value in metadata.items()}
    assert {key: facts[key] for key in saved} == saved
    assert (facts["image_size"], facts["class_names"][0]) == (16, "wide 0°")
    assert "uint8 (N, C, H, W)" in facts["input"]
    assert "logits, float32" in facts["output"]


def test_command_says_how_far_the_file_differs_and_what_the_run_was_trained_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fit(tmp_path, *MODELS["MLP"], "--trainer.precision=bf16-mixed")
    Path("here").mkdir()
    assert export.main([f"--run={run}", "--format=torch", "--output=here/x.pt2"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("here/x.pt2, in float32; the run was trained in bf16-mixed: its logits")
    assert re.search(r"differ by \d\.\de-\d\d from the checkpoint's, \d\.\de-\d\d is allowed", said)
    assert [path.name for path in Path("here").iterdir()] == ["x.pt2"]
    assert not list(run.glob("model*"))


def test_file_that_differs_is_refused_and_the_one_before_it_kept(
    runs: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt2"
    path.write_text("before")
    original = export.to_bytes

    def damaged(network: torch.nn.Sequential, *args: Any) -> bytes:
        content = original(network, *args)
        with torch.no_grad():
            network[1].layers[-1].bias[3] += 0.1
        return content

    monkeypatch.setattr(export, "to_bytes", damaged)
    with pytest.raises(ValueError, match=r".*best.ckpt was not exported: .* by 1.0e-01 from"):
        export.main([f"--run={runs('MLP')}", "--format=torch", f"--output={path}"])
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt2"]


def test_network_that_cannot_be_exported_is_one_sentence(
    tmp_path: Path, exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    run = fit(tmp_path, "--model=tests.machinery.commands.test_export.Branching")
    capsys.readouterr()
    for form in ("torch", "onnx"):
        assert exit_code(["export", f"--run={run}", f"--format={form}"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "best.ckpt can't be exported: " in line
    assert not list(run.glob("model*"))


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--run={run}", "--format=tflite"], 2, "invalid choice: 'tflite' .*onnx.*torch"),
        (["--format=onnx"], 2, "the following arguments are required: --run"),
        (["--run=nowhere"], 1, "nowhere is not a run folder"),
        (["--run={run}", "--output=no/x.onnx"], 2, "--output no/x.onnx: its folder does not exist"),
        (["--run={run}", "--output=."], 2, r"--output \. is not a regular file but a folder"),
        (["--run={run}", "--bogus=1"], 2, "--bogus"),
    ],
)
def test_bad_input_is_one_sentence(
    runs: Callable[[str], Path],
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    code: int,
    message: str,
) -> None:
    run = runs("MLP")
    capsys.readouterr()
    assert exit_code(["export", *(arg.format(run=run) for arg in args)]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)


def test_run_without_a_best_checkpoint_or_of_other_data_is_one_sentence(tmp_path: Path) -> None:
    config = ["fit", "--config=linear_regression", "--trainer.max_epochs=1", *TINY[4:]]
    main([*config[:3], *TINY[5:], f"--trainer.default_root_dir={tmp_path}"])
    run = tmp_path / "linear_regression" / "version_0"
    with pytest.raises(ValueError, match="best.ckpt was not trained on images, or is older than"):
        export.main([f"--run={run}"])
    (run / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(ValueError, match="there is no checkpoint .*best.ckpt"):
        export.main([f"--run={run}"])


def test_missing_packages_are_named_with_the_command(
    runs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ValueError, match="pip install onnx onnxscript onnxruntime"):
        export.main([f"--run={runs('MLP')}"])


def test_example_of_the_docs_gives_the_classes_of_predict(
    runs: Callable[[str], Path], tmp_path: Path
) -> None:
    """It imports nothing of this package, and the images are of other sizes and modes."""
    run, photos = runs("FastNet"), tmp_path / "photos"
    photos.mkdir()
    rng = np.random.default_rng(0)
    for k, (height, width, mode) in enumerate([(16, 16, "RGB"), (40, 30, "L"), (9, 31, "RGB")] * 3):
        pixels = rng.integers(256, size=(height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(photos / f"{k}.png")
    main(["predict", f"--run={run}", f"--images={photos}"])
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert "project" not in code
    paths = sorted(map(str, photos.iterdir()))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, exported(run, "onnx"), *paths],
        capture_output=True,
        text=True,
        env={"PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    rows = (run / "images.csv").read_text(encoding="utf-8").splitlines()[1:]
    expected = [" ".join(row.split(",")[:2]) for row in rows]
    assert done.stdout.splitlines() == expected
    assert len({row.split(",")[1] for row in rows}) > 1
