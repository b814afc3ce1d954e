"""The nearest valid name for one that is misspelt."""

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """A question, if one of the names is close."""
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(name.lower(), list(lower), n=1)
    return f" (did you mean {lower[close[0]]}?)" if close else ""
