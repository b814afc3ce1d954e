"""Each message of jsonargparse that is put in other words is still made, and finds its row."""

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from project.commands import errors
from project.commands.cli import main
from project.commands.error_sentences import Message
from project.commands.error_table import ROWS
from project.runs.errors import UsageError

PACKAGE = errors.__name__.partition(".")[0]
TWICE = f"from {PACKAGE}.models import MLP\n\n\nclass Twice(MLP):\n    pass\n"
# For each row a command line, after `fit --config synthetic`, and the sentence for its message.
LINES: dict[str, tuple[str, str]] = {
    "missing package": (
        "--trainer.logger MLFlowLogger --trainer.accelerator cpu",
        "MLFlowLogger needs a package that is not installed: pip install mlflow",
    ),
    "missing module": (
        "--model no_such_module.Net",
        "--model: there is no module 'no_such_module' to import from",
    ),
    "missing name": (
        "--model torch.optim.SDG",
        "--model: module torch.optim has no SDG (did you mean SGD?)",
    ),
    "ambiguous class": (
        "--model Twice",
        "--model: there are several classes Twice: name one in full, of one.Twice, two.Twice",
    ),
    "not a path": (
        "--data ImageFolderDataModule --data.root '{a: b}'",
        "--data.root: expected a path, got what YAML reads as a mapping: put it in quotes (on the "
        "command line, within those of the shell)",
    ),
    "not a list": (
        "--model.optimizer AdamW --model.optimizer.betas (0.9,0.95)",
        "--model.optimizer.betas: got (0.9,0.95): write a list in brackets, as [0.9,0.95]",
    ),
    "refused class": (
        "--model os.system",
        "--model: 'os.system' can't be named here: it could run code or change files",
    ),
    "class of a function": (
        "--model.optimizer torch.nn.Linear",
        "--model.optimizer: torch.nn.Linear is not a subclass of Optimizer",
    ),
    "class of another kind": (
        "--model torch.optim.SGD",
        "--model: torch.optim.SGD is not a subclass of LightningModule",
    ),
    "class instead of the only one": (
        "--data.augment torch.nn.Linear",
        "--data.augment: torch.nn.Linear is not Augment, and no other class can be named here",
    ),
    "abstract class": (
        "--model.objective.gama 1",
        "--model.objective: name a class before its options, since "
        f"{PACKAGE}.engine.objective.Objective is abstract",
    ),
    "option of a class": (
        "--model.widht 1",
        f"{PACKAGE}.models.ResNet18 has no option --model.widht (did you mean --model.width?)",
    ),
    "option of a class for a function": (
        "--model.optimizer.lrr 1",
        "torch.optim.SGD has no option --model.optimizer.lrr (did you mean --model.optimizer.lr?)",
    ),
    "option in a config": (
        "--config typo.yaml",
        "unknown option --trainer.max_epoc (did you mean --trainer.max_epochs?)",
    ),
    "option": (
        "--trainer.max_epochss 3",
        "unknown option --trainer.max_epochss (did you mean --trainer.max_epochs?)",
    ),
    "stray argument": ("foo", "'foo' is not an option: options begin with --"),
    "required argument": (
        "--model.lr_scheduler StepLR",
        "--model.lr_scheduler.step_size is required",
    ),
    "no model or no data": (
        "fit --config preset.yaml",
        "no model or no data is named: a preset comes after a config, as in --config cifar",
    ),
    "no value": ("--name", "--name needs a value"),
    "no command": ("", "name a command ("),
    "wrong command": ("fitt", "no command 'fitt' (did you mean fit?); name a command ("),
    "not a config": (
        "--config text.yaml",
        "--config: 'just text' is not a YAML file of options; --print_config prints an example",
    ),
    "group as an option": (
        "--trainer x",
        "--trainer can't be set to 'x': set its options, as --trainer.NAME",
    ),
    "error of a class": ("--model.width 0", "width 0 must be positive"),
    "restricted number": (
        "--max_wait_s -1",
        "--max_wait_s: -1 does not conform to restriction v>0",
    ),
    "option of a value": (
        "--trainer.max_epochs.x 2",
        "unknown option --trainer.max_epochs.x: --trainer.max_epochs has no options of its own",
    ),
    "not a number": (
        "--trainer.max_epochs x",
        "--trainer.max_epochs: expected int, got 'x'",
    ),
    "no class": (
        "--model ResNt18",
        "no class 'ResNt18' for --model (did you mean ResNet18?)",
    ),
    "wrong type": (
        "--trainer.deterministic x",
        "--trainer.deterministic: expected bool or 'warn', got 'x'",
    ),
}
WHOLE = ("no command", "wrong command", "no model or no data")  # without `fit --config synthetic`


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The messages of jsonargparse, beside files that the command lines name."""
    Path("typo.yaml").write_text("trainer:\n  max_epoc: 3\n")
    Path("preset.yaml").write_text("trainer:\n  max_epochs: 3\n")
    Path("text.yaml").write_text("just text")
    for name in ("one", "two"):
        Path(f"{name}.py").write_text(TWICE)
    messages: list[str] = []
    explain = errors.explain

    def keep(message: str, known: list[str]) -> str:
        messages.append(message)
        return explain(message, known)

    for name in ("parser", "translation"):
        monkeypatch.setattr(f"{PACKAGE}.commands.{name}.explain", keep)
    monkeypatch.syspath_prepend(str(tmp_path))
    return messages


def test_each_row_has_a_line() -> None:
    names = [row.name for row in ROWS]
    assert names == list(LINES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_sample_finds_its_row_and_is_still_what_jsonargparse_says(
    row: errors.Row, made: list[str]
) -> None:
    line, sentence = LINES[row.name]
    args = [] if row.name in WHOLE else ["fit", "--config", "synthetic"]
    if row.name == "ambiguous class":
        import_module("one"), import_module("two")
    with pytest.raises(UsageError) as error:
        main([*args, *shlex.split(line)])
    assert sentence in str(error.value)
    rest = "\n".join(made)
    for part in row.sample.splitlines():
        assert part in rest, f"the installed jsonargparse no longer says {part!r}: {made[0]}"
        rest = rest[rest.index(part) :]
    found = errors.find_row(Message(errors.unindented(made[0])))
    assert found
    assert found[0] is row
    known = ("--trainer.max_epochs", "--model")
    sample = errors.find_row(Message(row.sample, known))
    assert sample
    assert sample[0] is row


def test_any_other_message_keeps_its_last_line() -> None:
    assert errors.explain("Parser key 'x':\n  - what is new\n\n", ()) == "what is new"
    assert len(errors.explain("long " * 1000, ())) == errors.LONGEST
