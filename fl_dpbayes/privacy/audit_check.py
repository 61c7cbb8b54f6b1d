"""One check of an audit: what was found, what is allowed, and how small a fault it would have found."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fl_dpbayes.privacy.audit_statistics import Finding


@dataclass(frozen=True)
class Check:
    """One verdict of an audit.

    Attributes:
        part: of the mechanism: what was attacked.
        what: what was checked, in words.
        value: what was found: a probability, or a bound.
        limit: what is allowed.
        relation: whether the value must be at most or at least the limit.
        where: what the value was found on, where it is the worst of several.
        finds: which fault it misses at most once in a thousand audits.
    """

    part: str
    what: str
    value: float
    limit: float
    relation: Literal["at most", "at least"]
    where: str = ""
    finds: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value is allowed; a value that is not a number never is."""
        return self.value <= self.limit if self.relation == "at most" else self.value >= self.limit


@dataclass(frozen=True)
class Question:
    """What several tests of one kind decide together.

    Attributes:
        what: what is checked, in words.
        findings: the tests, at least one.
    """

    what: str
    findings: Sequence[Finding]


def verdicts(part: str, questions: Sequence[Question], false_alarm: float) -> list[Check]:
    """Decide questions, so that a sound site fails any of them with at most the stated probability.

    Each of Q questions has a share false_alarm / Q, and each of its m tests false_alarm / (Q m) (Bonferroni), whatever
    depends on what.

    Args:
        part: of the mechanism.
        questions: those without findings are left out.
        false_alarm: in (0, 1).

    Returns:
        One check for each question; its value is the smallest probability found, its limit the level of one test.
    """
    asked = [question for question in questions if question.findings]
    checks = []
    for question in asked:
        level = false_alarm / len(asked) / len(question.findings)
        worst = min(question.findings, key=lambda finding: finding.probability)
        weakest = max(question.findings, key=lambda finding: finding.effect(level).size)
        where = f"worst of {len(question.findings)}: {worst.where}" if len(question.findings) > 1 else worst.where
        finds = weakest.effect(level).words
        checks.append(Check(part, question.what, worst.probability, level, "at least", where, finds))
    return checks
