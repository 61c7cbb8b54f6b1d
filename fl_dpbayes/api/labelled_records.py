"""Records with labels as people have them in PyTorch, read as two arrays."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from fl_dpbayes.config import counted
from fl_dpbayes.errors import UserError

Values: TypeAlias = npt.ArrayLike | torch.Tensor
Loadable: TypeAlias = Dataset[Any] | DataLoader[Any]
LabelledData: TypeAlias = Loadable | tuple[Values, Values] | Sequence[tuple[Values, int]]
REMEDY = (
    "give (features, labels) as a tuple of two arrays or tensors, or a Dataset or DataLoader of "
    "records (features, label)"
)


@dataclass(frozen=True)
class LabelledArrays:
    """N records.

    Attributes:
        features: Numbers, (N, *shape).
        labels: Of any type, (N,).
    """

    features: npt.NDArray
    labels: npt.NDArray


def labelled_arrays(data: LabelledData) -> LabelledArrays:
    """Read records with labels.

    A DataLoader's data set is read once, in its order, and joined by the loader's `collate_fn`; its
    batch size and its shuffling are not used.

    Args:
        data: N records: a tuple (features, labels), a Dataset or a sequence of (features, label),
            or a DataLoader of such a Dataset.

    Returns:
        The records.

    Raises:
        UserError: If the records are no such thing. It quotes none of them. What the data set
            itself raises is left as it is.
    """
    if isinstance(data, tuple):
        pair: Sequence[Any] = data
    elif isinstance(data, DataLoader):
        pair = _collated(data)
    else:
        pair = _stacked(_records_of(data))
    if len(pair) != 2:
        raise UserError(f"the data are {len(pair)} arrays: {REMEDY}")
    features = as_array(pair[0])
    labels = as_array(pair[1])
    if not np.issubdtype(features.dtype, np.number) and features.dtype != np.bool_:
        raise UserError(f"the features are of type {features.dtype}: give numbers")
    if features.ndim < 2 or labels.ndim != 1 or len(labels) != len(features):
        # How many records there are may be no public number.
        raise UserError(
            f"features are of {counted(features.ndim, 'dimension')}, labels of {labels.ndim}, or "
            "they differ in length: give (N, *shape) features, and one label for each record, (N,)"
        )
    return LabelledArrays(features=features, labels=labels)


def feature_array(data: Values | Loadable) -> npt.NDArray:
    """Read the features of records, whose labels, where a data set has them, are left out.

    Args:
        data: N records, (N, *shape), or a Dataset or DataLoader of (features, label).

    Returns:
        The features, (N, *shape).

    Raises:
        UserError: As `labelled_arrays`.
    """
    if isinstance(data, Dataset | DataLoader):
        return labelled_arrays(data).features
    return as_array(data)


def as_array(values: Any) -> npt.NDArray:
    """Return an array, or a tensor of any device, as a NumPy array."""
    if isinstance(values, torch.Tensor):
        return values.detach().cpu().numpy()
    return np.asarray(values)


def _records_of(data: object) -> list[Any]:
    """Return the records of a data set that has a length and numbers its records from 0."""
    is_numbered = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    is_one_value = isinstance(data, str | dict | np.ndarray | torch.Tensor) or hasattr(data, "iloc")
    if not is_numbered or is_one_value or isinstance(data, IterableDataset):
        raise UserError(f"the data are a {type(data).__name__}: {REMEDY}")
    records = [data[number] for number in range(len(data))]  # type: ignore[index,arg-type]
    if not records:
        raise UserError(f"the data set holds no record: {REMEDY}")
    return records


def _stacked(records: list[Any]) -> tuple[npt.NDArray, npt.NDArray]:
    if not all(isinstance(record, tuple | list) and len(record) == 2 for record in records):
        raise UserError(f"the data set's records are no (features, label): {REMEDY}")
    features = [as_array(record[0]) for record in records]
    labels = [as_array(record[1]) for record in records]
    if len({row.shape for row in features}) > 1 or len({label.shape for label in labels}) > 1:
        raise UserError(f"the data set's records differ in shape: {REMEDY}")
    return np.stack(features), np.stack(labels)


def _collated(loader: DataLoader[Any]) -> Sequence[Any]:
    records = _records_of(loader.dataset)
    batches = loader.batch_sampler
    order = batches.sampler if type(batches) is BatchSampler else None
    if not isinstance(order, RandomSampler | SequentialSampler) or len(order) != len(records):
        raise UserError(
            "the DataLoader's sampler chooses among the records: give its data set, or "
            "torch.utils.data.Subset(dataset, indices) of those that are meant"
        )
    warnings.warn(
        "a DataLoader's data set is read once, in its order: batch size and shuffling are not used "
        "(privacy.sampling_rate is the probability by which a step draws a unit)",
        stacklevel=2,
    )
    pair = loader.collate_fn(records)
    if not isinstance(pair, tuple | list):
        raise UserError(
            f"the DataLoader's batches are a {type(pair).__name__}: each must be (features, labels)"
        )
    return pair
