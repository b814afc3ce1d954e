"""The threads and GPUs that each of several trainings at a time gets."""

import os
import subprocess


def environment(slot: int, number: int, gpus: list[str], devices: int | None) -> dict[str, str]:
    """Return the variables that give a training its share.

    Args:
        slot: Which of the trainings at a time it is, from 0.
        number: Number of trainings at a time.
        gpus: Names of the visible GPUs.
        devices: Number of GPUs of a training, if it is known.
    """
    variables = {}
    if number > 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // number))
    if devices and (shares := len(gpus) // devices) > 1:
        first = slot % shares * devices
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + devices])
    return variables


def visible_gpus() -> list[str]:
    """Return the names of the GPUs as CUDA_VISIBLE_DEVICES takes them."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(i) for i in range(found.stdout.count("GPU "))]
