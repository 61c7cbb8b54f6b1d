"""What computes here: the processor's maker and model, and the library of its products, as one line of text each."""

import platform
import re
from functools import cache
from pathlib import Path

import torch

CPU_FILE = Path("/proc/cpuinfo")


@cache
def processor(device: torch.device) -> str:
    """Name a device's maker and model, as the system does.

    Of a system that does not, the architecture.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = CPU_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        named.setdefault(key.strip(), value.strip())
    said = [
        named[key]
        for key in ("vendor_id", "model name", "CPU implementer", "CPU part")
        if key in named
    ]
    return " ".join(said) or platform.processor() or platform.machine()


@cache
def product_library() -> str:
    """Name torch and the library that computes its products on a processor, with their versions."""
    built = torch.__config__.show()
    names = re.findall(r"Math Kernel Library Version [\w.]+|BLAS_INFO=\w+", built)
    return ", ".join([f"torch {torch.__version__}", *names[:1]])
