"""One process against two: images per second, efficiency and time in all-reduce, and a cost model.

The variants take turns in the same processes, one thread each, so that other load on the machine
affects all of them. A result is the median over rounds of the ratio within a round.

python -m benchmarks.scaling --rounds 20
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import RESULTS, save
from project.models import MLP, ResNet18

ROOT = Path(__file__).parents[1]
WORLD = 2
PORT = "29655"
TOLERANCE = 0.15  # error of the prediction, as a share of the speed-up


@dataclass(frozen=True)
class Case:
    """A network, its batch over all processes, and enough steps for some tenths of a second."""

    name: str
    model: Callable[[], nn.Module]
    image: tuple[int, int, int]
    batch_size: int
    steps: int


CASES = (
    Case("MLP", lambda: MLP(), (1, 28, 28), 128, 60),
    Case("ResNet18, width 16", lambda: ResNet18(width=16), (3, 32, 32), 32, 2),
)
# Links between devices: bytes per second that an all-reduce gets through one of them.
LINKS = {"NVLink": 200e9, "PCIe 4.0 x16": 20e9, "100 Gbit/s": 10e9, "10 Gbit/s": 1e9}


def all_reduce_s(num_bytes: float, devices: int, bytes_per_s: float, latency_s: float) -> float:
    """Return the time of a ring all-reduce: each device sends and gets 2 (n - 1) parts of 1 / n."""
    return 2 * (devices - 1) * (num_bytes / devices / bytes_per_s + latency_s)


def speed_up(compute_s: float, part_s: float, reduce_s: float, overlap: float = 0.0) -> float:
    """Return how many times faster a step gets.

    Args:
        compute_s: Seconds for the whole batch on one device.
        part_s: Seconds for one device's part of the batch.
        reduce_s: Seconds of the all-reduce.
        overlap: Share of the all-reduce that is hidden behind the backward pass.
    """
    return compute_s / (part_s + (1 - overlap) * reduce_s)


def smallest_batch(
    images_per_s: float, reduce_s: float, efficiency: float = 0.9, overlap: float = 0.0
) -> float:
    """Return the images per device at which the devices compute for this share of the time."""
    return images_per_s * (1 - overlap) * reduce_s * efficiency / (1 - efficiency)


def table() -> str:
    """Return the docs' table: the smallest batch per device for 90 %, if nothing is hidden."""
    rows = [
        ("ResNet18, 20,000 images/s", 11_173_962, 20_000),
        ("MLP, 2,000,000 images/s", 235_914, 2_000_000),
        ("100 million parameters, 1,000 images/s", 100_000_000, 1_000),
    ]
    head = ["on a device alone", "devices", *LINKS]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for name, parameters, images_per_s in rows:
        for devices in (2, 8):
            sizes = (
                smallest_batch(images_per_s, all_reduce_s(4 * parameters, devices, link, 10e-6))
                for link in LINKS.values()
            )
            cells = [name, str(devices), *(f"{size:,.0f}" for size in sizes)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


class Trainee:
    """One process's copy of a network, its optimiser and its examples."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case, self.alone = case, case.model()
        self.together = DistributedDataParallel(case.model())
        self.images = torch.randn(case.batch_size, *case.image)
        self.labels = torch.arange(case.batch_size) % 10

    def train(self, model: nn.Module, batch_size: int, steps: int) -> float:
        """Return the seconds of a step."""
        optimizer = SGD(model.parameters(), lr=1e-3)
        begin = time.perf_counter()
        for _ in range(steps):
            logits: Tensor = model(self.images[:batch_size])
            F.cross_entropy(logits, self.labels[:batch_size]).backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - begin) / steps

    def reduce(self, steps: int) -> float:
        """Return the seconds of an all-reduce of all gradients, with nothing else running."""
        flat = torch.zeros(sum(p.numel() for p in self.alone.parameters()))
        distributed.all_reduce(flat)
        begin = time.perf_counter()
        for _ in range(steps):
            distributed.all_reduce(flat)
        return (time.perf_counter() - begin) / steps

    def profiled_s(self) -> float:
        """Return the profiler's seconds of all-reduce per step, waiting for the other included."""
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            self.train(self.together, self.case.batch_size // WORLD, 4)
        events = [e for e in profiler.key_averages() if "gloo:all_reduce" in e.key]
        return sum(e.cpu_time_total for e in events) / 4 / 1e6


def work(rank: int, rounds: int, port: str, results: "SimpleQueue[Any]") -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=WORLD)
    for case in CASES:
        trainee, whole, part = Trainee(case), case.batch_size, case.batch_size // WORLD
        rows = []
        for k in range(rounds + 1):
            row = {}
            for name, size in (("whole", whole), ("part", part)):
                distributed.barrier()
                if rank == 0:
                    row[name] = trainee.train(trainee.alone, size, case.steps)
                distributed.barrier()
            row["reduce"] = trainee.reduce(case.steps)
            row["fixed global batch"] = trainee.train(trainee.together, part, case.steps)
            row["fixed batch per device"] = trainee.train(trainee.together, whole, case.steps)
            if k:  # the first round is a warm-up
                rows.append(row)
        profiled_s = trainee.profiled_s()
        if rank == 0:
            results.put((case.name, rows, profiled_s))
    distributed.barrier()
    distributed.destroy_process_group()


def measure(rounds: int, port: str = PORT) -> list[dict[str, Any]]:
    """Return each case's speed-up and prediction, at a fixed global batch and per device."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = multiprocessing.spawn(work, (rounds, port, results), WORLD, join=False)
    found = [results.get() for _ in CASES]
    processes.join()
    rows = []
    for case, (name, times, profiled_s) in zip(CASES, found, strict=True):
        for kind, part, factor in (
            ("fixed global batch", "part", 1),
            ("fixed batch per device", "whole", WORLD),
        ):
            # The speed-up is in images per second: a step has `factor` times the images.
            measured = median(factor * t["whole"] / t[kind] for t in times)
            predicted = median(factor * speed_up(t["whole"], t[part], t["reduce"]) for t in times)
            rows.append(
                {
                    "name": f"{name}, {kind}",
                    "ratio": measured,
                    "target": predicted,
                    "met": abs(measured / predicted - 1) <= TOLERANCE,
                    "efficiency": measured / WORLD,
                    "images_per_s": median(factor * case.batch_size / t[kind] for t in times),
                    "images_per_s_alone": median(case.batch_size / t["whole"] for t in times),
                    "all_reduce_ms": 1e3 * median(t["reduce"] for t in times),
                    "all_reduce_profiled_ms": 1e3 * profiled_s,
                    "step_ms": 1e3 * median(t[kind] for t in times),
                    "rounds": len(times),
                }
            )
    return rows


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Draw the measured and predicted speed-ups beside the ideal."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    places = range(len(rows))
    axes.axhline(WORLD, color="grey", linestyle="--", label="ideal")
    axes.bar([p - 0.2 for p in places], [r["ratio"] for r in rows], 0.4, label="measured")
    axes.bar([p + 0.2 for p in places], [r["target"] for r in rows], 0.4, label="predicted")
    axes.set_xticks(list(places), [r["name"].replace(", fixed", "\nfixed") for r in rows])
    axes.tick_params(axis="x", labelsize="small")
    axes.set_ylabel(f"images/s on {WORLD} processes, over 1")
    axes.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    rows = measure(rounds)
    print(f"{'':42} speed-up  predicted  images/s  all-reduce: alone  in a step")
    for row in rows:
        print(
            f"{row['name']:42} {row['ratio']:8.2f} {row['target']:10.2f} "
            f"{row['images_per_s']:9,.0f} {row['all_reduce_ms']:15.2f} ms "
            f"{row['all_reduce_profiled_ms']:8.2f} ms"
        )
    save(f"python -m benchmarks.scaling --rounds {rounds}", rows, RESULTS / "scaling.json")
    draw(rows).savefig(ROOT / "docs/scaling.png", dpi=120)


if __name__ == "__main__":
    main()
