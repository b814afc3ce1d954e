"""The error of a command line, which every room may raise."""


class UsageError(ValueError):
    """A command line or config that can't be carried out; the message is for the user."""
