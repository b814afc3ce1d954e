"""The error for a command line that can't be carried out, which every room may raise."""


class UsageError(ValueError):
    """A command line or config that can't be carried out; the message is for the user."""
