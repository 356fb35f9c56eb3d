"""Text for the page: short, and without characters that would disturb it."""

import unicodedata

LONGEST = 200  # characters of a name; the rest is left out


def safe_text(value: object) -> str:
    """Control characters and marks that turn the direction of text become visible question marks.

    A name from a record could otherwise reverse the text around it, or look like another name.
    """
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if unicodedata.category(letter) in ("Cc", "Cf", "Cs") else letter for letter in text
    )


def clip(value: object, longest: int = LONGEST) -> str:
    text = safe_text(str(value)[: longest + 1])
    return text if len(text) <= longest else text[: longest - 1] + "…"
