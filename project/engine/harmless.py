"""What only shows a run must never end it."""

from collections.abc import Iterator
from contextlib import contextmanager

from lightning.pytorch.utilities import rank_zero_warn


class Harmless:
    """Part of a callback that shows something: an error in it costs one warning, and the thing."""

    given_up = False

    @contextmanager
    def harmless(self, what: str) -> Iterator[None]:
        """Turn an error into a warning, after which `given_up` says not to try again.

        Args:
            what: Things that will be missing, in the plural.
        """
        try:
            yield
        except Exception as error:  # of any library, or of the user's model
            self.given_up = True
            reason = (str(error).strip() or "no reason given").splitlines()[0]
            rank_zero_warn(
                f"The run continues without {what} ({type(error).__name__}: {reason})", stacklevel=3
            )
