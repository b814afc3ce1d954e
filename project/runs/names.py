"""The names of the package and its program, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable

# The name is read from the module, since a project of your own renames the package.
PACKAGE = __name__.partition(".")[0]
PROGRAM = f"python -m {PACKAGE}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a question that suggests the closest valid name; empty if none is close."""
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(name.lower(), list(lower), n=1)
    return f" (did you mean {lower[close[0]]}?)" if close else ""
