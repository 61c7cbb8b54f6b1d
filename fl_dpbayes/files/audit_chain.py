"""Whether a site's audit log is whole.

Every line must stand where it was, as it was written, up to the last one. Lines of a version before
this one have no number and no hash: they are counted, and nothing is said of them.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fl_dpbayes.files.audit_log import (
    FILES_KEPT,
    FIRST_HEAD,
    AuditLine,
    LogText,
    is_full,
    read_mark,
    read_texts,
)


@dataclass
class AuditChain:
    """What a log's lines add up to.

    Attributes:
        lines: What each line says, by its number.
        heads: The hash of each line, by its number.
        problems: What is missing or was changed, a line of text each.
        notes: What a person should know and is no fault, a line of text each.
    """

    lines: dict[int, dict[str, Any]] = field(default_factory=dict)
    heads: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The number of the first line that is still there; 1 where there is none."""
        return min(self.lines, default=1)


def read_chain_of_log(site_file: Path) -> AuditChain:
    """Read a site's audit log and check every line against the one before.

    Where the site may be at work, this is called within `held_still`.

    Args:
        site_file: The site file whose log it is.

    Returns:
        What the lines add up to, and what is wrong with them.

    Raises:
        OSError: If a file cannot be read.
    """
    chain = AuditChain()
    lines_of_earlier_version = 0
    lines_cut_off = 0
    bytes_of_lines = Counter[Path]()
    last: AuditLine | None = None
    for text in read_texts(site_file):
        if text.line is not None:
            _check_next(chain, last, text)
            last = text.line
            bytes_of_lines[text.file] += len(text.text) + len("\n\n")
            chain.lines[last.number] = text.event or {}
            chain.heads[last.number] = last.head
        elif text.event is None:
            lines_cut_off += 1
        elif last is None:
            lines_of_earlier_version += 1
        else:
            chain.problems.append(
                f"a line without number and hash stands behind line {last.number}: it was "
                "changed or put in"
            )
    _check_beginning(chain, bytes_of_lines.values())
    _check_mark(chain, last, read_mark(site_file))
    if lines_of_earlier_version:
        chain.notes.append(
            f"{lines_of_earlier_version} lines of an earlier version have no hash: a change in "
            "them does not show"
        )
        if chain.first > 1:
            chain.problems.append(
                f"line {chain.first} is the first with a hash: those before it were changed"
            )
    if lines_cut_off:
        chain.notes.append(
            f"{lines_cut_off} lines were cut off while they were written: nothing left with them"
        )
    return chain


def _check_beginning(chain: AuditChain, bytes_of_lines: Iterable[int]) -> None:
    """Tell lines that are missing at the beginning, unless all files behind them are full."""
    if chain.first == 1:
        return
    full_files = sum(map(is_full, bytes_of_lines))
    if full_files >= FILES_KEPT - 1:
        chain.notes.append(
            f"the log begins with line {chain.first}: {FILES_KEPT} files are kept, older ones went"
        )
    else:
        chain.problems.insert(0, _missing(1, chain.first - 1))


def _check_next(chain: AuditChain, last: AuditLine | None, text: LogText) -> None:
    line = text.line
    assert line is not None
    if last is None and line.number > 1:
        return
    previous = last or AuditLine(0, FIRST_HEAD)
    if line.number > previous.number + 1:
        chain.problems.append(_missing(previous.number + 1, line.number - 1))
    elif line.number <= previous.number:
        chain.problems.append(
            f"line {line.number} stands behind line {previous.number}: lines were exchanged or "
            "put in"
        )
    elif not text.follows(previous.head):
        chain.problems.append(
            f"line {line.number} is not as it was written, or the one before it was exchanged"
        )


def _check_mark(chain: AuditChain, last: AuditLine | None, mark: AuditLine | None) -> None:
    """Compare the last line with the mark: a crash leaves the mark one line behind, never ahead."""
    number = last.number if last is not None else 0
    if mark is None:
        if number:
            chain.problems.append(
                f"the mark beside the log, which knows its last line, {number}, is missing"
            )
    elif mark.number > number:
        chain.problems.append(f"{_missing(number + 1, mark.number)} at the end")
    elif mark.number < number - 1:
        chain.problems.append(
            f"the mark beside the log knows line {mark.number} as the last: it was put back"
        )
    elif mark.number in chain.heads and chain.heads[mark.number] != mark.head:
        chain.problems.append(
            f"line {mark.number} is not the one that the mark beside the log knows"
        )


def _missing(first: int, last: int) -> str:
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"
