"""Follows the records of a pass through every operator that it calls: can two of them meet?

Nothing is computed: torch's fake tensors have no values, so what is found holds for all values.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fl_dpbayes.models.record_rules import (
    EMPTY,
    OF_SHAPES_ALONE,
    Call,
    Operand,
    Place,
    RecordsMeetError,
    alike_places,
    leaves,
    places_of,
)

_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


def meeting_place(
    module: nn.Module, shape: Sequence[int], compute: Callable[[nn.Module, Tensor], object]
) -> str | None:
    """Follow the records of one pass from its input to all of its results.

    Args:
        module: what the pass computes with; a copy is used, whose parameters have no values either.
        shape: of the input, N >= 2 first; its type and device are those of the parameters.
        compute: the pass: copy, rows -> tensors (N, ...), one or lists of them; called once.

    Returns:
        None if each row of every result follows from the same row of the input and from constants;
        else where rows may meet, or what cannot be followed, in a few words.
    """
    # It takes a while to import, and shipped models do not need it.
    from torch._subclasses.fake_tensor import FakeTensorMode

    copied, like = copy.deepcopy(module), next(module.parameters())
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        rows = torch.empty(tuple(shape), dtype=like.dtype, device=like.device)
        for layer in copied.modules():
            for name, value in layer.named_parameters(recurse=False):
                empty = nn.Parameter(torch.empty_like(value), value.requires_grad)
                layer._parameters[name] = empty
    following, failures = _Following(rows, copied.parameters()), _Failures()
    try:
        with torch.autograd.set_multithreading_enabled(False), fake, following, failures:
            results = list(leaves(compute(copied, rows)))
        # Code that goes another way after a failure may not fail on rows that have values.
        for failure in failures.seen:
            raise failure
        for result in results:
            operand = following.operand(result)
            if operand.shape[:1] != (len(rows),) or not operand.has(Place(0)):
                return "a result that is not one row for each record"
    except RecordsMeetError as error:
        return str(error)
    except Exception as error:
        # What asks for a value, for one.
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return None


class _Failures(TorchFunctionMode):
    """Notes what fails in torch, even where the code that called it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Exception] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA:
            raise self._noted(RecordsMeetError("an assignment to .data"))
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            raise self._noted(error) from None

    def _noted(self, error: Exception) -> Exception:
        self.seen.append(error)
        return error


class _Following(TorchDispatchMode):
    """Knows, while it lasts, where the records of each tensor lie."""

    def __init__(self, rows: Tensor, constants: Iterable[Tensor]) -> None:
        super().__init__()
        self._count = len(rows)
        # With the tensors themselves, so that no other gets the number of one that is gone.
        self._known = {id(value): (value, Operand(tuple(value.shape))) for value in constants}
        self._known[id(rows)] = (rows, Operand(tuple(rows.shape), Place(0)))

    def operand(self, value: object) -> Operand:
        """Return what is known of a tensor.

        Raises RecordsMeetError if nobody can say where it comes from.
        """
        from torch._subclasses.fake_tensor import FakeTensor

        if not isinstance(value, Tensor):
            raise RecordsMeetError(f"a result of type {type(value).__name__}")
        if id(value) in self._known:
            return self._known[id(value)][1]
        if isinstance(value, FakeTensor):
            raise RecordsMeetError("a tensor that was made where it cannot be followed")
        # What has values does not come from rows that have none.
        return Operand(tuple(value.shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.prim.device.default:
            return result
        outputs = list(leaves(result))
        arguments = func._schema.arguments
        given = dict(zip((each.name for each in arguments), args, strict=False)) | (kwargs or {})
        described = {
            each.name: self._described(given.get(each.name, each.default_value))
            for each in arguments
        }
        written = [
            each.name
            for each in arguments
            if each.alias_info is not None and each.alias_info.is_write
        ]
        name = func._schema.name.removeprefix("aten::")
        shapes = [tuple(each.shape) if isinstance(each, Tensor) else None for each in outputs]
        call = Call(
            func,
            name if name.startswith("__") else name.rstrip("_"),
            described,
            shapes,
            self._count,
        )
        for tensor, operand in zip(outputs, self._results(call, written), strict=True):
            if operand is not None:
                self._known[id(tensor)] = (tensor, operand)
        return result

    def _described(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.operand(value)
        if isinstance(value, list | tuple):
            return [self._described(each) for each in value]
        return value

    def _results(self, call: Call, written: Sequence[str]) -> list[Operand | None]:
        if torch.Tag.nondeterministic_seeded in call.operator.tags and call["dropout_p"] != 0:
            raise RecordsMeetError(f"operator {call.operator}, which draws random numbers")
        holds = any(operand.place is not None for operand in call.operands())
        if holds and call.name not in OF_SHAPES_ALONE | EMPTY:
            places = places_of(call)
            if written and any(
                operand.place != place for operand in call.operands(*written) for place in places
            ):
                raise call.meet()
            paired = zip(call.shapes, places, strict=True)
            return [None if shape is None else Operand(shape, place) for shape, place in paired]
        if written:
            # What else is a view of this memory is not followed.
            raise RecordsMeetError(f"operator {call.operator}, which writes into a constant")
        numbered = enumerate(call.shapes)
        return [
            None if shape is None else Operand(shape, None, alike_places(call, number))
            for number, shape in numbered
        ]
