"""Links from the first use of a word, in each section of a page, to the page's glossary."""

import re
from dataclasses import dataclass

from fl_dpbayes.report.glossary import TERMS, Term

_TAG = re.compile(r"(<[^>]*>)")
_TAG_NAME = re.compile(r"</?([a-z0-9]+)")
# Text in these stays as it is: it is no prose, or a link already.
_NO_LINKS = {"svg", "style", "title", "a", "summary", "h1", "h2", "h3", "caption", "nav"}
# A term's own spelling, and its others, by the text as it stands on a page.
_SPELLINGS = {spelling: term for term in TERMS for spelling in (term.name, *term.spellings)}


def _pattern(spelling: str) -> str:
    """Match an abbreviation as it is, a word also where it begins a sentence."""
    if spelling[0].islower() and len(spelling) > 1:
        return f"[{spelling[0].upper()}{spelling[0]}]{re.escape(spelling[1:])}"
    return re.escape(spelling)


_WORDS = re.compile(
    r"(?<![\w-])(?:"
    + "|".join(map(_pattern, sorted(_SPELLINGS, key=len, reverse=True)))
    + r")(?![\w-])"
)


@dataclass(frozen=True)
class LinkedPage:
    """A page with links to its glossary.

    Attributes:
        page: The page.
        terms: Those that it uses, in the glossary's order.
    """

    page: str
    terms: tuple[Term, ...]


def link_terms(page: str) -> LinkedPage:
    """Link the first use of each term in each section, and in each part that is folded.

    Args:
        page: Well-formed HTML; a section begins with <h2>.
    """
    used: set[str] = set()
    # Of the section, and of the folded parts that are open in it, outermost first.
    linked: list[set[str]] = [set()]
    unlinked_depth = 0

    def link(match: re.Match[str]) -> str:
        term = _term(match[0])
        used.add(term.name)
        if term.name in linked[-1]:
            return match[0]
        linked[-1].add(term.name)
        return f'<a class="term" href="#{term.anchor}">{match[0]}</a>'

    parts = _TAG.split(page)
    for place, part in enumerate(parts):
        name = _TAG_NAME.match(part)
        if name is None:
            if not unlinked_depth and not part.startswith("<"):
                parts[place] = _WORDS.sub(link, part)
            continue
        closes = part.startswith("</")
        if name[1] in _NO_LINKS:
            unlinked_depth += -1 if closes else 1
        if name[1] == "h2" and not closes:
            linked[-1].clear()
        if name[1] == "details":
            if closes:
                linked.pop()
            else:
                linked.append(set(linked[-1]))
    return LinkedPage(page="".join(parts), terms=tuple(term for term in TERMS if term.name in used))


def _term(spelling: str) -> Term:
    return _SPELLINGS.get(spelling) or _SPELLINGS[spelling[0].lower() + spelling[1:]]
