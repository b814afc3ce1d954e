"""The error for a command line that can't be carried out. Any room may raise it."""


class UsageError(ValueError):
    """A command line or config that can't be carried out; the message is for the user."""
