"""Fonts for names in any script, if the system has them."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.text import Text

BOXES = "Last Resort"  # matplotlib's font that has a box for every character
NOTO = "Noto Sans"  # families that cover all scripts together; they are tried first

_told: list[str] = []  # a character without a font, after the user was warned


@contextmanager
def glyphs_for(figure: Figure) -> Iterator[None]:
    """Use fonts for a figure's texts that have their characters, while the figure is drawn.

    A character that no font has is drawn as a box. A warning says so once, not for each picture.
    """
    texts = [text for text in figure.findobj(Text) if not text.get_text().isascii()]
    characters = {c for text in texts for c in text.get_text() if c.isprintable() and c != " "}
    families = _fallbacks(frozenset(characters))
    for text in texts if families else []:
        text.set_fontfamily([*text.get_fontfamily(), *families])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


@functools.cache
def _fallbacks(characters: frozenset[str]) -> tuple[str, ...]:
    """Return the font families needed for characters that the default font lacks."""
    missing = characters - _characters(findfont(FontProperties()))
    families = []
    # Only the first font of each family is looked at, and the order is the same on each machine.
    fonts = {font.name: font.fname for font in reversed(fontManager.ttflist)} if missing else {}
    names = [name for name in fonts if not name.startswith(BOXES)]
    for name in sorted(names, key=lambda name: (not name.startswith(NOTO), len(name), name)):
        if missing and (found := missing & _characters(fonts[name])):
            families.append(name)
            missing -= found
    if missing and not _told:
        _told.append(min(missing))
        warnings.warn(
            f"Pictures show boxes in place of '{_told[0]}' and of other characters that no font of "
            "this system has: install one, such as the package fonts-noto-cjk for Chinese",
            stacklevel=2,
        )
    return tuple(families)


@functools.cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters that a font has."""
    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # one of the system's font files is damaged
        return frozenset()
