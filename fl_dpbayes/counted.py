"""A number and what it counts, in the right form."""


def counted(number: int, noun: str) -> str:
    """Write "1 sample", "3 samples"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
