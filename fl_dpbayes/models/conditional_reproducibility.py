"""Which way of computing matrix products is really in force in torch's MKL.

A variable of the environment asks for one; MKL may have been loaded before it was set.
"""

import ctypes
from pathlib import Path

import torch

# MKL_CBWR_BRANCH of mkl_service.h asks for the first of the settings; these are its answers.
_BRANCH = 1
_OFF = 1
_NAMES = {
    _OFF: "off",
    2: "AUTO",
    3: "COMPATIBLE",
    4: "SSE2",
    6: "SSSE3",
    7: "SSE4_1",
    8: "SSE4_2",
    9: "AVX",
    10: "AVX2",
    11: "AVX512_MIC",
    12: "AVX512",
    13: "AVX512_MIC_E1",
    14: "AVX512_E1",
}


def reproducible_branch() -> str:
    """Name the branch of MKL's conditional reproducibility in this process.

    Returns:
        AUTO, COMPATIBLE, AVX2 and the like; "off" where MKL was asked too late or not at all;
        "none" where torch's products are not MKL's, or it does not tell.
    """
    if not torch.backends.mkl.is_available():
        return "none"
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        get_setting = ctypes.CDLL(str(library)).mkl_serv_cbwr_get
    except (OSError, AttributeError):
        return "none"
    return _NAMES.get(get_setting(_BRANCH), "none")
