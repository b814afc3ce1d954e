"""Errors of libraries that a user's settings or machine have caused, each as one sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.fabric.utilities.exceptions import MisconfigurationException

from ..engine.failures import user_error
from ..engine.image_files import DamagedImageError
from ..engine.processes import lost, misplaced
from ..engine.workers import lost_reader
from ..runs.errors import UsageError
from .errors import explain

COMPILERS = ("torch._dynamo", "torch._inductor")


@contextmanager
def of_building() -> Iterator[None]:
    """Translate errors in building the model, the data and the trainer."""
    try:
        yield
    except ValueError as error:
        if "Does not validate" not in str(error) or user_error(error):
            raise
        raise UsageError(explain(str(error), ())) from error
    except TypeError as error:  # Lightning's, on the CPU
        if "`devices`" not in str(error) or user_error(error):
            raise
        raise UsageError(f"--trainer.devices: {error}") from error


@contextmanager
def of_running() -> Iterator[None]:
    """Translate errors in carrying out a command."""
    try:
        yield
    except DamagedImageError as error:  # which a DataLoader's worker may have raised
        raise ValueError(str(error)) from None
    except MisconfigurationException as error:
        if user_error(error):
            raise
        raise ValueError(str(error)) from error
    except RuntimeError as error:
        if sentence := _sentence(error):
            raise ValueError(sentence) from error
        raise


def _sentence(error: RuntimeError) -> str:
    """Return what a user can do about an error of torch, or nothing."""
    if sentence := lost(error) or misplaced(error) or lost_reader(error):
        return sentence
    if type(error).__module__.startswith(COMPILERS):
        return f"--compile true: {str(error).splitlines()[0]}"
    if "without overflow" in str(error) and not user_error(error):
        return (
            "a number is too large for the weights' precision: lower --model.optimizer.lr, or "
            "set --trainer.precision 16-mixed instead of 16-true"
        )
    return ""
