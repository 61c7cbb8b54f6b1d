"""Where a site computes."""

import os

import torch

from fl_dpbayes.config.site_file import SiteFile


def compute_device(site_file: SiteFile) -> torch.device:
    """Return the site file's device; `auto` is CUDA where present, else the CPU.

    Matrix products and convolutions are set to full float32: with the 10 bits of TF32 a clipped gradient could exceed
    the clip norm by a thousandth. CUDA is set to algorithms that give the same bits whenever they run.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    named = site_file.device
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if named == "auto" else named)
    if device.type == "cuda":
        # Read when the first matrix product runs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
    return device
