"""Error messages for a checkpoint whose content can't be restored into a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch.trainer.connectors import checkpoint_connector

from .failures import PACKAGE, frames

CONNECTOR = Path(checkpoint_connector.__file__).resolve()


@contextmanager
def from_checkpoint(path: str | None, restores: bool = False) -> Iterator[None]:
    """Turn an error raised while restoring into a ValueError that names the checkpoint.

    A file that was changed by hand or written by another program may have any value anywhere.
    Errors raised by the hooks of a user's own classes pass unchanged.

    Args:
        path: Path of the checkpoint, if there is one.
        restores: Whether the whole context restores the checkpoint. Otherwise only errors raised
            while Lightning's connector restores it count.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        found = frames(error)
        refused = isinstance(error, ValueError) and found[-1].code.startswith("raise")
        if refused and not found[-1].is_library:
            raise
        restores |= any(f.path == CONNECTOR and "restore" in f.function for f in found)
        own = [frame for frame in found if not frame.is_library]
        if not path or not restores or not own[-1].path.is_relative_to(PACKAGE):
            raise
        cause = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise ValueError(
            f"the run can't be restored from {path}, part of which is missing or of another type "
            f"({cause}): was it changed by hand?"
        ) from error
