"""Numbers in words: a number and what it counts, and a place in a row."""


def counted(number: int, noun: str) -> str:
    """Write "1 sample", "3 samples"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ordinal(number: int) -> str:
    """Write "1st", "2nd", "3rd", "11th"."""
    teens = 10 < number % 100 < 14
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
