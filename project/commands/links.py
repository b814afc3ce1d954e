"""Arguments that follow from others: how they are linked, and that nothing else may set them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from jsonargparse import ArgumentParser

from ..runs.direction import Mode, mode_by_name
from ..runs.errors import UsageError


class Link(NamedTuple):
    """An argument of a class whose value follows from other options.

    Args:
        sources: Names of the options, or of attributes of the data.
        target: Name of the argument as an option, without dashes.
        compute: Function of the sources' values; a single source needs none.
        on: Time of the link: once all is parsed, or once the data are made, which alone know.
    """

    sources: tuple[str, ...]
    target: str
    compute: Callable[..., object] | None = None
    on: Literal["parse", "instantiate"] = "parse"

    @property
    def origin(self) -> str:
        """The options to set instead of the target."""
        names = self.sources if self.on == "parse" else ("data",)
        return " and ".join(f"--{name}" for name in names)


def early_stopping_mode(monitor: str, monitor_mode: Mode | None) -> Mode:
    """Return the direction as far as it is known before the model, which may know better."""
    return monitor_mode or mode_by_name(monitor) or "min"


LINKS = (
    Link(("seed_everything",), "data.seed"),
    Link(("monitor",), "model.monitor"),
    Link(("monitor_mode",), "model.monitor_mode"),
    Link(("monitor",), "early_stopping.monitor"),
    Link(("monitor", "monitor_mode"), "early_stopping.mode", early_stopping_mode),
)
# What a model is told of its data.
FACTS = ("num_classes", "in_channels", "image_size", "num_features")
OF_DATA = tuple(Link((f"data.{name}",), f"model.{name}", on="instantiate") for name in FACTS)
FOLLOWS = {link.target: link.origin for link in (*LINKS, *OF_DATA)}


def add_links(parser: ArgumentParser, links: Sequence[Link] = (*LINKS, *OF_DATA)) -> None:
    for link in links:
        target = link.target.replace(".", ".init_args.", 1)
        sources = link.sources if link.compute else link.sources[0]
        parser.link_arguments(sources, target, compute_fn=link.compute, apply_on=link.on)


def refuse_derived(names: Iterable[str], place: str = "") -> None:
    """Refuse options that links would silently overwrite.

    Args:
        names: Names of options that are set.
        place: Place where they are set, which begins the sentence.
    """
    for name in names:
        if origin := FOLLOWS.get(name):
            raise UsageError(f"{place}--{name} is set by {origin}: set that instead")
