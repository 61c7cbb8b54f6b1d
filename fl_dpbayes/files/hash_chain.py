"""How an entry of a log is bound to all entries before it. It needs nothing but Python."""

import hashlib

FIRST_HEAD = "0" * 64


def chain_head(previous: str, text: str) -> str:
    """Return the hash of an entry and of all before it.

        head_n = SHA-256(head_(n-1), line feed, text_n)

    Args:
        previous: The head before it, `FIRST_HEAD` for the first entry.
        text: What the entry says.

    Returns:
        64 hexadecimal digits.
    """
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()
