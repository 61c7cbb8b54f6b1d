"""What a process has on its device: arrays that were copied there, and its share of the memory."""

import sys
from functools import partial
from typing import Any

import numpy.typing as npt
import torch

from fl_dpbayes.files import Kept

# Records of the last sites; larger ones are copied for every message.
_UPLOADED = Kept(2**29)


def moved(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy an array to a device without waiting for what is computed there.

    Args:
        array: On the host.
        device: Where to copy it.

    Returns:
        The copy; on the host a tensor of the array's own memory.
    """
    # `from_dlpack` takes arrays that cannot be written, and several times as long.
    tensor = torch.from_numpy(array) if array.flags.writeable else torch.from_dlpack(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def uploaded(
    array: npt.NDArray[Any], device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Copy an array to a device.

    One that cannot be written is copied once, as long as it lives and there is room.

    Args:
        array: On the host.
        device: Where to copy it.
        dtype: Of the tensor; that of the array if None.

    Returns:
        The copy; on the host, if the type agrees, a tensor of the array's own memory.
    """
    copy = partial(torch.from_dlpack(array).to, device=device, dtype=dtype)
    if device.type == "cpu" or array.flags.writeable:
        return copy()
    key = (id(array), str(device), dtype)
    return _UPLOADED.get(key, copy, lambda tensor: tensor.nbytes, of=array)


def keep_share(device: torch.device) -> None:
    """Limit this process to the share of a GPU's memory that Ray counts for it."""
    ray: Any = sys.modules.get("ray")
    if device.type != "cuda" or ray is None or not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.worker.mode == ray.WORKER_MODE:
        share = min(1.0, float(context.get_assigned_resources().get("GPU", 1)))
        torch.cuda.set_per_process_memory_fraction(share, device.index)


def release_memory() -> None:
    """Give back to the GPU what torch holds for later use.

    The next message may be another process's.
    """
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
