"""Texts of users in pictures: fonts for other scripts, and escapes for characters without a glyph.

Without them, matplotlib draws boxes and warns once for each character.
"""

from functools import cache

from matplotlib import font_manager, rcParams
from matplotlib.font_manager import FontProperties

FALLBACKS = (  # fonts for other scripts and symbols on Linux, macOS and Windows
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Arial Unicode MS",
    "Noto Emoji",
    "Symbola",
)


def families() -> list[str]:
    """The default font family and the installed `FALLBACKS`, for `fontfamily` of a text."""
    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [*rcParams["font.family"], *(name for name in FALLBACKS if name in installed)]


def escaped(text: str) -> str:
    """A text with escapes such as `\\\\u8f66` for characters that cannot be drawn.

    They are control characters, line breaks among them, and characters that none of the `families`
    has.
    """
    drawable = _drawable(tuple(families()))
    shown = []
    for character in text:
        if character.isprintable() and ord(character) in drawable:
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape", "surrogatepass").decode())
    return "".join(shown)


@cache
def _drawable(names: tuple[str, ...]) -> frozenset[int]:
    """The code points for which one of these families has a glyph."""
    points: set[int] = set()
    for name in names:
        path = font_manager.findfont(FontProperties(family=[name]))
        points |= set(font_manager.get_font(path).get_charmap())
    return frozenset(points)
