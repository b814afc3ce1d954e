"""Processes that read the examples of a dataset and are monitored while they do.

Each process sends its batches through a socket of its own. Shared memory is not used, since a
container may have only 64 MB of it. A process that dies closes its socket; one that hangs or was
stopped sends nothing. In both cases the run ends with an error instead of waiting forever.
"""

import atexit
import multiprocessing
import pickle
import random
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .values import stack

# A process sends a sign of life after an image, at most once a second. The time limit is therefore
# for a single image, and a large batch on a slow disk is not mistaken for a stuck process. The
# limit is below a minute and many times what the slowest image takes. The parent waits in slices,
# so that suspending the machine, or Ctrl-Z and `fg`, uses up at most one of them.
SLICE_S, SLICES = 5.0, 9
SIGN_EVERY_S = 1.0
HEADER = struct.Struct("<q")  # length of the pickle that follows; 0 for a sign of life
ENDS = ("SIGINT", "SIGTERM", "SIGUSR1")  # the parent saves at these; until then it needs batches

_workers: set["Worker"] = set()


class WorkerError(OSError):
    """A process that reads images has died or is stuck."""


class Worker:
    """A process that reads some of the batches of a dataset, in their order.

    Args:
        dataset: Map-style dataset of tensors of one shape, of dicts or of lists of them.
        batches: Indices of the examples of each batch.
        seed: Seed of the process's random numbers, for datasets that use any.
    """

    def __init__(self, dataset: Dataset[Any], batches: list[list[int]], seed: int) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(SLICE_S)
        arguments = (dataset, batches, seed, theirs)
        # The process is daemonic, so that a parent that fails does not wait for it.
        self._process = multiprocessing.Process(target=_work, args=arguments, daemon=True)
        _workers.add(self)
        with theirs:  # then only the process holds its end, so that its death closes the socket
            self._process.start()

    def receive(self) -> Any:
        """Return the next batch.

        Raises:
            WorkerError: If the process is dead, or has given no sign of life for 45 s.
            Exception: If the dataset raised it in the process.
        """
        while (size := HEADER.unpack(self._read(HEADER.size))[0]) == 0:
            pass
        content = pickle.loads(self._read(size))
        if isinstance(content, BaseException):
            raise content
        return _each(torch.from_numpy, content)

    def _read(self, size: int) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        silent = 0
        while rest:
            try:
                count = self._socket.recv_into(rest)
            except TimeoutError:
                silent += 1
                if silent == SLICES:
                    raise WorkerError(self._stuck()) from None
                continue
            except ConnectionError:
                count = 0
            if count == 0:
                raise WorkerError(self._dead()) from None
            rest, silent = rest[count:], 0
        return content

    def _stuck(self) -> str:
        return (
            f"the process that reads images ({self._process.pid}) has read none for "
            f"{SLICE_S * SLICES:.0f} s: it was stopped, or the disk of the images does not answer. "
            "--data.num_workers 0 reads them without further processes"
        )

    def _dead(self) -> str:
        self._process.join(SLICE_S)
        code = self._process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        if code == -signal.SIGKILL:
            how += ", as the system does when memory runs out"
        return (
            f"a process that reads images {how}: set --data.num_workers to fewer of them, or to 0, "
            "which reads without further processes"
        )

    def end(self) -> None:
        """Kill the process, even if it is stopped; it has no state that would be lost."""
        _workers.discard(self)
        self._socket.close()
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()


def read_batches(
    dataset: Dataset[Any], batches: Sequence[list[int]], num_workers: int, seed: int
) -> Iterator[Any]:
    """Yield the batches of a dataset in their order, (B, …), read by several processes in turn.

    Args:
        dataset: Map-style dataset of tensors of one shape, of dicts or of lists of them.
        batches: Indices of the examples of each batch.
        num_workers: Number of processes.
        seed: Seed of the processes' random numbers, for datasets that use any.
    """
    workers: list[Worker] = []
    number = min(num_workers, len(batches))
    try:
        try:
            for k in range(number):
                workers.append(Worker(dataset, list(batches[k::number]), (seed + k) % 2**63))
        except OSError as error:
            raise WorkerError(
                f"can't start {number} processes that read images ({error}): use fewer of them "
                "with --data.num_workers, or 0"
            ) from error
        for k in range(len(batches)):
            yield workers[k % number].receive()
    finally:
        for worker in workers:
            worker.end()


def lost_reader(error: BaseException) -> str:
    """Return a sentence about a process that torch's DataLoader has lost, or an empty string."""
    said = " ".join(str(error).split())
    if not re.match(r"DataLoader (worker .* (exited|is killed)|timed out)", said):
        return ""
    return (
        f"a process of a DataLoader was lost ({said.partition('. ')[0]}): if a container gives "
        "/dev/shm little room, start it with a larger --shm-size; else use fewer workers, or none"
    )


# Runs before multiprocessing's own exit handler, which waits forever for a stopped process.
@atexit.register
def _end_all() -> None:
    for worker in list(_workers):
        worker.end()


def _work(dataset: Dataset[Any], batches: list[list[int]], seed: int, out: socket.socket) -> None:
    """Read batches and send them. This is what the process runs."""
    for other in _workers:  # a forked process has copies of the parent's ends of the sockets
        other._socket.close()
    for name in ENDS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        for batch in batches:
            _send(out, _read_batch(dataset, batch, out))
    except Exception as error:
        _send(out, _sendable(error))


def _read_batch(dataset: Dataset[Any], batch: list[int], out: socket.socket) -> Any:
    examples, sign = [], time.monotonic()
    for index in batch:
        examples.append(dataset[index])
        if time.monotonic() - sign >= SIGN_EVERY_S:
            _write(out, HEADER.pack(0))
            sign = time.monotonic()
    return _each(Tensor.numpy, stack(examples))


def _each(function: Callable[[Any], Any], values: Any) -> Any:
    """Apply a function to a tensor or an array, or to each one in a dict or a list of them."""
    if isinstance(values, dict):
        return {name: function(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_each(function, value) for value in values]
    return function(values)


def _sendable(error: Exception) -> Any:
    """Return the error with this process's traceback, or only its text if it can't be pickled."""
    wrapped = ExceptionWithTraceback(error, error.__traceback__)
    try:
        pickle.loads(pickle.dumps(wrapped))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return wrapped


def _send(out: socket.socket, content: Any) -> None:
    pickled = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    _write(out, HEADER.pack(len(pickled)))
    _write(out, pickled)


def _write(out: socket.socket, content: bytes) -> None:
    try:
        out.sendall(content)
    except ConnectionError:  # the parent needs no more batches, or is dead
        raise SystemExit from None
