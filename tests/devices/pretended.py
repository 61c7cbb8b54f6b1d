"""A device that is pretended: values stay on the host, and each storage has a note of where it would lie.

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

HOST, CUDA = torch.device("cpu"), torch.device("cuda", 0)
MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)
WAITS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "equal")


class TwoDevicesError(BaseException):
    """One operator was given tensors of two devices.

    Code that tries another way after an error must not hide it.
    """


@dataclass
class Seen:
    """What was asked of a pretended device.

    `places`: storages that lie there, by address; a weak reference keeps an address from being used
    again. `moves`: the direction and number of entries of each copy between host and device.
    `waits`: where the host asked for a value. `within`: where a call's tensors lie, while it runs:
    what torch itself makes on the way, it makes there.
    """

    places: dict[int, tuple[StorageWeakRef, torch.device]] = field(default_factory=dict)
    moves: list[tuple[str, int]] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)
    within: torch.device = HOST

    def place(self, tensor: torch.Tensor) -> torch.device:
        """Return where a tensor would lie."""
        while functorch.is_functorch_wrapped_tensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        known = self.places.get(tensor.untyped_storage()._cdata)
        return HOST if known is None else known[1]

    def put(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Note where a tensor's storage would lie."""
        while functorch.is_functorch_wrapped_tensor(tensor):
            tensor = functorch.get_unwrapped(tensor)
        storage = tensor.untyped_storage()
        if device.type == "cuda":
            self.places[storage._cdata] = (StorageWeakRef(storage), CUDA)
        else:
            self.places.pop(storage._cdata, None)


class _Operators(TorchDispatchMode):
    """Refuses operators on two devices, and notes where results lie."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        remote = [each for each in tensors if self._seen.place(each).type == "cuda"]
        # A number of the host, without an axis, may meet tensors of a device.
        here = [each for each in tensors if self._seen.place(each).type == "cpu" and each.dim() > 0]
        copies = func is torch.ops.aten.copy_.default
        if remote and here and not copies:
            shapes = [tuple(each.shape) for each in here]
            raise TwoDevicesError(
                f"{func} has tensors of a GPU and of the host, the latter of shapes {shapes}"
            )
        if remote and here:
            direction = f"to {self._seen.place(args[0]).type}"
            self._seen.moves.append((direction, args[0].numel()))
        result = func(*args, **kwargs)
        made_there = not tensors and self._seen.within.type == "cuda"
        if (remote or made_there) and not copies:
            for each in tree_leaves(result):
                if isinstance(each, torch.Tensor):
                    self._seen.put(each, CUDA)
        return result


class _Calls(TorchFunctionMode):
    """Answers what code asks of devices, and turns moves between them into copies on the host."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, seen = dict(kwargs or {}), self._seen
        if func == torch.Tensor.device.__get__:
            return seen.place(args[0])
        if func == torch.Tensor.is_cuda.__get__:
            return seen.place(args[0]).type == "cuda"
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.numpy and seen.place(args[0]).type == "cuda":
            raise TypeError("a tensor of a GPU has no NumPy array: copy it to the host first")
        name = getattr(func, "__name__", "")
        remote = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        remote = [each for each in remote if seen.place(each).type == "cuda"]
        if func is torch.device or name == "_parse_to":
            # What names a device, and what reads the arguments of a module's `to`, touches no
            # tensor.
            return func(*args, **kwargs)
        if name in WAITS and remote:
            seen.waits.append(name)
        wanted = _wanted(func, args, kwargs, seen)
        here = tree_map(_on_host, (args, kwargs))
        if func in MOVES and wanted is not None:
            return self._moved(args[0], wanted, func, *here)
        before = seen.within
        seen.within = CUDA if remote else HOST
        try:
            result = func(*here[0], **here[1])
        finally:
            seen.within = before
        target = wanted or (CUDA if remote else None)
        given = {id(each) for each in tree_leaves((args, kwargs))}
        if target is not None:
            for each in tree_leaves(result):
                if isinstance(each, torch.Tensor) and id(each) not in given:
                    seen.put(each, target)
        return result

    def _moved(
        self, tensor: torch.Tensor, target: torch.device, func: Any, args: Any, kwargs: Any
    ) -> torch.Tensor:
        before = self._seen.place(tensor)
        given = [each for each in args[1:] if not isinstance(each, torch.Tensor)]
        others = [each for each in args[1:] if isinstance(each, torch.Tensor)]
        moved = (
            tensor.to(others[0].dtype)
            if others
            else tensor.to(*given, **kwargs)
            if func is MOVES[0]
            else tensor
        )
        if before.type == target.type:
            return moved
        self._seen.moves.append((f"to {target.type}", tensor.numel()))
        moved = moved.clone()
        self._seen.put(moved, target)
        return moved


def _wanted(func: Any, args: Any, kwargs: Mapping[str, Any], seen: Seen) -> torch.device | None:
    """Return the device that a call names, None where it names none."""
    if func is torch.Tensor.cpu:
        return HOST
    if func is torch.Tensor.cuda:
        return CUDA
    named = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.device)]
    given = kwargs.get("device")
    if isinstance(given, str):
        named.append(torch.device(given))
    if func is torch.Tensor.to:
        texts = [torch.device(each) for each in args[1:] if isinstance(each, str)]
        likes = [seen.place(each) for each in args[1:] if isinstance(each, torch.Tensor)]
        named += texts + likes
    return named[0] if named else None


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.device):
        return HOST
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


@contextmanager
def pretended() -> Iterator[Seen]:
    """Pretend that there is one GPU, as long as the context lasts."""
    seen = Seen()
    with _Operators(seen), _Calls(seen):
        yield seen
