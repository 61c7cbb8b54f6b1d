"""What computes here: the processor's maker and model, and the library of its products.

Each is one line of text.
"""

import platform
import re
from functools import cache
from pathlib import Path

import torch

CPU_FILE = Path("/proc/cpuinfo")


@cache
def processor(device: torch.device) -> str:
    """Name a device's maker and model as the system does, or else its architecture."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = CPU_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    values: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), value.strip())
    keys = ("vendor_id", "model name", "CPU implementer", "CPU part")
    names = [values[key] for key in keys if key in values]
    return " ".join(names) or platform.processor() or platform.machine()


@cache
def product_library() -> str:
    """Name torch and the library that computes its products on a processor, with their versions."""
    build_settings = torch.__config__.show()
    names = re.findall(r"Math Kernel Library Version [\w.]+|BLAS_INFO=\w+", build_settings)
    return ", ".join([f"torch {torch.__version__}", *names[:1]])
