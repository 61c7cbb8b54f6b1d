"""Writes docs/glossary.md from the words of the pages: `python -m tools.glossary`."""

from pathlib import Path

from fl_dpbayes.report.glossary import TERMS

PAGE = Path(__file__).parent.parent / "docs" / "glossary.md"
HEAD = """\
# Glossary

The words of a report's page, each with an example; a page links to its own copy.

Written by `python -m tools.glossary` from `fl_dpbayes/report/glossary.py`: change them there.

| word | meaning | example |
|---|---|---|
"""


def reference() -> str:
    """Return the page."""
    lines = []
    for term in TERMS:
        signs = [spelling for spelling in term.spellings if len(spelling) == 1]
        name = f"{term.name} ({', '.join(signs)})" if signs else term.name
        lines.append(f'| <a id="{term.anchor}"></a>{name} | {term.meaning} | {term.example} |\n')
    return HEAD + "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
