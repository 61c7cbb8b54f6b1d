"""How files are written at once, sealed, kept and read within bounds.

What comes in: bytes, arrays and records from any room. What goes out: whole files or none, and
only what passed its checks.

Names are looked up when they are first asked for, so that a broken library stops nothing but what
needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_dpbayes.files.array_values import *
    from fl_dpbayes.files.atomic_file import *
    from fl_dpbayes.files.audit_chain import *
    from fl_dpbayes.files.audit_log import *
    from fl_dpbayes.files.kept import *
    from fl_dpbayes.files.record import *
    from fl_dpbayes.files.run_store import *
    from fl_dpbayes.files.sqlite_chain import *

_NAMES_OF_MODULES = {
    "array_values": ("check_values",),
    "atomic_file": (
        "PARTIAL",
        "file_sha256",
        "read_sealed_json",
        "replaced",
        "replaced_atomically",
        "write_atomically",
        "write_sealed_json",
        "written",
    ),
    "audit_chain": (
        "AuditChain",
        "read_chain_of_log",
    ),
    "audit_log": (
        "ASKED",
        "AuditLine",
        "AuditLogError",
        "audit_log_path",
        "held_still",
        "read_audit_log",
    ),
    "kept": (
        "KEPT",
        "Kept",
        "files_below",
    ),
    "record": (
        "Config",
        "JSONValue",
        "LEFT_OUT",
        "Message",
        "by_default",
        "canonical_json",
        "digest",
        "json_values",
    ),
    "sqlite_chain": (
        "BrokenChainError",
        "CHAIN_TABLE",
        "append_row",
        "connect",
        "read_rows",
    ),
    "run_store": (
        "REMEDY",
        "RunStore",
        "STORE_FILE",
        "StoredArrays",
        "refuse_earlier_run",
        "require_store",
    ),
}
_MODULES = {name: module for module, names in _NAMES_OF_MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
