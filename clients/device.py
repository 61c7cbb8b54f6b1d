"""Where a site computes."""

import torch

from fl_dpbayes.data.site_file import SiteFile


def compute_device(site_file: SiteFile) -> torch.device:
    """Return the site file's device; `auto` is CUDA where present, else the CPU."""
    if site_file.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(site_file.device)
