"""Names in other scripts are drawn with a font that has them, or one line says that none has."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.figure import Figure

from project.reports import fonts
from project.reports.curves import save_figure, to_png

NAMES = "猫狗"  # which matplotlib's own fonts lack


@pytest.fixture(autouse=True)
def _only_fonts_of_matplotlib(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the system has, and whatever was said before."""
    own = [font for font in font_manager.fontManager.ttflist if "matplotlib" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(fonts, "_told", [])
    fonts._fallbacks.cache_clear()
    yield
    fonts._fallbacks.cache_clear()


def make_font(path: Path, characters: str) -> None:
    """A font in which each of some characters is a black square."""
    builder = FontBuilder(1000, isTTF=True)
    glyphs = [".notdef", *(f"u{ord(c):x}" for c in characters)]
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap(dict(zip(map(ord, characters), glyphs[1:], strict=True)))
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 800), (800, 800), (800, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square = pen.glyph()
    builder.setupGlyf(dict.fromkeys(glyphs, square))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (900, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": path.stem, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


def figure_of(text: str) -> Figure:
    figure = Figure(figsize=(2, 1))
    figure.text(0.1, 0.3, text, fontsize=30)
    return figure


def ink(png: bytes, path: Path) -> int:
    """Dark pixels."""
    from PIL import Image

    path.write_bytes(png)
    return int((np.asarray(Image.open(path).convert("L")) < 128).sum())


def test_a_font_of_the_system_is_taken_for_what_the_usual_one_lacks(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="boxes in place of"):
        boxes = ink(to_png(figure_of(NAMES)), tmp_path / "a.png")
    for name in ("Squares", "Zeta"):  # either has a part of them
        make_font(tmp_path / f"{name}.ttf", NAMES[0] if name == "Zeta" else NAMES[1:])
        font_manager.fontManager.addfont(tmp_path / f"{name}.ttf")
    fonts._fallbacks.cache_clear()
    assert set(fonts._fallbacks(frozenset(NAMES))) == {"Squares", "Zeta"}
    squares = ink(to_png(figure_of(NAMES)), tmp_path / "b.png")
    assert squares == 2 * (0.8 * 30 * 120 / 72) ** 2 > boxes
    assert fonts._fallbacks(frozenset("é×√")) == (), "which the usual font has"


def test_one_line_says_that_no_font_has_them(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for k, text in enumerate((NAMES, f"{NAMES} 1", NAMES[0], "鸟")):
            save_figure(figure_of(text), tmp_path / f"{k}.png")
    (only,) = (str(w.message) for w in said)
    assert only.startswith(
        "Pictures show boxes in place of '狗' and of other characters that no font"
    )


@pytest.mark.parametrize("text", ["cat", "café × √", "собака", "✓ right"])
def test_usual_names_ask_for_nothing(text: str) -> None:
    to_png(figure_of(text))


def test_a_damaged_font_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "damaged.ttf").write_bytes(b"not a font")
    assert fonts._characters(str(tmp_path / "damaged.ttf")) == frozenset()
