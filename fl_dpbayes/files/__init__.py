"""How files are written at once, sealed, kept and read within bounds.

What comes in: bytes, arrays and records from any room. What goes out: whole files or none, and
only what passed its checks.
"""

from fl_dpbayes.files.array_file import (
    DAMAGED,
    array_header,
    check_seal,
    check_types,
    check_values,
    read_arrays,
    seal,
    sealable,
    write_arrays,
)
from fl_dpbayes.files.atomic_file import (
    PARTIAL,
    file_sha256,
    read_sealed_json,
    replaced,
    replaced_atomically,
    sync_all,
    write_atomically,
    write_sealed_json,
    written,
)
from fl_dpbayes.files.audit_chain import AuditChain, read_chain_of_log
from fl_dpbayes.files.audit_log import (
    ASKED,
    AuditLine,
    AuditLogError,
    audit_log_path,
    held_still,
    read_audit_log,
)
from fl_dpbayes.files.journal import (
    JOURNAL_FILE,
    Entry,
    Journal,
    JournalMark,
    check_files,
    check_no_others,
    file_entry,
    listed_files,
)
from fl_dpbayes.files.kept import KEPT, Kept, files_below
from fl_dpbayes.files.record import (
    LEFT_OUT,
    Config,
    JSONValue,
    Message,
    by_default,
    canonical_json,
    digest,
    json_values,
)

__all__ = [
    "ASKED",
    "DAMAGED",
    "JOURNAL_FILE",
    "KEPT",
    "LEFT_OUT",
    "PARTIAL",
    "AuditChain",
    "AuditLine",
    "AuditLogError",
    "Config",
    "Entry",
    "JSONValue",
    "Journal",
    "JournalMark",
    "Kept",
    "Message",
    "array_header",
    "audit_log_path",
    "by_default",
    "canonical_json",
    "check_files",
    "check_no_others",
    "check_seal",
    "check_types",
    "check_values",
    "digest",
    "file_entry",
    "file_sha256",
    "files_below",
    "held_still",
    "json_values",
    "listed_files",
    "read_arrays",
    "read_audit_log",
    "read_chain_of_log",
    "read_sealed_json",
    "replaced",
    "replaced_atomically",
    "seal",
    "sealable",
    "sync_all",
    "write_arrays",
    "write_atomically",
    "write_sealed_json",
    "written",
]
