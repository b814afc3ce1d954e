"""The names of the package and its program, and the nearest valid name to a misspelt one."""

import difflib
from collections.abc import Iterable

# A project of your own has another name, and the same files of machinery.
PACKAGE = __name__.partition(".")[0]
PROGRAM = f"python -m {PACKAGE}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a question that names the closest of the valid names, if one is close."""
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(name.lower(), list(lower), n=1)
    return f" (did you mean {lower[close[0]]}?)" if close else ""
