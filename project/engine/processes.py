"""The processes of a data-parallel run: how they meet, and what is said if one is lost."""

import atexit
import os
import re
import subprocess
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments import (  # type: ignore[attr-defined]
    TorchElasticEnvironment,
)
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import distributed
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from .internals import backend, bound_waiting, process_rank, started_processes

# By the messages of gloo, NCCL and torch's stores; few have an exception of their own.
SENTENCES = {
    "EADDRINUSE|[Aa]ddress already in use": "port {port} is taken: set MASTER_PORT to a free one",
    "clients joined|failed to connect|trying to connect|timed out connecting": (
        "process {rank} did not meet the others at {address}:{port}: are all started, and can each "
        "machine reach that port? MASTER_ADDR and MASTER_PORT choose it, and --max_wait_s how long "
        "to wait ({what})"
    ),
    r"Timed out waiting \d+ms|Timeout\(ms\)|timeout caused pair closure|Wait timeout": (
        "process {rank} waited in vain for another one, which hangs or takes longer than "
        "--max_wait_s ({what})"
    ),
    "closed by peer|reset by peer|Broken pipe|remote process exited|gloo/transport": (
        "process {rank} has lost another one of the run, whose own error is the cause"
    ),
}
GRACE_S = 5
LONGEST_WAIT_S = 2e6  # 23 days; torch counts milliseconds in 32 bits


def join(strategy: Any, max_wait_s: float) -> None:
    """Bound how long a process waits for the others, and meet them if torchrun has restarted.

    When torchrun restarts its processes, it keeps the store with the previous addresses. Some of
    the new processes connect to these and fail (pytorch#167288, torch 2.14.1), so each start has
    keys of its own here. The bound applies to meeting and to each collective operation.
    """
    if not isinstance(strategy, DDPStrategy):
        return
    limit = timedelta(seconds=min(max_wait_s, LONGEST_WAIT_S))
    bound_waiting(strategy, limit)
    environment, start = strategy.cluster_environment, os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if not isinstance(environment, TorchElasticEnvironment) or start in (None, "0"):
        return
    address = (environment.main_address, environment.main_port)
    store = TCPStore(*address, is_master=False, timeout=limit)
    device = strategy.root_device
    if strategy.accelerator is not None:
        strategy.accelerator.setup_device(device)
    distributed.init_process_group(
        backend(strategy),
        store=PrefixStore(f"start_{start}", store),
        rank=environment.global_rank(),
        world_size=environment.world_size(),
        timeout=limit,
        device_id=None if device.type == "cpu" else device,
    )


@atexit.register
def leave() -> None:
    """Let gloo's threads release the last tensors: doing so after Python has ended would abort."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
        time.sleep(0.1)  # they need Python's lock, and destroying does not wait for them


def end_children(trainer: L.Trainer) -> None:
    """End the processes that this one has started, after an error has stopped it."""
    procs = started_processes(trainer)
    # The processes of a notebook are of another kind.
    children = [child for child in procs if isinstance(child, subprocess.Popen)]
    if children:  # Lightning looks at them every 5 s, and kills this process once one has ended
        procs.clear()
    try:
        for child in children:
            child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        for child in children:
            child.kill()


def lost(error: BaseException) -> str:
    """Return a sentence for an error in meeting or awaiting other processes, or nothing."""
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    rank, what = process_rank(), str(error).partition("\n")[0]
    for said, sentence in SENTENCES.items():
        if re.search(said, str(error)):
            return sentence.format(address=address, port=port, rank=rank, what=what)
    return ""


def misplaced(error: BaseException) -> str:
    """Return a sentence for an environment in which Lightning can't start processes, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or Path(frames[-1].filename).parent.name != "environments":
        return ""
    if tasks := os.environ.get("SLURM_NTASKS"):
        return (
            f"SLURM_NTASKS is {tasks}, but SLURM_NTASKS_PER_NODE is not set: unset SLURM_NTASKS to "
            "train in this shell, or start the run with `srun --ntasks-per-node`"
        )
    return f"the environment variables of this shell don't fit together: {error}"


class SameStart(Callback):
    """Refuses a run whose processes would continue from different checkpoints."""

    def __init__(self, start: str) -> None:
        self.start = start  # the checkpoint of this process, in words

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        first = trainer.strategy.broadcast(self.start)
        same = first == self.start
        if not trainer.strategy.reduce_boolean_decision(same):
            other = "not each one" if same else f"process {trainer.global_rank} {self.start}"
            raise ValueError(
                f"process 0 starts {first}, {other}: put --trainer.default_root_dir where all "
                "machines see it, or name the run with --run"
            )
