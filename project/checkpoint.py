"""Checkpoints: read without running code, and refused in plain words."""

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint on the CPU. Nothing in the file is executed.

    Raises:
        ValueError: If the file is missing, damaged or no checkpoint.
    """
    if not path.is_file():
        raise ValueError(f"there is no checkpoint {path}")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, KeyError, pickle.UnpicklingError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{path} is damaged or no checkpoint ({reason})") from error
    if not isinstance(checkpoint, dict) or "state_dict" not in checkpoint:
        raise ValueError(f"{path} is no checkpoint of a run: it has no state_dict")
    return checkpoint


def check_fits(path: Path, checkpoint: dict[str, Any], model: nn.Module) -> None:
    """Compare names and shapes of the tensors.

    Raises:
        ValueError: If the checkpoint holds another model.
    """
    saved = {name: tuple(tensor.shape) for name, tensor in checkpoint["state_dict"].items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    differing = sorted(name for name in saved | wanted if saved.get(name) != wanted.get(name))
    if differing:
        name = differing[0]
        raise ValueError(
            f"{path} holds another model than {type(model).__name__}: {len(differing)} tensors "
            f"differ, such as {name}, {saved.get(name, 'absent')} in the file and "
            f"{wanted.get(name, 'absent')} in the model. Use the config of its run: --run FOLDER"
        )
