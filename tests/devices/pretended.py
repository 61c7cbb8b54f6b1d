"""A pretended device: values stay on the host, and each storage has a note of where it would lie.

torch's own fake tensors cannot be differentiated where torch was built for CUDA and no GPU is
there. Here every operator, of backward passes and under `vmap` too, runs on the host and is refused
where real devices would refuse it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

HOST = torch.device("cpu")
CUDA = torch.device("cuda", 0)
MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)
WAITS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "equal")


class TwoDevicesError(BaseException):
    """One operator was given tensors of two devices.

    Code that tries another way after an error must not hide it.
    """


@dataclass
class DeviceLog:
    """What was asked of a pretended device.

    Attributes:
        places: Storages that lie there, by address; a weak reference keeps an address from being
            used again.
        moves: Direction and number of entries of each copy between host and device.
        waits: Names of the functions by which the host asked for a value.
        within: Where a call's tensors lie, while it runs: what torch itself makes on the way, it
            makes there.
    """

    places: dict[int, tuple[StorageWeakRef, torch.device]] = field(default_factory=dict)
    moves: list[tuple[str, int]] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    within: torch.device = HOST

    def place(self, tensor: torch.Tensor) -> torch.device:
        """Return where a tensor would lie."""
        entry = self.places.get(_unwrapped(tensor).untyped_storage()._cdata)
        return HOST if entry is None else entry[1]

    def put(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Note where a tensor's storage would lie."""
        storage = _unwrapped(tensor).untyped_storage()
        if device.type == "cuda":
            self.places[storage._cdata] = (StorageWeakRef(storage), CUDA)
        else:
            self.places.pop(storage._cdata, None)

    def remote(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors that would lie on the device."""
        return [tensor for tensor in tensors if self.place(tensor).type == "cuda"]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


class _Operators(TorchDispatchMode):
    """Refuses operators on two devices, and notes where results lie."""

    def __init__(self, log: DeviceLog) -> None:
        super().__init__()
        self._log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        remote = self._log.remote(tensors)
        # A number of the host, without an axis, may meet tensors of a device.
        local = [
            tensor
            for tensor in tensors
            if self._log.place(tensor).type == "cpu" and tensor.dim() > 0
        ]
        copies = func is torch.ops.aten.copy_.default
        if remote and local and not copies:
            shapes = [tuple(tensor.shape) for tensor in local]
            raise TwoDevicesError(
                f"{func} has tensors of a GPU and of the host, the latter of shapes {shapes}"
            )
        if remote and local:
            direction = f"to {self._log.place(args[0]).type}"
            self._log.moves.append((direction, args[0].numel()))
        result = func(*args, **kwargs)
        is_made_there = not tensors and self._log.within.type == "cuda"
        if (remote or is_made_there) and not copies:
            for tensor in _tensors(result):
                self._log.put(tensor, CUDA)
        return result


class _Calls(TorchFunctionMode):
    """Answers what code asks of devices, and turns moves between them into copies on the host."""

    def __init__(self, log: DeviceLog) -> None:
        super().__init__()
        self._log = log

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        log = self._log
        if func == torch.Tensor.device.__get__:
            return log.place(args[0])
        if func == torch.Tensor.is_cuda.__get__:
            return log.place(args[0]).type == "cuda"
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.numpy and log.place(args[0]).type == "cuda":
            raise TypeError("a tensor of a GPU has no NumPy array: copy it to the host first")
        name = getattr(func, "__name__", "")
        remote = log.remote(_tensors((args, kwargs)))
        if func is torch.device or name == "_parse_to":
            # What names a device, and what reads the arguments of a module's `to`, touches no
            # tensor.
            return func(*args, **kwargs)
        if name in WAITS and remote:
            log.waits.append(name)
        target = _named_device(func, args, kwargs, log)
        host_args, host_kwargs = tree_map(_on_host, (args, kwargs))
        if func in MOVES and target is not None:
            return self._moved(args[0], target, func, host_args, host_kwargs)
        before = log.within
        log.within = CUDA if remote else HOST
        try:
            result = func(*host_args, **host_kwargs)
        finally:
            log.within = before
        result_device = target or (CUDA if remote else None)
        argument_ids = {id(value) for value in tree_leaves((args, kwargs))}
        if result_device is not None:
            for tensor in _tensors(result):
                if id(tensor) not in argument_ids:
                    log.put(tensor, result_device)
        return result

    def _moved(
        self, tensor: torch.Tensor, target: torch.device, func: Any, args: Any, kwargs: Any
    ) -> torch.Tensor:
        before = self._log.place(tensor)
        options = [value for value in args[1:] if not isinstance(value, torch.Tensor)]
        likes = [value for value in args[1:] if isinstance(value, torch.Tensor)]
        if likes:
            moved = tensor.to(likes[0].dtype)
        elif func is torch.Tensor.to:
            moved = tensor.to(*options, **kwargs)
        else:
            moved = tensor
        if before.type == target.type:
            return moved
        self._log.moves.append((f"to {target.type}", tensor.numel()))
        moved = moved.clone()
        self._log.put(moved, target)
        return moved


def _named_device(
    func: Any, args: Any, kwargs: Mapping[str, Any], log: DeviceLog
) -> torch.device | None:
    """Return the device that a call names, None where it names none."""
    if func is torch.Tensor.cpu:
        return HOST
    if func is torch.Tensor.cuda:
        return CUDA
    devices = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.device)]
    option = kwargs.get("device")
    if isinstance(option, str):
        devices.append(torch.device(option))
    if func is torch.Tensor.to:
        devices += [torch.device(value) for value in args[1:] if isinstance(value, str)]
        devices += [log.place(value) for value in args[1:] if isinstance(value, torch.Tensor)]
    return devices[0] if devices else None


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return HOST
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


@contextmanager
def pretended() -> Iterator[DeviceLog]:
    """Pretend that there is one GPU, as long as the context lasts."""
    log = DeviceLog()
    with _Operators(log), _Calls(log):
        yield log
