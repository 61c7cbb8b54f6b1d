"""`torch.func.vmap` over the records of a pass.

What it computes by shifted indices is kept inside a record.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.autograd_function import custom_function_call
from torch._ops import OpOverload, OpOverloadPacket
from torch.func import vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as trees

from fl_dpbayes.errors import UserError

_FILLS = {torch.index_fill, Tensor.index_fill, Tensor.index_fill_}
_RESIZES = {Tensor.resize_, Tensor.resize_as_, torch.resize_as_}
# Of operators in `torch.ops.aten`, the function that stands for each.
_FUNCTIONS = {
    "aten::index_fill": torch.index_fill,
    "aten::index_fill_": torch.index_fill,
    "aten::resize": torch.resize_as_,
    "aten::resize_": torch.resize_as_,
    "aten::resize_as": torch.resize_as_,
    "aten::resize_as_": torch.resize_as_,
    "aten::embedding": torch.embedding,
}
# The attribute of a tensor that says in which pass it was computed.
_PASS = "_fl_dpbayes_pass"


def mapped(function: Callable[..., Any], *columns: Any, in_dims: Any = 0) -> Any:
    """Apply a function to each record by itself.

    An index beyond an embedding's table gives NaN, since the shifted one may be that of another
    record's table.

    Args:
        function: Of one record.
        *columns: As of `vmap`.
        in_dims: As of `vmap`.

    Returns:
        As `vmap` does.

    Raises:
        UserError: The function calls `index_fill`, `resize_` or what has a rule of its own for
            `vmap`, or reads what it kept of an earlier pass.
    """

    def inside(*arguments: Any) -> Any:
        mode = _Inside()
        mode.mark(trees.tree_leaves(arguments))
        with mode:
            return function(*arguments)

    # Attention in one kernel would run once for each record.
    with sdpa_kernel(SDPBackend.MATH):
        return vmap(inside, in_dims=in_dims)(*columns)


class _Inside(TorchFunctionMode):
    """Replaces or refuses the functions in which `vmap` would let records meet.

    It also refuses what was computed in another pass: `vmap` would take it for this one's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pass = object()

    def mark(self, values: Iterable[Any]) -> None:
        """Note of tensors that they are of this pass."""
        for tensor in _tensors(values):
            setattr(tensor, _PASS, self._pass)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        self._check_of_this_pass((*args, *options.values()))
        if isinstance(func, OpOverload | OpOverloadPacket):
            func = _function(func)
        if func is custom_function_call:
            args = (self._within(args[0]), *args[1:])
        result = self._computed(func, args, options)
        self.mark([result])
        return result

    def _check_of_this_pass(self, values: Iterable[Any]) -> None:
        for tensor in _tensors(values):
            if getattr(tensor, _PASS, self._pass) is not self._pass and _is_of_records(tensor):
                raise UserError(
                    "the module keeps something of the records that it is given, so clipping per "
                    "record bounds nothing: compute every call from its records and parameters "
                    "alone"
                )

    def _within(self, function: Any) -> Any:
        """Return an autograd.Function that runs within the mode too, forwards and backwards.

        `vmap` gives it tensors of its own, so what it may keep of them is marked anew.
        """
        if not function.generate_vmap_rule:
            raise UserError(
                f"torch.func.vmap has no rule for {function.__name__} but its own, which would see "
                "all records: set generate_vmap_rule = True in it, and leave out its vmap"
            )

        def within(method: Callable[..., Any]) -> Any:
            def run(*arguments: Any) -> Any:
                with self:
                    self.mark(trees.tree_leaves(arguments))
                    for argument in arguments:
                        self.mark(getattr(argument, "saved_tensors", ()))
                    return method(*arguments)

            return staticmethod(run)

        methods = ("forward", "setup_context", "backward")
        members = {name: within(getattr(function, name)) for name in methods}
        return type(function.__name__, (function,), members)

    def _computed(self, func: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
        if func in _FILLS:
            raise UserError(
                "torch.func.vmap fills by index across records: leave out index_fill, and use "
                "torch.where or scatter"
            )
        if func in _RESIZES:
            raise UserError(
                f"torch.func.vmap cuts resized memory across records: leave out {func.__name__}, "
                "and use a slice or torch.nn.functional.pad"
            )
        if func is Tensor.__setitem__:
            return _assign(*args)
        if func is functional.embedding:
            indices, weight, *further = _positional(("input", "weight"), args, options)
            return _looked_up(
                lambda index: func(index, weight, *further, **options), indices, weight
            )
        if func is torch.embedding:
            weight, indices, *further = _positional(("weight", "indices"), args, options)
            return _looked_up(
                lambda index: func(weight, index, *further, **options), indices, weight
            )
        return func(*args, **options)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _is_of_records(tensor: Tensor) -> bool:
    """Say whether `vmap` holds a tensor as one of several records, below what `grad` wraps."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def _function(operator: OpOverload | OpOverloadPacket) -> Any:
    """Return what stands for an operator of `torch.ops`, itself as a rule.

    Refused is one that tells `vmap` itself how to compute all records at once.
    """
    packet = operator if isinstance(operator, OpOverloadPacket) else operator.overloadpacket
    name = packet._qualified_op_name
    if name.startswith("aten::"):
        return _FUNCTIONS.get(name, operator)
    overloads = [getattr(packet, overload).name() for overload in packet.overloads()]
    if any(map(_has_rule, overloads)):
        raise UserError(
            f"operator {name} has a rule of its own for torch.func.vmap, which would see all "
            "records: leave out register_vmap"
        )
    return operator


def _has_rule(operator: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator, "FuncTorchBatched")


def _positional(
    names: Sequence[str], arguments: Sequence[Any], options: dict[str, Any]
) -> list[Any]:
    """Move the named arguments from the options behind those that are given by position."""
    return [*arguments, *(options.pop(name) for name in names if name in options)]


def _assign(target: Tensor, index: Any, value: Any) -> None:
    indices = index if isinstance(index, tuple) else (index,)
    is_indexed = any(isinstance(part, Tensor) and part.dtype != torch.bool for part in indices)
    if is_indexed and not (isinstance(value, Tensor) and value.dim() > 0):
        # The gradient of writing one number is `index_fill`; that of writing many is not.
        value = torch.zeros_like(target[index]) + value
    target[index] = value


def _looked_up(look_up: Callable[[Tensor], Tensor], indices: Tensor, weight: Tensor) -> Tensor:
    is_inside = (indices >= 0) & (indices < weight.shape[0])
    rows = look_up(torch.where(is_inside, indices, 0))
    # A factor, and no choice between two values: the gradient is NaN as well, so the unit is left
    # out.
    factors = torch.where(is_inside, 1.0, torch.nan)
    return rows * factors[..., None].to(rows)
