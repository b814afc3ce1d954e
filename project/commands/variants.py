"""The configs that a command line of `seed_noise` asks for, checked before anything is trained."""

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runs.errors import UsageError
from ..runs.names import PACKAGE
from ..runs.plain import load_yaml
from ..runs.settings import config_sha256

CHOSEN = ("--seed_everything", "--run", "--ckpt_path", "--print_config")


@dataclass
class Variant:
    """One config of a sweep.

    Args:
        folder: Folder of the config's runs.
        args: Arguments of `fit`.
        sha256: Hash of the config.
        devices: Number of devices of a run; None if it is not given as a number.
    """

    folder: Path
    args: list[str]
    sha256: str
    devices: int | None


def parse_sweep(text: str) -> list[tuple[str, str]]:
    """Return the option with each of its values, for a text like `model.optimizer.lr=1e-3,2e-3`.

    Commas within brackets are part of a value.
    """
    key, _, listed = text.removeprefix("--").partition("=")
    values = re.split(r",(?![^\[{]*[\]}])", listed)
    if not key or len(values) < 2 or not all(values):
        raise UsageError(f"--sweep takes an option and two values or more (key=1,2), got {text!r}")
    return [(key, value) for value in values]


def variant_names(sweeps: Sequence[str]) -> dict[str, list[str]]:
    """Return the arguments of `fit` for each combination of the swept values, by folder name."""
    names: dict[str, list[str]] = {}
    for pairs in itertools.product(*map(parse_sweep, sweeps)):
        parts = [f"{key.rsplit('.', 1)[-1]}={value}" for key, value in pairs]
        name = re.sub(r"[^\w.,=+-]+", "_", "-".join(parts))
        if name in names:
            raise UsageError(f"two variants of the sweep would have the folder {name}")
        names[name] = [f"--{key}={value}" for key, value in pairs]
    return names


def configure(args: list[str]) -> dict[str, Any]:
    """Return the configuration that `fit` would train with.

    Raises:
        UsageError: If it can't be carried out; the message is that of `fit`.
    """
    command = [sys.executable, "-m", PACKAGE, "fit", *args, "--print_config"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"fit ended with {done.returncode}"]
        errors = [line for line in lines if line.startswith("error: ")]
        raise UsageError((errors or lines)[-1].removeprefix("error: "))
    config: dict[str, Any] = load_yaml(done.stdout)
    config.pop("run", None)
    return config


def variants(name: str, sweeps: Sequence[str], args: list[str]) -> list[Variant]:
    """Return the configs to train, checked before anything is trained."""
    given = {arg.split("=")[0] for arg in args}
    if wrong := given & set(CHOSEN):
        raise UsageError(f"seed_noise starts runs by itself: leave out {min(wrong)}")
    named = {f"{name}-{k}": v for k, v in variant_names(sweeps).items()} if sweeps else {name: []}
    options = [[*args, *changed] for changed in named.values()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        configs = list(pool.map(configure, options))
    return [
        Variant(
            Path(config["trainer"]["default_root_dir"], folder),
            changed,
            config_sha256(config),
            devices if isinstance(devices := config["trainer"]["devices"], int) else None,
        )
        for folder, config, changed in zip(named, configs, options, strict=True)
    ]
