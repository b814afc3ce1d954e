"""Fonts for names in any script, if the system has them."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.text import Text

BOXES = "Last Resort"  # matplotlib's font that has a box for everything
NOTO = "Noto Sans"  # families made to have all scripts: asked before others

_told: list[str] = []  # a character without a font, once the user was told


@contextmanager
def glyphs_for(figure: Figure) -> Iterator[None]:
    """Give the texts of a figure, while it is drawn, the fonts that have their characters.

    A character that no font has becomes a box; a warning says so once, not for each picture.
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
    """Return families that have the characters that the default font lacks, if any family does."""
    missing = characters - _characters(findfont(FontProperties()))
    families = []
    # The same order on each machine; a first font of a family stands for it.
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
    except (OSError, RuntimeError):  # a damaged file among those of the system
        return frozenset()
