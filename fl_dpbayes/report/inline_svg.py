"""A saved SVG document as a part of an HTML page."""

import re

_NOT_FOR_INLINE = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<style.*?</style>", re.S)


def inline_svg(svg: str, name: str) -> str:
    """Prepare an SVG document of Matplotlib for an HTML page."""
    text = _NOT_FOR_INLINE.sub("", svg).strip()
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href=", "href=")
    text = re.sub(r'(\sid=")', rf"\g<1>{name}-", text)
    text = re.sub(r'(\shref="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"(url\(#)", rf"\g<1>{name}-", text)
    # The page decides the size; the figure's shape is in its viewBox.
    opening = re.sub(r'\s(width|height)="[^"]*"', "", text[: text.index(">")])
    return opening + ' aria-hidden="true"' + text[text.index(">") :]
