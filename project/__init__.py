"""A PyTorch Lightning template, with a training loop whose numbers can be believed.

Yours, to be changed:

- `models/` has a file for each network, and the objectives; `mlp.py` is the one to copy.
- `data/` has a file for each data set; `fashion_mnist.py` is the one to copy.
- `callbacks/` lists what a run has, in `callbacks/__init__.py`, and draws its pictures.
- `configs/`, beside this package, has a YAML file for each result.

Machinery, to be updated from the template:

- `runs/` is the run folder: its files, locks and record. It imports no torch.
- `engine/` is one training: task, schedule, loader, data modules, saving, signals and resume.
- `preflight/` refuses a run that cannot work.
- `reports/` turns run folders into numbers, tables and figures. It imports no torch.
- `commands/` is the command line, with a file for each command.

To read first, in this order: `models/mlp.py`, `models/objectives.py`, `engine/task.py`,
`engine/optimized.py`, `engine/loader.py`, `data/fashion_mnist.py`, `callbacks/__init__.py`,
`engine/saving.py`, `runs/folder.py`, `commands/cli.py`: 1,400 lines in all.
"""
