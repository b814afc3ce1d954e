"""What is given on the command line: LightningCLI's parsers with the project's options."""

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_info

from .. import data, models  # noqa: F401  their classes can be given by name
from ..runs.errors import UsageError
from ..runs.names import PROGRAM
from ..runs.plain import load_yaml
from .internals import OpenCLI, actions
from .limits import check_limits
from .options import add_options
from .parser import HelpFormatter, Parser
from .plan import MEASURING
from .sources import check_sections, expand, locate, only_config
from .switches import dropped_settings
from .table import OWN_MAIN, TEXTS, take_apart
from .trainer import Trainer

USAGE = f"{PROGRAM} {{}} [--config FILE] [--OPTION VALUE …]"
DESCRIPTION = f"""Train and test image classifiers, and compare the results.

    {PROGRAM} fit --config synthetic
    {PROGRAM} fit --help                    the options of a command
    {PROGRAM} fit --model.help ResNet18     those of a class

Configs are read first, in their order, then options; the later value wins. A mistake in them is
reported in one sentence (--debug shows where it was found), an error in your own code with its
traceback."""


class CommandLine(OpenCLI):
    """The arguments of a command, parsed into `config`: the part that builds nothing."""

    def __init__(self, args: list[str]) -> None:
        self.command = args
        super().__init__(
            L.LightningModule,
            L.LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            trainer_class=Trainer,
            trainer_defaults={"default_root_dir": "runs", "devices": 1},
            seed_everything_default=0,
            parser_class=Parser,
            parser_kwargs={
                "prog": PROGRAM,
                "description": DESCRIPTION,
                "formatter_class": HelpFormatter,
                "exit_on_error": False,
                "allow_abbrev": False,
                **{name: {"usage": USAGE.format(name)} for name in self.subcommands()},
            },
            args=args,
            save_config_callback=None,  # RunRecord does it
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        # Without the switch that would let a checkpoint run code when it is loaded.
        without = {"weights_only", "return_predictions"}
        commands = {k: v | without for k, v in LightningCLI.subcommands().items()}
        commands |= {name: {"model", "datamodule", "trained"} for name in ("check", "lr_find")}
        named = commands.keys() & self.command[:1]  # the parsers of the others would go unused
        return {name: commands[name] for name in named or commands}

    def describe(self, commands: Any, listed: list[Any]) -> None:
        for name in OWN_MAIN if {"-h", "--help"} & set(self.command[:1]) else ():
            commands.add_subcommand(name, Parser(), help="")
        for action in listed:
            action.help = text = TEXTS[action.dest]
            given = "--run runs/cifar/version_0" if action.dest in MEASURING else "--config cifar"
            example = f"{PROGRAM} {action.dest} {given}"
            commands.choices[action.dest].description = f"{text}\n\n    {example}"

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        add_options(parser, next(iter(self.command), None))

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        expanded = expand(self.command)
        try:
            with only_config(expanded):
                self.config = parser.parse_args(expanded)
        except UsageError as error:
            raise UsageError(locate(str(error), expanded[1:])) from error
        given, config = take_apart(expanded[1:]), self.config[self.config.subcommand]
        known = {action.dest.split(".")[0] for action in actions(self.parser_of(expanded[0]))}
        check_sections(given.configs, known)
        if config.name is None:
            config.name = Path(str(config.config[0])).stem if config.config else "run"
        plain = config.as_dict()
        check_limits(plain)
        options = {name for name, _ in given.settings}
        for sentence in dropped_settings(map(Path, given.configs), options, plain):
            rank_zero_info(sentence)

    def plain_config(self) -> dict[str, Any]:
        """Return the configuration of the command in plain types, as in `config.yaml`."""
        command = str(self.subcommand)
        text = self.parser_of(command).dump(self.config[command], skip_unset=False)
        config: dict[str, Any] = load_yaml(text)
        return config
