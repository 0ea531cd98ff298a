# SPDX-License-Identifier: Apache-2.0
"""Columns of Arrow and arrays, without Python's lists, and without a copy where both have the same memory. Needs pyarrow."""
from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ._errors import InvalidArgument, TooBig


def _no_nulls(column: Any, name: str) -> None:
    if column.null_count:
        raise InvalidArgument(f"column '{name}' has nulls")


def to_numpy(column: Any, name: str) -> np.ndarray:
    """A column as an array with a row for each of its own: numbers [n], lists of k numbers [n, k], lists of lists [n, j, k]. It is a view of
    the column but for booleans. InvalidArgument: nulls, lists of different lengths, or what is no number."""
    dims = [len(column)]
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
        _no_nulls(column, name)
        if pa.types.is_fixed_size_list(column.type):
            k = column.type.list_size
            column = column.values.slice(column.offset * k, len(column) * k)
        else:
            offsets = column.offsets.to_numpy()
            lengths = np.diff(offsets)
            k = int(lengths[0]) if len(lengths) else 0
            if (lengths != k).any():
                raise InvalidArgument(f"column '{name}' has lists of {k} and of {int(lengths[lengths != k][0])} values: a model takes one length")
            first = int(offsets[0]) if len(offsets) else 0
            column = column.values.slice(first, k * len(lengths))
        dims.append(k)
    _no_nulls(column, name)
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise InvalidArgument(f"column '{name}' is of {kind}, not of numbers")
    return column.to_numpy(zero_copy_only=not pa.types.is_boolean(kind)).reshape(dims)


def to_arrow(array: np.ndarray) -> Any:
    """An array [n] as a column of numbers, [n, k] as one of lists, which reads the array's memory. TooBig: a list column has 2^31 - 1 values."""
    if array.size > 2**31 - 1:
        raise TooBig(f'{array.size} values do not fit a column of lists: take a smaller batch_size')
    values = pa.array(np.ascontiguousarray(array).reshape(-1))
    for n, k in reversed(list(zip(array.shape[:-1], array.shape[1:]))):
        rows = len(values) // k if k else n
        values = pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * k), values)
    return values
