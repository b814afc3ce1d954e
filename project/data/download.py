"""Downloads of data sets that are not on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def download(what: str, root: Path, wanted: str, get: Callable[[], Any]) -> None:
    """Download a data set, or say what to do without the network.

    Args:
        what: Name of the data set.
        root: Folder that it was looked for in.
        wanted: Names of the files that were looked for.
        get: Function that downloads it.

    Raises:
        ValueError: If it can't be downloaded.
    """
    try:
        get()
    except Exception as error:  # urllib, ssl, hash mismatch: all mean that there are no data
        reason = " ".join((str(error) or repr(error)).split())
        raise ValueError(
            f"no {what} under {root.resolve()}: looked for {wanted}, and the download failed "
            f"({reason}). Put a copy there, name its folder with --data.root, or try the project "
            "without data: --config synthetic"
        ) from error
