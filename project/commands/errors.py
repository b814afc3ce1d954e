"""One sentence for an error of jsonargparse: what is wrong, and the nearest valid name."""

from collections.abc import Collection

from .error_sentences import Message
from .error_table import ROWS, Row

LONGEST = 300  # characters of a sentence


def find_row(message: Message) -> tuple[Row, str] | None:
    """Return the first row that fits a message, and its sentence."""
    for row in ROWS:
        if (sentence := row.say(message)) is not None:
            return row, sentence
    return None


def explain(message: str, known: Collection[str]) -> str:
    """Return what is wrong and the way out.

    Args:
        message: Message of jsonargparse.
        known: Options of the command.
    """
    text = unindented(message)
    found = find_row(Message(text, known))
    sentence = " ".join((found[1] if found else text.splitlines()[-1]).split())
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 2]} …"


def unindented(message: str) -> str:
    """Return the lines of a message without indentation, bullets and empty lines."""
    lines = [line.strip() for line in message.splitlines()]
    return "\n".join(line.removeprefix("- ") for line in lines if line)
