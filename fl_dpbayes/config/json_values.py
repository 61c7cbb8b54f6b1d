"""Values that JSON can carry without loss of meaning: undefined is null, infinite is the string "inf"."""

import math
from collections.abc import Mapping

import numpy as np

JSONValue = None | bool | int | float | str | list["JSONValue"] | dict[str, "JSONValue"]


def json_values(value: object) -> JSONValue:
    """Turn nested mappings, lists, tuples, numbers and NumPy values into plain JSON values of the same structure.

    NaN is None, infinities are "inf" and "-inf", keys are strings; a value of another type is a ValueError.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return json_values(value.tolist())
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else float(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(item) for item in value]
    raise ValueError(
        f"a {type(value).__name__} cannot be written as JSON: give numbers, strings, lists, mappings or None"
    )
