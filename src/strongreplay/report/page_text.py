"""Text for the page: shortened, and without control characters."""

import unicodedata

from markupsafe import Markup, escape

LONGEST = 200  # characters of a name; the rest is left out


def safe_text(value: object) -> str:
    """Replace control characters and marks that change the text direction by question marks.

    A name from a record could otherwise reverse the text around it, or look like another name.
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if unicodedata.category(letter) in ("Cc", "Cf", "Cs") else letter for letter in text
    )


def clip(value: object, longest: int = LONGEST) -> str:
    return shorten(safe_text(str(value)[: longest + 1]), longest)


def shorten(text: str, longest: int, end: str = "…") -> str:
    return text if len(text) <= longest else text[: longest - len(end)] + end


def breakable(text: str) -> Markup:
    """HTML in which settings such as terms=current,replay may be broken between their parts."""
    return Markup(str(escape(text)).replace("=", "=<wbr>").replace(",", ",<wbr>"))
