"""Why a site does not do what it was asked: a fixed code, never the text of an exception."""

from enum import StrEnum

from fl_dpbayes.config import OutsideText, outside_text
from fl_dpbayes.files import Message


class RefusalCode(StrEnum):
    """The reasons that may leave a site; each reveals nothing about a record."""

    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    POLICY_DENIED = "POLICY_DENIED"
    PLAN_NOT_APPROVED = "PLAN_NOT_APPROVED"
    BUNDLE_NOT_APPROVED = "BUNDLE_NOT_APPROVED"
    CODE_NOT_APPROVED = "CODE_NOT_APPROVED"
    SITE_STOPPED = "SITE_STOPPED"
    POLICY_EXPIRED = "POLICY_EXPIRED"
    COHORT_CLOSED = "COHORT_CLOSED"
    EVALUATIONS_EXHAUSTED = "EVALUATIONS_EXHAUSTED"
    BAD_REQUEST = "BAD_REQUEST"
    ROLE_DENIED = "ROLE_DENIED"
    PLAN_CHANGED = "PLAN_CHANGED"
    REQUEST_CHANGED = "REQUEST_CHANGED"
    ALREADY_RESERVED = "ALREADY_RESERVED"
    LEDGER_ROLLED_BACK = "LEDGER_ROLLED_BACK"
    LEDGER_ERROR = "LEDGER_ERROR"
    AUDIT_LOG_ERROR = "AUDIT_LOG_ERROR"
    NOT_SENT = "NOT_SENT"
    SITE_NOT_CONFIGURED = "SITE_NOT_CONFIGURED"
    SITE_FILE_MISSING = "SITE_FILE_MISSING"
    SITE_FILE_INVALID = "SITE_FILE_INVALID"
    COHORT_CHANGED = "COHORT_CHANGED"
    DATA_INVALID = "DATA_INVALID"
    DATA_CHANGED = "DATA_CHANGED"
    DATA_UNCHECKED = "DATA_UNCHECKED"
    DIVERGED = "DIVERGED"
    NOT_REPEATABLE = "NOT_REPEATABLE"
    INSTALLATION_BROKEN = "INSTALLATION_BROKEN"
    INTERNAL = "INTERNAL"


class Refusal(Message):
    """A refusal with the name of the request's field that caused it (empty: none)."""

    code: RefusalCode
    field: OutsideText = ""

    def describe(self) -> str:
        """Say the code and the field in a few words, which are safe to show."""
        return outside_text(f"{self.code.value} {self.field}".strip())
