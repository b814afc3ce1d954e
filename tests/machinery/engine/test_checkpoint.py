"""Checkpoint files: whole or absent, damage is found, nothing in them is ever run."""

import io
import multiprocessing
import os
import random
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from project.commands.cli import main
from project.engine.checkpoint_io import AtomicCheckpointIO, load_checkpoint
from project.engine.weights import check_fits, init_from
from project.models import MLP

ROOT = Path(__file__).parents[3]
COMMON = ["--data.train_size", "48", "--data.val_size", "16", "--data.test_size", "16"]
COMMON += ["--data.image_size", "8", "--data.batch_size", "16", "--trainer.accelerator", "cpu"]
COMMON += ["--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false"]
FIT = ["fit", "--config", "synthetic", "--model", "MLP", "--model.hidden_sizes", "[16, 8]", *COMMON]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run folder of three epochs, which tests copy or only read."""
    root = tmp_path_factory.mktemp("finished")
    main([*FIT, "--trainer.max_epochs", "3", "--trainer.default_root_dir", str(root)])
    return root / "synthetic" / "version_0"


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


# Whole or absent


def overwrite_forever(path: Path, started: Any) -> None:
    """Save 100 MB to the same path, again and again."""
    values = [torch.full((25_000_000,), float(k)) for k in range(2)]
    for k in range(1_000_000):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {"w": values[k % 2]}, "k": k}, path)
        started.set()


def test_kill_9_while_saving_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["project.engine.checkpoint_io"])
    caught, rng = 0, random.Random(0)
    for _ in range(5):
        started = context.Event()
        process = context.Process(target=overwrite_forever, args=(path, started))
        process.start()
        assert started.wait(120)
        time.sleep(0.4 * rng.random())
        process.kill()
        process.join()
        process.close()
        checkpoint = load_checkpoint(path)
        (value,) = checkpoint["state_dict"]["w"].unique().tolist()
        assert value == checkpoint["k"] % 2
        partial = [other for other in tmp_path.iterdir() if other != path]
        assert len(partial) <= 1
        caught += len(partial)
    assert caught, "no kill fell into a save"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_save_keeps_the_file_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}, "epoch": 1}, path)

    def fail(descriptor: int) -> None:
        assert load_checkpoint(path)["epoch"] == 1
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"can't save .*last.ckpt \(.*No space left.*\).* is kept"):
        AtomicCheckpointIO().save_checkpoint({"state_dict": {}, "epoch": 2}, path)
    assert load_checkpoint(path)["epoch"] == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 4 MB and yield its folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk(small_disk: Path) -> None:
    path = small_disk / "last.ckpt"
    tensor = torch.ones(3 * 2**18)  # 3 MB
    AtomicCheckpointIO().save_checkpoint({"state_dict": {"w": tensor}}, path)
    with pytest.raises(OSError, match=r"can't save .* is kept") as caught:
        AtomicCheckpointIO().save_checkpoint({"state_dict": {"w": 2 * tensor}}, path)
    assert "\n" not in str(caught.value)
    assert torch.equal(load_checkpoint(path)["state_dict"]["w"], tensor)
    assert list(small_disk.iterdir()) == [path]


def test_full_disk_in_a_run_is_one_sentence(small_disk: Path) -> None:
    command = [sys.executable, "-m", "project", *FIT, "--trainer.default_root_dir", str(small_disk)]
    command += ["--model.lr_scheduler", "StepLR", "--model.lr_scheduler.step_size", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--trainer.max_epochs", "2"], check=True, env=environment)
    run = small_disk / "synthetic" / "version_0"
    free = shutil.disk_usage(small_disk).free
    (small_disk / "ballast").write_bytes(bytes(free - 40_000))  # a checkpoint takes 70,000
    again = [*command[:3], "fit", "--run", str(run), "--trainer.max_epochs", "4"]
    full = subprocess.run(again, capture_output=True, text=True, env=environment)
    assert full.returncode == 1
    errors = [line for line in full.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "can't save" in errors[0]
    assert "No space left on device" in errors[0]
    assert "Traceback" not in full.stderr
    for name in ("best", "last"):
        assert load_checkpoint(run / f"checkpoints/{name}.ckpt")["epoch"] <= 1
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}


# Damage is found


@pytest.fixture
def damaged(finished: Path) -> Path:
    """Return the last checkpoint of a copied run, which a test may damage."""
    shutil.copytree(finished, "run")
    return Path("run/checkpoints/last.ckpt")


def test_truncated(damaged: Path) -> None:
    whole = damaged.read_bytes()
    size = len(whole)
    for length in (0, 1, 4, 100, size // 2, size - 1000, size - 22, size - 1):
        damaged.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"last.ckpt is damaged .*best.ckpt") as caught:
            load_checkpoint(damaged)
        assert str(caught.value).endswith(f"--ckpt_path {damaged.with_name('best.ckpt')}")
        assert "\n" not in str(caught.value)


def test_the_newest_whole_one_is_offered_and_works(
    damaged: Path, exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = load_checkpoint(damaged)["state_dict"]
    older = damaged.with_name("older.ckpt")
    shutil.copy(damaged.with_name("best.ckpt"), older)
    os.utime(older, (1, 1))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert exit_code(["fit", "--run", "run"]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    offered = error[error.index("--config") :]
    assert offered == "--config run/config.yaml --ckpt_path run/checkpoints/best.ckpt"
    cli = main(["fit", *offered.split(), "--trainer.default_root_dir", "runs"])
    assert cli.trainer.current_epoch == 3
    continued = load_checkpoint(Path("runs/synthetic/version_0/checkpoints/last.ckpt"))
    assert equal(continued["state_dict"], whole)
    damaged.write_bytes(b"")
    damaged.with_name("best.ckpt").write_bytes(b"")
    older.unlink()
    config = re.escape(str(damaged.parent.parent / "config.yaml"))
    anew = rf"no whole one is left, start the run anew: fit --config {config}$"
    with pytest.raises(ValueError, match=rf"no checkpoint \([^;]*\); {anew}"):
        load_checkpoint(damaged)


def regions(path: Path) -> dict[str, range]:
    """Return where the bytes of each record lie; the others are directory or padding."""
    places: dict[str, range] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
            start = info.header_offset + 30 + name + extra
            places[info.filename.partition("/")[2]] = range(start, start + info.file_size)
    return places


def test_a_flipped_bit_in_a_record_is_found_before_loading(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, rng = damaged.read_bytes(), random.Random(0)
    places = regions(damaged)
    assert sum(name.startswith("data/") for name in places) > 20
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("damage was loaded"))
    monkeypatch.setattr("project.engine.checkpoint_io._newest_whole", lambda _: "")
    for name, place in places.items():
        for position in rng.sample(place, min(len(place), 40 if name == "data.pkl" else 3)):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << rng.randrange(8)
            damaged.write_bytes(flipped)
            with pytest.raises(ValueError, match="last.ckpt is damaged or no checkpoint"):
                load_checkpoint(damaged)


def test_a_flipped_bit_anywhere_is_found_or_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit is flipped in every byte of a small file, including the directory and the padding.

    One of the bits turns a record into a folder: torch would then return uninitialised memory.
    """
    path, rng = tmp_path / "small.ckpt", random.Random(0)
    state = {"weight": torch.arange(12.0).view(3, 4), "mean": torch.arange(3)}
    saved = {"epoch": 3, "state_dict": state, "metrics": {"val/loss": 0.5}}
    AtomicCheckpointIO().save_checkpoint(saved, path)
    monkeypatch.setattr("project.engine.checkpoint_io._newest_whole", lambda _: "")
    whole = path.read_bytes()
    inside = {position for place in regions(path).values() for position in place}
    harmless = 0
    flips = [(position, rng.randrange(8)) for position in range(len(whole))]
    flips += [(entry.start() + 38, 4) for entry in re.finditer(b"PK\x01\x02", whole)]
    for position, bit in flips:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << bit
        path.write_bytes(flipped)
        found = ""
        try:
            loaded = load_checkpoint(path)
        except ValueError as error:
            found = str(error)
        if found:
            assert found.startswith(f"{path} is damaged or no checkpoint")
        else:
            assert position not in inside
            assert equal(loaded, saved)
            harmless += 1
    assert 0 < harmless < len(whole) / 2


# Nothing is run


class Payload:
    """Pickled, it creates a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


def payload(zipped: bool) -> bytes:
    """Write a file whose loading would run code, in one of the two formats that torch reads."""
    buffer = io.BytesIO()
    checkpoint = {"state_dict": {"w": torch.ones(2)}, "epoch": 0, "config": Payload()}
    torch.save(checkpoint, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("command", ["fit", "test", "init_from"])
def test_a_payload_is_refused_and_not_run(
    zipped: bool,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    exit_code: Callable[[list[str]], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("bad.ckpt").write_bytes(payload(zipped))
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    args = [*FIT, "--init_from"] if command == "init_from" else [command, *FIT[1:], "--ckpt_path"]
    assert exit_code([*args, "bad.ckpt"]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: bad.ckpt ")
    assert ("could run code" in error) == zipped
    assert not Path("pwned").exists()
    assert not Path("runs").exists()
    torch.load("bad.ckpt", weights_only=False)
    assert Path("pwned").exists(), "the payload is none"


def test_no_option_of_the_command_line_allows_code(
    exit_code: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad.ckpt").write_bytes(payload(zipped=True))
    args = ["--ckpt_path", "bad.ckpt", "--weights_only", "false"]
    for command in ("fit", "test"):
        assert exit_code([command, *FIT[1:], *args]) != 0
    assert not Path("pwned").exists()


@pytest.mark.parametrize(
    "name", ["synthetic", "fashion_mnist", "cifar", "cifar_fast", "image_folder"]
)
def test_checkpoints_of_every_config_hold_plain_types(
    name: str, request: pytest.FixtureRequest
) -> None:
    args = ["fit", "--config", name, *COMMON[-6:], "--trainer.max_epochs", "1"]
    args += ["--trainer.limit_train_batches", "2", "--trainer.limit_val_batches", "1"]
    args += ["--early_stopping.patience", "2"]
    if name == "fashion_mnist":
        args += ["--data.root", str(request.getfixturevalue("fashion_mnist_root"))]
    elif name == "image_folder":
        args += ["--data.root", str(request.getfixturevalue("cifar_images"))]
        args += ["--data.image_size", "16", "--model.width", "4"]
    else:
        args += ["--model.width", "4", "--data", "SyntheticDataModule", *COMMON[:10]]
        args += ["--data.augment", '{"crop": 2, "flip": true, "cutout": 4}']
    if name == "cifar_fast":
        args += ["--data.image_size", "9"]
    main(args)
    for which in ("best", "last"):
        assert_plain(load_checkpoint(Path(f"runs/{name}/version_0/checkpoints/{which}.ckpt")))


def assert_plain(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            assert type(key) in (str, int), key
            assert_plain(item)
    elif isinstance(value, list | tuple):
        for item in value:
            assert_plain(item)
    else:
        assert type(value) in (type(None), str, int, float, bool, Tensor), type(value)


# Weights only


def mlp(hidden_sizes: list[int], num_classes: int = 10) -> MLP:
    return MLP(hidden_sizes, image_size=4, num_classes=num_classes)


def saved(model: MLP) -> Path:
    AtomicCheckpointIO().save_checkpoint({"state_dict": model.state_dict()}, "source.ckpt")
    return Path("source.ckpt")


def test_init_from_takes_what_fits_and_names_the_rest() -> None:
    source, model = mlp([8, 6]), mlp([8, 6], num_classes=3)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sentence = init_from(saved(source), model)
    last = "layers.9"
    assert sentence.startswith(f"{len(fresh) - 2} tensors from source.ckpt")
    assert sentence.endswith(f"initialised anew: {last}.bias, {last}.weight")
    for name, tensor in model.state_dict().items():
        expected = fresh[name] if name.startswith(last) else source.state_dict()[name]
        assert torch.equal(tensor, expected), name
    assert "initialised anew" not in init_from(saved(source), mlp([8, 6]))


def test_init_from_and_resume_refuse_another_model() -> None:
    path = saved(mlp([8]))
    with pytest.raises(ValueError, match="has no tensor in common with Linear"):
        init_from(path, torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"another model than MLP: .* \(8,\) in .* \(9,\)"):
        check_fits(path, load_checkpoint(path), mlp([9]))


def test_init_from_starts_a_new_run(finished: Path) -> None:
    source = finished / "checkpoints" / "last.ckpt"
    still = ["--model.optimizer", "AdamW", "--model.optimizer.lr", "0", "--trainer.max_epochs", "1"]
    still += ["--preflight", "false"]  # which would refuse it
    cli = main([*FIT, *still, "--init_from", str(source)])
    assert cli.trainer.global_step == 3
    checkpoint = load_checkpoint(Path("runs/synthetic/version_0/checkpoints/last.ckpt"))
    before = load_checkpoint(source)
    assert before["global_step"] == 9
    for name, _ in cli.model.named_parameters():
        assert torch.equal(checkpoint["state_dict"][name], before["state_dict"][name])
    steps = {int(state["step"]) for state in checkpoint["optimizer_states"][0]["state"].values()}
    assert steps == {3}


def test_a_zip_without_anything_in_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "empty.ckpt"
    zipfile.ZipFile(path, "w").close()
    with pytest.raises(ValueError, match=r"empty.ckpt is damaged .*\(there is nothing in it\)"):
        load_checkpoint(path)


def test_a_compressed_checkpoint_is_not_inflated(tmp_path: Path) -> None:
    torch.save({"state_dict": {"weight": torch.zeros(1000)}}, tmp_path / "stored.ckpt")
    path = tmp_path / "packed.ckpt"
    with zipfile.ZipFile(tmp_path / "stored.ckpt") as old, zipfile.ZipFile(path, "w", 8) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ValueError, match=r"packed.ckpt is damaged .* is compressed"):
        load_checkpoint(path)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*TorchScript:FutureWarning")
def test_torchs_advice_to_run_the_file_is_not_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "script.ckpt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), path)
    with pytest.raises(ValueError, match="script.ckpt is damaged or no checkpoint") as error:
        load_checkpoint(path)
    assert "weights_only" not in str(error.value)


def test_what_is_beside_a_damaged_checkpoint_is_named_if_it_is_whole(tmp_path: Path) -> None:
    (tmp_path / "damaged.ckpt").write_bytes(b"PK")
    (tmp_path / "dangling.ckpt").symlink_to(tmp_path / "nowhere")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.ckpt")
    with pytest.raises(ValueError, match="damaged.ckpt is damaged") as error:
        load_checkpoint(tmp_path / "damaged.ckpt")
    assert "dangling" not in str(error.value)
    assert "pipe" not in str(error.value)
    torch.save({"state_dict": {}, "epoch": 3}, tmp_path / "whole.ckpt")
    with pytest.raises(ValueError, match="newest whole one is .*whole.ckpt, of epoch 4"):
        load_checkpoint(tmp_path / "damaged.ckpt")
