"""Follows the records of a pass through every operator that it calls: can two of them meet?

Nothing is computed: torch's fake tensors have no values, so the answer holds for all values.
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
        module: What the pass computes with; a copy is used, whose parameters have no values either.
        shape: Of the input, N >= 2 first; its type and device are those of the parameters.
        compute: The pass: copy, rows -> tensors (N, ...), one or lists of them; called once.

    Returns:
        None if each row of every result follows from the same row of the input and from constants;
        else where rows may meet, or what cannot be followed, in a few words.
    """
    # It takes a while to import, and shipped models do not need it.
    from torch._subclasses.fake_tensor import FakeTensorMode

    parameter = next(module.parameters())
    probe = copy.deepcopy(module)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        rows = torch.empty(tuple(shape), dtype=parameter.dtype, device=parameter.device)
        _empty_parameters(probe)
    following = _Following(rows, constants=probe.parameters())
    failures = _Failures()
    try:
        with torch.autograd.set_multithreading_enabled(False), fake, following, failures:
            results = list(leaves(compute(probe, rows)))
        # Code that goes another way after a failure may not fail on rows that have values.
        for failure in failures.noted:
            raise failure
        for result in results:
            operand = following.operand(result)
            if operand.shape[:1] != (len(rows),) or not operand.has(Place(0)):
                return "a result that is not one row for each record"
    except RecordsMeetError as error:
        return str(error)
    except Exception as error:
        # For instance of code that asks for a value.
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return None


def _empty_parameters(module: nn.Module) -> None:
    """Replace a module's parameters by fake ones, which have no values."""
    for layer in module.modules():
        for name, value in layer.named_parameters(recurse=False):
            empty = nn.Parameter(torch.empty_like(value), value.requires_grad)
            layer._parameters[name] = empty


class _Failures(TorchFunctionMode):
    """Notes what fails in torch, even where the code that called it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[Exception] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_DATA:
            raise self._note(RecordsMeetError("an assignment to .data"))
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            raise self._note(error) from None

    def _note(self, error: Exception) -> Exception:
        self.noted.append(error)
        return error


class _Following(TorchDispatchMode):
    """Knows, while it lasts, where the records of each tensor lie."""

    def __init__(self, rows: Tensor, constants: Iterable[Tensor]) -> None:
        super().__init__()
        self._count = len(rows)
        # With the tensors themselves, so that no new tensor gets the id of one that is gone.
        self._operands = {id(value): (value, Operand(tuple(value.shape))) for value in constants}
        self._operands[id(rows)] = (rows, Operand(tuple(rows.shape), Place(0)))

    def operand(self, value: object) -> Operand:
        """Return what is known of a tensor.

        Raises:
            RecordsMeetError: Nobody can say where it comes from.
        """
        from torch._subclasses.fake_tensor import FakeTensor

        if not isinstance(value, Tensor):
            raise RecordsMeetError(f"a result of type {type(value).__name__}")
        if id(value) in self._operands:
            return self._operands[id(value)][1]
        if isinstance(value, FakeTensor):
            raise RecordsMeetError("a tensor that was made where it cannot be followed")
        # What has values does not come from rows that have none.
        return Operand(tuple(value.shape))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.prim.device.default:
            return result
        outputs = list(leaves(result))
        schema = func._schema.arguments
        names = (argument.name for argument in schema)
        values = dict(zip(names, args, strict=False)) | (kwargs or {})
        arguments = {
            argument.name: self._described(values.get(argument.name, argument.default_value))
            for argument in schema
        }
        written = [
            argument.name
            for argument in schema
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        name = func._schema.name.removeprefix("aten::")
        call = Call(
            operator=func,
            name=name if name.startswith("__") else name.rstrip("_"),
            arguments=arguments,
            shapes=[tuple(part.shape) if isinstance(part, Tensor) else None for part in outputs],
            count=self._count,
        )
        for tensor, operand in zip(outputs, self._results(call, written), strict=True):
            if operand is not None:
                self._operands[id(tensor)] = (tensor, operand)
        return result

    def _described(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.operand(value)
        if isinstance(value, list | tuple):
            return [self._described(part) for part in value]
        return value

    def _results(self, call: Call, written: Sequence[str]) -> list[Operand | None]:
        """Return what is known of a call's results; `written`: arguments that it writes into."""
        if torch.Tag.nondeterministic_seeded in call.operator.tags and call["dropout_p"] != 0:
            raise RecordsMeetError(f"operator {call.operator}, which draws random numbers")
        has_records = any(operand.place is not None for operand in call.operands())
        if has_records and call.name not in OF_SHAPES_ALONE | EMPTY:
            places = places_of(call)
            for operand in call.operands(*written) if written else []:
                if any(operand.place != place for place in places):
                    raise call.meeting_error()
            return [
                None if shape is None else Operand(shape, place)
                for shape, place in zip(call.shapes, places, strict=True)
            ]
        if written:
            # Other views of this memory are not followed.
            raise RecordsMeetError(f"operator {call.operator}, which writes into a constant")
        return [
            None if shape is None else Operand(shape, alike=alike_places(call, number))
            for number, shape in enumerate(call.shapes)
        ]
