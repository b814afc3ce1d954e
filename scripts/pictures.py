"""Draw the README's pictures again, with its own commands: python scripts/pictures.py

The arguments are options of `fit` and are passed to each command, for example --data.root for the
folder of FashionMNIST. The runs use a temporary folder and take a minute on two CPU cores.
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
    "seed_noise --config fashion_mnist --seeds 5 --jobs 2",  # reuses the run of seed 0
    "lr_find --config fashion_mnist",
)
DRAWN = {
    "curves": "fashion_mnist/version_0/curves.png",
    "lr_range": "fashion_mnist/lr_find.png",
    "predictions": "fashion_mnist/version_0/predictions.png",
    "seed_noise": "fashion_mnist/seed_noise.png",
}


def main(options: list[str]) -> None:
    """Run the commands and copy the pictures that they draw."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # the results depend on it
    with TemporaryDirectory() as runs:
        for command in COMMANDS:
            args = [*command.split(), "--trainer.default_root_dir", runs, *options]
            subprocess.run([sys.executable, "-m", "project", *args], env=environment, check=True)
        PICTURES.mkdir(exist_ok=True)
        for name, drawn in DRAWN.items():
            shutil.copy(Path(runs, drawn), PICTURES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
