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
    """Where the N records of a tensor lie.

    Index i of a dimension belongs to record (i // inner) % N.

    Attributes:
        dim: The dimension.
        inner: How many indices in a row belong to one record.
    """

    dim: int
    inner: int = 1


@dataclass(frozen=True)
class Operand:
    """What is known of a tensor.

    Attributes:
        shape: Its shape.
        place: Where its records lie; None for a constant.
        alike: Of a constant, places at which it has the same values for every record, as if it held
            records.
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

    Attributes:
        operator: torch's overload.
        name: The operator's, without overload and without the mark of writing in place.
        arguments: By name, tensors as operands, defaults included.
        shapes: Of what it returned, None for what is no tensor.
        count: N >= 2.
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

    def operands_besides(self, *names: str) -> list[Operand]:
        """Return the tensors among all arguments but those named."""
        remaining = [name for name in self.arguments if name not in names]
        return self.operands(*remaining) if remaining else []

    def meeting_error(self) -> RecordsMeetError:
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
    """Return where the results of a call have their records.

    Args:
        call: At least one of its operands holds records.

    Returns:
        A place for each result, None for a constant.

    Raises:
        RecordsMeetError: Records may meet.
    """
    rule = RULES.get(call.name)
    if rule is None and torch.Tag.pointwise in call.operator.tags:
        rule = _entry_by_entry
    if rule is None:
        raise RecordsMeetError(f"operator {call.operator}, for which there is no rule")
    places = rule(call)
    for shape, place in zip(call.shapes, places, strict=True):
        if place is None:
            continue
        if shape is None or shape[place.dim] % (call.count * place.inner) != 0:
            raise call.meeting_error()
    return places


def alike_places(call: Call, output: int) -> frozenset[Place]:
    """Return at which places a result without records has the same values for every record.

    Args:
        call: None of its operands holds records.
        output: Number of the result.

    Returns:
        The places.
    """
    shape = call.shapes[output] or ()
    if call.name in OF_SHAPES_ALONE:
        return frozenset(_places_along(range(len(shape)), shape=shape, count=call.count))
    places = set[Place]()
    if call.name == "expand":
        before = _shape(call, "self")
        added = len(shape) - len(before)
        stretched = [dim for dim in range(len(shape)) if dim < added or before[dim - added] == 1]
        places |= _places_along(stretched, shape=shape, count=call.count)
    for operand in call.operands():
        for place in operand.alike:
            # Equal parts are records that happen to be equal.
            with_records = replace(operand, place=place)
            arguments = _exchanged(dict(call.arguments), operand, with_records)
            try:
                result = places_of(replace(call, arguments=arguments))[output]
            except RecordsMeetError:
                continue
            if result is not None:
                places.add(result)
    return frozenset(places)


def _places_along(dims: Sequence[int], shape: Sequence[int], count: int) -> set[Place]:
    """Return all places that some dimensions have room for."""
    places = set[Place]()
    for dim in dims:
        if shape[dim] % count != 0:
            continue
        most = shape[dim] // count
        places |= {Place(dim, inner) for inner in range(1, most + 1) if most % inner == 0}
    return places


def _exchanged(value: Any, operand: Operand, substitute: Operand) -> Any:
    """Put another operand in the place of one, wherever it is among arguments."""
    if isinstance(value, dict):
        return {name: _exchanged(part, operand, substitute) for name, part in value.items()}
    if isinstance(value, list):
        return [_exchanged(part, operand, substitute) for part in value]
    return substitute if value is operand else value


def _shape(call: Call, name: str) -> tuple[int, ...]:
    shape: tuple[int, ...] = call[name].shape
    return shape


def _everywhere(call: Call, place: Place) -> Places:
    """Put the records of every result at one place."""
    return [place if shape is not None else None for shape in call.shapes]


def _shared(call: Call, *names: str) -> Place:
    """Return the one place where some arguments have the records; no other may hold any."""
    operands = call.operands(*names)
    place = next((operand.place for operand in operands if operand.place is not None), None)
    if place is None or any(operand.place is not None for operand in call.operands_besides(*names)):
        raise call.meeting_error()
    if not all(operand.has(place) for operand in operands):
        raise call.meeting_error()
    if len({operand.shape[place.dim] for operand in operands}) > 1:
        raise call.meeting_error()
    return place


def _dims(value: int | Sequence[int] | None, rank: int) -> set[int]:
    """Return dimensions counted from the front; all where none is given."""
    dims = [value] if isinstance(value, int) else list(value or range(rank))
    return {dim % rank for dim in dims} if rank else set()


def _fits(operand: Operand, place: Place, shape: Sequence[int]) -> bool:
    """Say whether an operand, broadcast to a shape, fits records at a place of that shape."""
    dim = place.dim - len(shape) + len(operand.shape)
    if operand.place is None and (dim < 0 or operand.shape[dim] == 1):
        return True
    if dim < 0 or operand.shape[dim] != shape[place.dim]:
        return False
    return operand.has(replace(place, dim=dim))


def _entry_by_entry(call: Call) -> Places:
    shape = call.shapes[0] or ()
    holder = next(operand for operand in call.operands() if operand.place is not None)
    assert holder.place is not None
    place = replace(holder.place, dim=holder.place.dim + len(shape) - len(holder.shape))
    if place.dim >= len(shape):
        raise call.meeting_error()
    if not all(_fits(operand, place, shape) for operand in call.operands()):
        raise call.meeting_error()
    return _everywhere(call, place)


def _along(*names: str, dim: str = "dim") -> Rule:
    """What works along dimensions that are not the records'."""

    def rule(call: Call) -> Places:
        place = _shared(call, *names)
        if place.dim in _dims(call[dim], len(call.operands(*names)[0].shape)):
            raise call.meeting_error()
        return _everywhere(call, place)

    return rule


def _reduces(call: Call) -> Places:
    place = _shared(call, "self")
    dims = _dims(call["dim"], len(_shape(call, "self")))
    if place.dim in dims:
        raise call.meeting_error()
    removed = 0 if call["keepdim"] else sum(dim < place.dim for dim in dims)
    return _everywhere(call, replace(place, dim=place.dim - removed))


def _last(dims: int, *names: str) -> Rule:
    """What works within the last dimensions, for each index of those in front by itself."""

    def rule(call: Call) -> Places:
        place = _shared(call, *names)
        if place.dim >= len(call.operands(*names)[0].shape) - dims:
            raise call.meeting_error()
        return _everywhere(call, place)

    return rule


def _product(left: str, right: str, result: str, *names: str) -> Rule:
    """What sums products over the letters that the result lacks; all else is added, broadcast."""

    def rule(call: Call) -> Places:
        factors = list(zip(call.operands(*names), (left, right), strict=True))
        place, letter = _place_and_letter(call, factors)
        for operand, letters in factors:
            place_here = replace(place, dim=letters.find(letter))
            has_letter = place_here.dim >= 0
            if (has_letter or operand.place is not None) and not operand.has(place_here):
                raise call.meeting_error()
        if letter not in result:
            raise call.meeting_error()
        after = replace(place, dim=result.index(letter))
        shape = call.shapes[0] or ()
        if not all(_fits(operand, after, shape) for operand in call.operands_besides(*names)):
            raise call.meeting_error()
        return _everywhere(call, after)

    return rule


def _place_and_letter(call: Call, factors: Sequence[tuple[Operand, str]]) -> tuple[Place, str]:
    """Return where the first factor with records has them, and the letter of that dimension."""
    for operand, letters in factors:
        if operand.place is not None:
            return operand.place, letters[operand.place.dim]
    raise call.meeting_error()


def _viewed(call: Call) -> Places:
    place = _shared(call, "self")
    before = _shape(call, "self")
    after = call.shapes[0] or ()
    if math.prod(before) != math.prod(after):
        raise call.meeting_error()
    # Entry e, counted row by row, is record (e // step) % N.
    step = place.inner * math.prod(before[place.dim + 1 :])
    for dim, size in enumerate(after):
        behind = math.prod(after[dim + 1 :])
        if not behind or step % behind != 0:
            continue
        inner = step // behind
        if size and size % (call.count * inner) == 0:
            return [Place(dim, inner)]
    raise call.meeting_error()


def _reordered(order: Callable[[Call, int], Sequence[int]]) -> Rule:
    """What gives dimensions another order; (call, rank) -> old dimensions in their new order."""

    def rule(call: Call) -> Places:
        place = _shared(call, "self")
        rank = len(_shape(call, "self"))
        dims = [dim % rank for dim in order(call, rank)]
        return _everywhere(call, replace(place, dim=dims.index(place.dim)))

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
        is_before = call["dim"] % rank(call) <= place.dim
        return _everywhere(call, replace(place, dim=place.dim + is_before))

    return rule


def _removed(call: Call) -> Places:
    place = _shared(call, "self")
    shape = _shape(call, "self")
    dims = _dims(call["dim"], len(shape))
    if call.name == "squeeze":
        dims = {dim for dim in dims if shape[dim] == 1}
    if place.dim in dims:
        raise call.meeting_error()
    removed = sum(dim < place.dim for dim in dims)
    return _everywhere(call, replace(place, dim=place.dim - removed))


def _sliced(call: Call) -> Places:
    place = _shared(call, "self")
    shape = _shape(call, "self")
    takes_all = call.shapes[0] == shape and call["step"] == 1
    if place.dim == call["dim"] % len(shape) and not takes_all:
        raise call.meeting_error()
    return _everywhere(call, place)


def _stretched(call: Call) -> Places:
    """What is repeated along other dimensions than the records'."""
    place = _shared(call, "self")
    before = _shape(call, "self")
    after = call.shapes[0] or ()
    dim = place.dim + len(after) - len(before)
    if after[dim] != before[place.dim]:
        raise call.meeting_error()
    return _everywhere(call, replace(place, dim=dim))


def _padded(call: Call) -> Places:
    return _last(len(call["pad"]) // 2, "self")(call)


def _looked_up(call: Call) -> Places:
    if call["weight"].place is not None:
        raise call.meeting_error()
    return _everywhere(call, _shared(call, "indices"))


def _indexed(call: Call) -> Places:
    """One index in brackets: constants not at the records, or records into a constant."""
    indices = [(dim, index) for dim, index in enumerate(call["indices"]) if index is not None]
    if len(indices) > 1:
        raise call.meeting_error()
    dim, index = indices[0]
    if call["self"].place is None:
        place = _shared(call, "indices")
        return [replace(place, dim=place.dim + dim)]
    place = _shared(call, "self")
    if place.dim == dim:
        raise call.meeting_error()
    added = len(index.shape) - 1 if dim < place.dim else 0
    return [replace(place, dim=place.dim + added)]


def _never(_call: Call) -> bool:
    return False


def _first(*names: str, but: Callable[[Call], bool] = _never, constant: int = 0) -> Rule:
    """What works on each index of the first dimension by itself.

    `but`: which calls the rule does not hold for. `constant`: how many of the last results are
    constants, or are not returned.
    """

    def rule(call: Call) -> Places:
        place = _shared(call, *names)
        if place.dim != 0 or but(call):
            raise call.meeting_error()
        holding = len(call.shapes) - constant
        return [*_everywhere(call, place)[:holding], *[None] * constant]

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
        raise call.meeting_error()
    place = _shared(call, "grad_out", "input", "mean", "rstd")
    if place.dim >= len(_shape(call, "input")) - len(call["normalized_shape"]):
        raise call.meeting_error()
    return [place, None, None]


def _other_groups(call: Call) -> bool:
    shape = _shape(call, "input")
    return bool(call["N"] != shape[0] or shape[1:2] != (call["C"],))


def _attended(outputs: int, *names: str) -> Rule:
    """Attention of each record by itself, records first; so many first results hold records."""

    def rule(call: Call) -> Places:
        mask_names = ("attn_mask", "attn_bias")
        masks = call.operands(*mask_names)
        place = _shared(call, *names, *(name for name in mask_names if _holds(call[name])))
        scores = (*_shape(call, "query")[:3], _shape(call, "key")[2])
        ranks = {len(operand.shape) for operand in call.operands("query", "key", "value")}
        if place.dim != 0 or ranks != {4}:
            raise call.meeting_error()
        if not all(_fits(mask, place, scores) for mask in masks):
            raise call.meeting_error()
        constant = len(call.shapes) - outputs
        return [*_everywhere(call, place)[:outputs], *[None] * constant]

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
