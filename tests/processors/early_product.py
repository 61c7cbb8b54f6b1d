"""A pytest plugin: as in a notebook that computed before it imported fl_dpbayes, without MKL_CBWR.

MKL reads the variable at its first product in a process. What is set later changes nothing.
"""

import os
import sys

import torch

if "fl_dpbayes" in sys.modules:
    raise RuntimeError("fl_dpbayes was imported before this plugin: name it first, by -p")
os.environ.pop("MKL_CBWR", None)
torch.ones(64, 64) @ torch.ones(64, 64)
