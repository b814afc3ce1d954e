"""Callbacks that only show a run must never end it."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.utilities import rank_zero_warn


class Harmless:
    """A base of callbacks that show something: an error becomes a warning and ends the showing."""

    given_up = False

    @contextmanager
    def harmless(self, what: str) -> Iterator[None]:
        """Turn an error into a warning, after which `given_up` says not to try again.

        Args:
            what: Plural noun for what will be missing.
        """
        try:
            yield
        except Exception as error:  # it may come from any library, or from the user's model
            self.given_up = True
            reason = (str(error).strip() or "no reason given").splitlines()[0]
            rank_zero_warn(
                f"The run continues without {what} ({type(error).__name__}: {reason})", stacklevel=3
            )
