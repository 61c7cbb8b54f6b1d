"""Where torch's operators put the records of a pass: one rule for each, its arguments counted in.

A rule may refuse too often, which costs time. It must never accept an operator whose result for one
record follows from another record. What has no rule counts as an operator where records meet.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Place:
    """Where the N records of a tensor lie: index i of dimension `dim` belongs to record (i // inner) % N."""

    dim: int
    inner: int = 1


@dataclass(frozen=True)
class Operand:
    """What is known of a tensor.

    `place`: where its records lie; None for a constant. `alike`: of a constant, places at which it
    has the same values for every record, as if it held records.
    """

    shape: tuple[int, ...]
    place: Place | None = None
    alike: frozenset[Place] = frozenset()

    def has(self, place: Place) -> bool:
        """Say whether a record's part of a place is its own, or the same for each record."""
        return place in self.alike if self.place is None else self.place == place


class RecordsMeetError(Exception):
    """Records may meet; the text names where."""


@dataclass(frozen=True)
class Call:
    """One call of an operator.

    `name`: the operator's, without overload and without the mark of writing in place. `arguments`:
    by name, tensors as operands, defaults included. `shapes`: of what it returned, None for what is
    no tensor. `count`: N >= 2.
    """

    operator: Any
    name: str
    arguments: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...] | None]
    count: int

    def __getitem__(self, argument: str) -> Any:
        """Return an argument; None if the operator has none of that name."""
        return self.arguments.get(argument)

    def operands(self, *names: str) -> list[Operand]:
        """Return the tensors among some arguments, or among all if none is named."""
        chosen = [self[name] for name in names or self.arguments]
        return [value for value in leaves(chosen) if isinstance(value, Operand)]

    def others(self, *names: str) -> list[Operand]:
        """Return the tensors among all arguments but some."""
        rest = [name for name in self.arguments if name not in names]
        return self.operands(*rest) if rest else []

    def meet(self) -> RecordsMeetError:
        """Return the error that names this call."""
        shapes = ", ".join(str(list(operand.shape)) for operand in self.operands())
        return RecordsMeetError(f"operator {self.operator} on shapes {shapes}")


# Where each result of a call has its records, None for a constant.
Places = Sequence[Place | None]
Rule = Callable[[Call], Places]


def leaves(value: object) -> Iterator[Any]:
    """Yield what is in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def places_of(call: Call) -> Places:
    """Return where the results of a call have their records, at least one operand holding some.

    Raises RecordsMeetError if records may meet.
    """
    rule = RULES.get(call.name)
    if rule is None and torch.Tag.pointwise in call.operator.tags:
        rule = _entry_by_entry
    if rule is None:
        raise RecordsMeetError(f"operator {call.operator}, for which there is no rule")
    places = rule(call)
    for shape, place in zip(call.shapes, places, strict=True):
        if place is not None and (
            shape is None or shape[place.dim] % (call.count * place.inner) != 0
        ):
            raise call.meet()
    return places


def alike_places(call: Call, output: int) -> frozenset[Place]:
    """Return at which places a result without records has the same values for every record."""
    shape = call.shapes[output] or ()
    if call.name in OF_SHAPES_ALONE:
        return frozenset(_everywhere(shape, range(len(shape)), call.count))
    found = set[Place]()
    if call.name == "expand":
        before = _shape(call, "self")
        added = len(shape) - len(before)
        stretched = [dim for dim in range(len(shape)) if dim < added or before[dim - added] == 1]
        found |= _everywhere(shape, stretched, call.count)
    for operand in call.operands():
        for place in operand.alike:
            # Equal parts are records that happen to be equal.
            arguments = _with_records(dict(call.arguments), operand, replace(operand, place=place))
            try:
                result = places_of(replace(call, arguments=arguments))[output]
            except RecordsMeetError:
                continue
            if result is not None:
                found.add(result)
    return frozenset(found)


def _everywhere(shape: Sequence[int], dims: Sequence[int], count: int) -> set[Place]:
    blocks = {dim: shape[dim] // count for dim in dims if shape[dim] % count == 0}
    return {
        Place(dim, inner)
        for dim, most in blocks.items()
        for inner in range(1, most + 1)
        if most % inner == 0
    }


def _with_records(value: Any, operand: Operand, holding: Operand) -> Any:
    if isinstance(value, dict):
        return {name: _with_records(each, operand, holding) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_records(each, operand, holding) for each in value]
    return holding if value is operand else value


def _shape(call: Call, name: str) -> tuple[int, ...]:
    shape: tuple[int, ...] = call[name].shape
    return shape


def _same(call: Call, place: Place) -> Places:
    return [place if shape is not None else None for shape in call.shapes]


def _shared(call: Call, *names: str) -> Place:
    """Return the one place where some arguments have the records; no other may hold any."""
    operands = call.operands(*names)
    place = next((operand.place for operand in operands if operand.place is not None), None)
    if place is None or any(operand.place is not None for operand in call.others(*names)):
        raise call.meet()
    if not all(operand.has(place) for operand in operands):
        raise call.meet()
    if len({operand.shape[place.dim] for operand in operands}) > 1:
        raise call.meet()
    return place


def _dims(value: int | Sequence[int] | None, rank: int) -> set[int]:
    """Return dimensions counted from the front; all where none is given."""
    given = [value] if isinstance(value, int) else list(value or range(rank))
    return {dim % rank for dim in given} if rank else set()


def _fits(operand: Operand, place: Place, shape: Sequence[int]) -> bool:
    """Say whether an operand, broadcast to a shape, fits records at a place of that shape."""
    own = replace(place, dim=place.dim - len(shape) + len(operand.shape))
    if operand.place is None and (own.dim < 0 or operand.shape[own.dim] == 1):
        return True
    return own.dim >= 0 and operand.shape[own.dim] == shape[place.dim] and operand.has(own)


def _entry_by_entry(call: Call) -> Places:
    shape = call.shapes[0] or ()
    holding = next(operand for operand in call.operands() if operand.place is not None)
    assert holding.place is not None
    place = replace(holding.place, dim=holding.place.dim + len(shape) - len(holding.shape))
    if place.dim >= len(shape) or not all(
        _fits(operand, place, shape) for operand in call.operands()
    ):
        raise call.meet()
    return _same(call, place)


def _along(*names: str, dim: str = "dim") -> Rule:
    """What works along dimensions that are not the records'."""

    def rule(call: Call) -> Places:
        place = _shared(call, *names)
        if place.dim in _dims(call[dim], len(call.operands(*names)[0].shape)):
            raise call.meet()
        return _same(call, place)

    return rule


def _reduces(call: Call) -> Places:
    place = _shared(call, "self")
    dims = _dims(call["dim"], len(_shape(call, "self")))
    if place.dim in dims:
        raise call.meet()
    gone = 0 if call["keepdim"] else sum(dim < place.dim for dim in dims)
    return _same(call, replace(place, dim=place.dim - gone))


def _last(dims: int, *names: str) -> Rule:
    """What works within the last dimensions, for each index of those in front by itself."""

    def rule(call: Call) -> Places:
        place = _shared(call, *names)
        if place.dim >= len(call.operands(*names)[0].shape) - dims:
            raise call.meet()
        return _same(call, place)

    return rule


def _product(left: str, right: str, result: str, *names: str) -> Rule:
    """What sums products over the letters that the result lacks; all else is added, broadcast."""

    def rule(call: Call) -> Places:
        factors = list(zip(call.operands(*names), (left, right), strict=True))
        held = [
            (operand.place, letters) for operand, letters in factors if operand.place is not None
        ]
        if not held:
            raise call.meet()
        place, letters = held[0]
        letter = letters[place.dim]
        for operand, own in factors:
            there = replace(place, dim=own.find(letter))
            if (there.dim >= 0 or operand.place is not None) and not operand.has(there):
                raise call.meet()
        if letter not in result:
            raise call.meet()
        after = replace(place, dim=result.index(letter))
        if not all(_fits(operand, after, call.shapes[0] or ()) for operand in call.others(*names)):
            raise call.meet()
        return _same(call, after)

    return rule


def _viewed(call: Call) -> Places:
    place, before, after = _shared(call, "self"), _shape(call, "self"), call.shapes[0] or ()
    if math.prod(before) != math.prod(after):
        raise call.meet()
    # Entry e, counted row by row, is record (e // step) % N.
    step = place.inner * math.prod(before[place.dim + 1 :])
    for dim, size in enumerate(after):
        behind = math.prod(after[dim + 1 :])
        if behind and step % behind == 0 and size and size % (call.count * (step // behind)) == 0:
            return [Place(dim, step // behind)]
    raise call.meet()


def _reordered(order: Callable[[Call, int], Sequence[int]]) -> Rule:
    def rule(call: Call) -> Places:
        place, rank = _shared(call, "self"), len(_shape(call, "self"))
        dims = [dim % rank for dim in order(call, rank)]
        return _same(call, replace(place, dim=dims.index(place.dim)))

    return rule


def _swapped(first: int, second: int, rank: int) -> list[int]:
    dims = list(range(rank))
    dims[first] = second % rank
    dims[second] = first % rank
    return dims


def _inserted(names: str, rank: Callable[[Call], int]) -> Rule:
    """What puts a dimension in; `rank`: of the result."""

    def rule(call: Call) -> Places:
        place = _shared(call, names)
        return _same(call, replace(place, dim=place.dim + (call["dim"] % rank(call) <= place.dim)))

    return rule


def _removed(call: Call) -> Places:
    place, shape = _shared(call, "self"), _shape(call, "self")
    dims = _dims(call["dim"], len(shape))
    if call.name == "squeeze":
        dims = {dim for dim in dims if shape[dim] == 1}
    if place.dim in dims:
        raise call.meet()
    return _same(call, replace(place, dim=place.dim - sum(dim < place.dim for dim in dims)))


def _sliced(call: Call) -> Places:
    place, shape = _shared(call, "self"), _shape(call, "self")
    whole = call.shapes[0] == shape and call["step"] == 1
    if place.dim == call["dim"] % len(shape) and not whole:
        raise call.meet()
    return _same(call, place)


def _stretched(call: Call) -> Places:
    """What is repeated along other dimensions than the records'."""
    place, before, after = _shared(call, "self"), _shape(call, "self"), call.shapes[0] or ()
    there = replace(place, dim=place.dim + len(after) - len(before))
    if after[there.dim] != before[place.dim]:
        raise call.meet()
    return _same(call, there)


def _padded(call: Call) -> Places:
    return _last(len(call["pad"]) // 2, "self")(call)


def _looked_up(call: Call) -> Places:
    if call["weight"].place is not None:
        raise call.meet()
    return _same(call, _shared(call, "indices"))


def _indexed(call: Call) -> Places:
    """One index in brackets, of constants elsewhere than at the records, or of records into a constant."""
    (position, index), *more = [
        (at, each) for at, each in enumerate(call["indices"]) if each is not None
    ]
    if more:
        raise call.meet()
    if call["self"].place is None:
        place = _shared(call, "indices")
        return [replace(place, dim=place.dim + position)]
    place = _shared(call, "self")
    if place.dim == position:
        raise call.meet()
    return [replace(place, dim=place.dim + (len(index.shape) - 1 if position < place.dim else 0))]


def _first(*names: str, but: Callable[[Call], bool] = lambda _: False, constant: int = 0) -> Rule:
    """What works on each index of the first dimension by itself.

    `but`: which calls it does not hold for. `constant`: how many of the last results are constants
    or not given.
    """

    def rule(call: Call) -> Places:
        place = _shared(call, *names)
        if place.dim != 0 or but(call):
            raise call.meet()
        held = len(call.shapes) - constant
        return [*_same(call, place)[:held], *[None] * constant]

    return rule


def _sums_over_records(call: Call) -> bool:
    """Say whether gradients of parameters are asked for too, which are sums over records."""
    return any(call["output_mask"][1:])


def _of_batches(call: Call) -> bool:
    return bool(call["training"] or call["train"])


def _unbatched(call: Call) -> bool:
    return len(_shape(call, "input")) != len(_shape(call, "weight"))


def _normalised(call: Call) -> Places:
    return _last(len(call["normalized_shape"]), "input")(call)


def _normalised_backward(call: Call) -> Places:
    if _sums_over_records(call):
        raise call.meet()
    place = _shared(call, "grad_out", "input", "mean", "rstd")
    if place.dim >= len(_shape(call, "input")) - len(call["normalized_shape"]):
        raise call.meet()
    return [place, None, None]


def _other_groups(call: Call) -> bool:
    return bool(call["N"] != _shape(call, "input")[0] or _shape(call, "input")[1:2] != (call["C"],))


def _attended(outputs: int, *names: str) -> Rule:
    """Attention of each record by itself, records first.

    So many of its first results hold records.
    """

    def rule(call: Call) -> Places:
        masks = call.operands("attn_mask", "attn_bias")
        place = _shared(
            call, *names, *(name for name in ("attn_mask", "attn_bias") if _holds(call[name]))
        )
        scores = (*_shape(call, "query")[:3], _shape(call, "key")[2])
        ranks = {len(operand.shape) for operand in call.operands("query", "key", "value")}
        if place.dim != 0 or ranks != {4} or not all(_fits(mask, place, scores) for mask in masks):
            raise call.meet()
        return [*_same(call, place)[:outputs], *[None] * (len(call.shapes) - outputs)]

    return rule


def _holds(value: object) -> bool:
    return isinstance(value, Operand) and value.place is not None


# What depends on shapes alone, and has the same value in every entry.
OF_SHAPES_ALONE = {
    "zeros",
    "ones",
    "full",
    "new_zeros",
    "new_ones",
    "new_full",
    "zeros_like",
    "ones_like",
    "full_like",
}
# Memory that nothing was written to yet.
EMPTY = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"}

_ATTENTION = ("query", "key", "value")
_ATTENTION_BACKWARD = ("grad_out", *_ATTENTION, "out", "logsumexp")
_POOLED_BACKWARD = ("grad_output", "self")


def _convolution_sums(call: Call) -> bool:
    return _unbatched(call) or _sums_over_records(call)


def _group_sums(call: Call) -> bool:
    return _other_groups(call) or _sums_over_records(call)


def _batch_sums(call: Call) -> bool:
    return _of_batches(call) or _sums_over_records(call)


# Names of operators, and their rule. Beside these, all that torch marks as pointwise work entry by
# entry.
_TABLE: tuple[tuple[str, Rule], ...] = (
    ("_conj _to_copy alias copy detach fill lift_fresh masked_fill zero", _entry_by_entry),
    ("elu_backward hardshrink_backward hardsigmoid_backward hardswish", _entry_by_entry),
    ("hardswish_backward hardtanh_backward leaky_relu_backward", _entry_by_entry),
    ("log_sigmoid_backward log_sigmoid_forward mish_backward", _entry_by_entry),
    ("_prelu_kernel _prelu_kernel_backward softplus_backward", _entry_by_entry),
    ("softshrink_backward", _entry_by_entry),
    # Other shapes of the same entries.
    ("view _unsafe_view", _viewed),
    ("permute", _reordered(lambda call, _: call["dims"])),
    ("transpose", _reordered(lambda call, rank: _swapped(call["dim0"], call["dim1"], rank))),
    ("t", _reordered(lambda _, rank: range(rank)[::-1])),
    ("unsqueeze", _inserted("self", lambda call: len(call["self"].shape) + 1)),
    ("stack", _inserted("tensors", lambda call: len(call["tensors"][0].shape) + 1)),
    ("select_backward", _inserted("grad_output", lambda call: len(call["input_sizes"]))),
    ("squeeze select unbind", _removed),
    ("expand repeat", _stretched),
    ("slice", _sliced),
    ("slice_backward", _along("grad_output")),
    ("split split_with_sizes unsafe_split unsafe_split_with_sizes", _along("self")),
    ("cat", _along("tensors")),
    ("unfold", _along("self", dim="dimension")),
    ("flip roll", _along("self", dim="dims")),
    ("constant_pad_nd", _padded),
    ("view_as_real", _last(0, "self")),
    ("view_as_complex", _last(1, "self")),
    # Along dimensions that are not the records'.
    ("_log_softmax _softmax cummax cummin cumprod cumsum logcumsumexp", _along("self")),
    ("_log_softmax_backward_data _softmax_backward_data", _along("grad_output", "output")),
    ("_fft_c2c _fft_c2r _fft_r2c glu index_select sort topk", _along("self")),
    ("glu_backward", _along("grad_output", "self")),
    ("gather", _along("self", "index")),
    ("scatter scatter_add", _along("self", "index", "src")),
    ("all amax amin any argmax argmin linalg_vector_norm logsumexp max", _reduces),
    ("mean median min nanmedian norm prod std std_mean sum var var_mean", _reduces),
    # Products with constants, or of each record with itself.
    ("mm", _product("ik", "kj", "ij", "self", "mat2")),
    ("addmm", _product("ik", "kj", "ij", "mat1", "mat2")),
    ("bmm", _product("bik", "bkj", "bij", "self", "mat2")),
    ("baddbmm", _product("bik", "bkj", "bij", "batch1", "batch2")),
    ("mv", _product("ik", "k", "i", "self", "vec")),
    ("addmv", _product("ik", "k", "i", "mat", "vec")),
    ("linear", _last(1, "input")),
    ("convolution", _first("input", but=_unbatched)),
    ("convolution_backward", _first("grad_output", "input", but=_convolution_sums, constant=2)),
    ("embedding", _looked_up),
    ("index", _indexed),
    # Normalisations of each record by itself, or by stored statistics.
    ("native_layer_norm", _normalised),
    ("native_layer_norm_backward", _normalised_backward),
    ("native_group_norm", _first("input", but=_other_groups)),
    (
        "native_group_norm_backward",
        _first("grad_out", "input", "mean", "rstd", but=_group_sums, constant=2),
    ),
    ("_native_batch_norm_legit_no_training", _first("input", constant=2)),
    ("native_batch_norm", _first("input", but=_of_batches, constant=2)),
    ("cudnn_batch_norm", _first("input", but=_of_batches, constant=3)),
    ("native_batch_norm_backward", _first("grad_out", "input", but=_batch_sums, constant=2)),
    # Within pictures and sequences.
    ("avg_pool1d reflection_pad1d replication_pad1d", _last(1, "self")),
    ("upsample_linear1d upsample_nearest1d", _last(1, "self")),
    ("_adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d", _last(2, "self")),
    ("max_pool2d_with_indices reflection_pad2d replication_pad2d", _last(2, "self")),
    ("_upsample_bilinear2d_aa upsample_bicubic2d", _last(2, "self")),
    ("upsample_bilinear2d upsample_nearest2d tril triu", _last(2, "self")),
    ("_adaptive_avg_pool3d avg_pool3d max_pool3d_with_indices", _last(3, "self")),
    ("im2col pixel_shuffle pixel_unshuffle", _last(3, "self")),
    ("_adaptive_avg_pool2d_backward avg_pool2d_backward", _last(2, *_POOLED_BACKWARD)),
    ("reflection_pad2d_backward", _last(2, *_POOLED_BACKWARD)),
    ("max_pool2d_with_indices_backward", _last(2, *_POOLED_BACKWARD, "indices")),
    # Attention, records first.
    ("_scaled_dot_product_efficient_attention", _attended(2, *_ATTENTION)),
    ("_scaled_dot_product_flash_attention", _attended(2, *_ATTENTION)),
    ("_scaled_dot_product_flash_attention_for_cpu", _attended(2, *_ATTENTION)),
    (
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        _attended(3, *_ATTENTION_BACKWARD),
    ),
)
RULES: Mapping[str, Rule] = {name: rule for names, rule in _TABLE for name in names.split()}
