"""What a config can name: classes of the kind that an option wants, and no functions instead.

A config may come with a run that somebody else has made, so that nothing in it is called before
it is known to be a class of that kind. All of this restricts jsonargparse, which resolves
the names: by itself it also takes functions that return such a class, and any class for an argument
without a type.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import jsonargparse
from jsonargparse import Namespace, set_parsing_settings
from torch import nn

from ..runs.files import read_text
from ..runs.plain import Bounded
from .internals import import_object, names_class, replace_function, replace_yaml_loader

Adapt: TypeAlias = Callable[..., Any]

# Beside what jsonargparse denies by default, which is most of the standard library.
DENIED = ["builtins", "numpy.f2py", "this", "torch.hub", "torch.utils.cpp_extension"]

parsing: Any = jsonargparse  # its types do not let a method be replaced

REFUSED = "'{}' can't be named here: {}"
A_FUNCTION = "it is a function, and a class is wanted"


def forbid_calls() -> None:
    """Make jsonargparse resolve only classes, and read only regular files."""
    set_parsing_settings(
        import_path_denylist=DENIED,
        instantiate_subclass_spec_in_any=False,
        config_read_mode_fsspec_enabled=False,  # which reads from the network too
    )
    replace_function("function_returns_subclass", lambda _: _refuse_function)
    replace_function("adapt_classes_any", lambda _: _refuse_untyped)
    replace_function("adapt_class_type", _classes_alone)
    replace_function("check_import_path", _paths_alone)
    replace_yaml_loader(lambda loader: type("Loader", (Bounded, loader), {}))
    parsing.Path.read_text = lambda path: read_text(path.absolute)


def _classes_alone(adapt: Adapt) -> Adapt:
    """Refuse functions as values of options that take a class."""

    def adapt_class(value: Any, *args: Any, **kwargs: Any) -> Any:
        kind = import_object(value["class_path"])
        if not inspect.isclass(kind):
            raise ImportError(REFUSED.format(value["class_path"], A_FUNCTION))
        wanted = kwargs.get("typehint") or kwargs.get("partial_skip_args")
        if not wanted and not issubclass(kind, nn.Module):  # for a function of no certain class
            raise ImportError(REFUSED.format(value["class_path"], "a function is wanted"))
        return adapt(value, *args, **kwargs)

    return adapt_class


def _paths_alone(check: Callable[[str], None]) -> Callable[[str], None]:
    """Refuse denied names with the reason, and names of a program."""

    def check_path(path: str) -> None:
        try:
            check(path)
        except ImportError as error:
            raise ImportError(REFUSED.format(path, "it could run code or change files")) from error
        if "__main__" in path.split(".")[1:]:  # the first one is the program that runs
            raise ImportError(REFUSED.format(path, "it belongs to a program"))

    return check_path


def _refuse_function(function: Any, *_: Any) -> bool:
    raise ImportError(REFUSED.format(f"{function.__module__}.{function.__name__}", A_FUNCTION))


def _refuse_untyped(value: Any, *args: Any) -> Any:
    """Return a value for an argument of any type, unless it names a class."""
    if names_class(value):
        why = "the argument has no type, so annotate it with the class that it takes"
        raise ValueError(REFUSED.format(value["class_path"], why))
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list | Namespace):
            _refuse_untyped(part, *args)
    return value
