"""Where a site computes."""

import torch

from fl_dpbayes.data.site_file import SiteFile


def compute_device(site_file: SiteFile) -> torch.device:
    """Return the site file's device; `auto` is CUDA where present, else the CPU.

    Matrix products and convolutions are set to full float32: with the 10 bits of TF32 a clipped gradient could exceed
    the clip norm by a thousandth.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if site_file.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(site_file.device)
