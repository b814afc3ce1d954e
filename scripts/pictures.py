"""Draws the pictures of the README anew, with its own commands: python scripts/pictures.py

Its arguments are options of `fit`, for each command: --data.root says where FashionMNIST is. The
runs are in a folder that is removed; they take a minute on two CPU cores.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COMMANDS = (
    "fit --config fashion_mnist",
    "seed_noise --config fashion_mnist --seeds 5 --jobs 2",  # takes the run of seed 0 as it is
    "lr_find --config fashion_mnist",
)
DRAWN = {
    "curves": "fashion_mnist/version_0/curves.png",
    "lr_range": "fashion_mnist/lr_find.png",
    "predictions": "fashion_mnist/version_0/predictions.png",
    "seed_noise": "fashion_mnist/seed_noise.png",
}


def main(options: list[str]) -> None:
    """Run the commands and take over what they have drawn."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # the numbers depend on it
    with TemporaryDirectory() as runs:
        for command in COMMANDS:
            args = [*command.split(), "--trainer.default_root_dir", runs, *options]
            subprocess.run([sys.executable, "-m", "project", *args], env=environment, check=True)
        PICTURES.mkdir(exist_ok=True)
        for name, drawn in DRAWN.items():
            shutil.copy(Path(runs, drawn), PICTURES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
