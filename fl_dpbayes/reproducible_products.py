"""MKL's conditional reproducibility: equal rows of a product get equal bits wherever they lie.

Without it MKL chooses its way through a small product by where each row starts, on some makers'
processors. MKL reads the variable once, at its first product in a process.
"""

import os

VARIABLE = "MKL_CBWR"


def ask_for_reproducible_products() -> None:
    """Set MKL_CBWR=AUTO for this process and those that it starts.

    A value that somebody chose is kept.

    AUTO is MKL's fastest way that is reproducible. COMPATIBLE, AVX2 and the like are so too.
    Source: Intel, oneAPI Math Kernel Library Developer Guide, "Obtaining Numerically Reproducible
    Results".
    """
    if not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = "AUTO"
