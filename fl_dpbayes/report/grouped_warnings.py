"""The same warning of several sites as one line."""

import re
from collections.abc import Iterable, Sequence

NUMBER = re.compile(r"(?<!round )\b\d+(?:\.\d+)?")


def folded(warnings: Iterable[str], sites: Sequence[str]) -> list[str]:
    """Say once what is said of several sites, with the sites that it holds for.

    Args:
        warnings: sentences in their order.
        sites: names of all sites.

    Returns:
        The sentences, each at its first place; one that differs from an earlier one only by its site, or by numbers
        that belong to it, is added to that as a name.
    """
    groups: dict[str, tuple[str, str, list[str]]] = {}
    for text in dict.fromkeys(warnings):
        named = [site for site in sites if _token(site).search(text)]
        if len(named) != 1:
            groups[text] = (text, text, [])
            continue
        alike = _token(named[0]).sub("{site}", text)
        first = groups.setdefault(NUMBER.sub("#", alike), (text, alike, []))
        first[2].append(named[0])
        if first[1] != alike:
            groups[NUMBER.sub("#", alike)] = (first[0], "", first[2])
    return [_joined(*group) for group in groups.values()]


def _joined(text: str, alike: str, sites: list[str]) -> str:
    others = list(dict.fromkeys(sites))[1:]
    if not others:
        return text
    return f"{text.rstrip('.')} ({'the same' if alike else 'and likewise'} at {', '.join(others)})."


def _token(site: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(site)}(?![\w-])")
