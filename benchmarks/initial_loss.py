"""Count the healthy models that InitLossCheck refuses, over seeds, class shares and widths.

python -m benchmarks.initial_loss --seeds 200
"""

import argparse
from collections.abc import Callable, Iterator

import lightning as L
import numpy as np
import torch
from torch import Tensor

from project.callbacks import InitLossCheck
from project.models import MLP, ResNet18, Task
from project.preflight.check import Verdict
from project.preflight.copies import unseen

SHARES: dict[str, list[float]] = {
    "50:50": [0.5, 0.5],
    "70:30": [0.7, 0.3],
    "90:10": [0.9, 0.1],
    "60:30:10": [0.6, 0.3, 0.1],
    "halves, of 10": [0.5**i for i in range(1, 11)],
}
NETWORKS: dict[str, Callable[[int], Task]] = {
    "ResNet18, width 16": lambda classes: ResNet18(16, num_classes=classes),
    "ResNet18, width 8": lambda classes: ResNet18(8, num_classes=classes),
    "MLP 256-128": lambda classes: MLP(in_channels=3, image_size=16, num_classes=classes),
    "MLP 16": lambda classes: MLP([16], in_channels=3, image_size=16, num_classes=classes),
}


def batch_of(shares: list[float], seed: int, size: int) -> tuple[Tensor, Tensor]:
    """Return noisy images, one colour per class, normalised float32 (N, 3, 16, 16), and labels."""
    random = np.random.default_rng(seed)
    share = np.array(shares) / sum(shares)
    labels = random.choice(len(share), size, p=share)
    colors = random.uniform(60, 196, (len(share), 3, 1, 1))
    images = torch.tensor(colors[labels] + random.uniform(-60, 60, (size, 3, 16, 16)))
    mean, std = (getattr(images, name)((0, 2, 3), keepdim=True) for name in ("mean", "std"))
    return ((images - mean) / std).float(), torch.tensor(labels)


def verdicts(network: str, shares: list[float], seeds: int, size: int = 128) -> Iterator[Verdict]:
    """Yield the verdict on each of many untrained models, each with its own images."""
    with unseen():
        trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    for seed in range(seeds):
        torch.manual_seed(seed)
        model = NETWORKS[network](len(shares))
        yield InitLossCheck().look(trainer, model, batch_of(shares, seed, size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="models of each kind")
    parser.add_argument("--examples", type=int, default=128, help="images in the batch")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("network             shares         refused  loss, lowest to highest  bounds nearest")
    for network in NETWORKS:
        for name, shares in SHARES.items():
            found = list(verdicts(network, shares, options.seeds, options.examples))
            refused = sum(not verdict.passed for verdict in found)
            lowest, highest = (choose(v.measured["loss"] for v in found) for choose in (min, max))
            low = max(v.measured["low"] for v in found)
            high = min(v.measured["high"] for v in found)
            print(
                f"{network:18}  {name:13}  {refused:3} of {len(found)}  "
                f"{lowest:5.2f} to {highest:4.2f}            {low:5.2f} and {high:4.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
