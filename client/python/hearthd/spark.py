# SPDX-License-Identifier: Apache-2.0
"""hearth in Spark: predictions as a column, batch by batch over Arrow, and training on a DataFrame. Needs pyspark 4, pandas and pyarrow
(pip install hearthd[spark]) where it is called; this module itself is imported without them.

    from hearthd.spark import fit, map_batches, predict_udf

    classify = predict_udf('digits', return_type='array<float>', batch_size=256, df=df)
    df.withColumn('logits', classify('image'))

A node's workers share its hearthd, so that a model's weights are in memory once per node. Each worker has one connection, kept from task
to task. What does not fit is refused on the driver, before a job starts.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import inspect
import json
import math
import os
import shutil
import struct
import sys
import tempfile
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from ._client import Client
from ._errors import Error, Exists, InvalidArgument, NotFound
from ._jobs import Job
from ._memory import CODES, SAFETENSORS
from .predict import (Patience, Predictor, Signature, Slot, cast, check_batch, check_rows, checked_server, client, converted, converts,
                      output_slots, requests_ahead, sample_shape)

LOSSES = {'softmax-xent': np.dtype(np.int64), 'bce': np.dtype(np.float32), 'mse': np.dtype(np.float32)}  # and what their y is
BLOCK = 16 << 20  # bytes that a row of a dataset on its way to the driver has at most, if a sample has no more
HEADER = 4096  # bytes of a dataset's file before its first tensor
_sent: dict[tuple[str, str], str] = {}  # files that Spark hands out, by application and name
_folders: list[tempfile.TemporaryDirectory[str]] = []  # that they lie in, for as long as this process lives


# ---- Spark's types

_ELEMENTS = {'tinyint': np.int8, 'smallint': np.int16, 'int': np.int32, 'bigint': np.int64, 'float': np.float32, 'double': np.float64,
             'boolean': np.bool_}
_NAMED = {np.dtype(np.int8): 'tinyint', np.dtype(np.uint8): 'smallint', np.dtype(np.int16): 'smallint', np.dtype(np.uint16): 'int',
          np.dtype(np.int32): 'int', np.dtype(np.uint32): 'bigint', np.dtype(np.int64): 'bigint', np.dtype(np.uint64): 'bigint',
          np.dtype(np.float64): 'double', np.dtype(np.bool_): 'boolean'}  # everything else is a float


class _Kind(NamedTuple):
    """A column's numbers; depth: how many arrays they lie in; fields: how many a struct has of them."""
    dtype: np.dtype
    depth: int
    fields: int = 0


def kind_of(datatype: Any) -> _Kind | None:
    """What a column of one of Spark's types gives a model; None: nothing. A struct of numbers is the array of them."""
    name, depth = datatype.typeName(), 0
    if name == 'struct':
        kinds = [kind_of(f.dataType) for f in datatype.fields]
        plain = [k for k in kinds if k is not None and k.depth == 0 and not k.fields]
        return _Kind(np.result_type(*(k.dtype for k in plain)), 1, len(plain)) if plain and len(plain) == len(kinds) else None
    while name == 'array':
        datatype, depth = datatype.elementType, depth + 1
        name = datatype.typeName()
    element = _ELEMENTS.get(datatype.simpleString())
    return None if element is None else _Kind(np.dtype(element), depth)


def check_column(slot: Slot, column: str, datatype: Any, nested: bool = False) -> None:
    """Refuses a column that does not fit an input. nested: arrays of arrays are possible."""
    kind = kind_of(datatype)
    said = f"column '{column}' is {datatype.simpleString()}, and '{slot.name}' takes {slot}"
    if kind is None:
        vector = 'vector' in type(datatype).__name__.lower()
        raise InvalidArgument(said + ('; pyspark.ml.functions.vector_to_array makes an array of it' if vector else ''))
    if not converts(kind.dtype, slot.dtype):
        raise InvalidArgument(f'{said}: {kind.dtype} does not convert to it')
    if kind.depth > 1 and not nested:
        raise InvalidArgument(f'{said}: give arrays flat (pyspark.sql.functions.flatten), with their shape in input_tensor_shapes')
    if kind.fields and slot.shape[1:] not in ((kind.fields,), (-1,)):
        raise InvalidArgument(f'{said}: a struct of {kind.fields} numbers is for samples of shape [{kind.fields}]')
    if kind.depth == 0 and slot.shape and sample_shape(slot.shape[1:], ()) is None:
        raise InvalidArgument(f'{said}: a row has one value')


def tensor_shapes(signature: Signature, given: Any) -> Any:
    """input_tensor_shapes as predict_batch_udf wants them: what was given, if it fits, else what the model says."""
    slots = signature.inputs
    if given is None:
        for slot in slots:
            if any(d < 0 for d in slot.shape[1:]):
                raise InvalidArgument(f"input '{slot.name}' takes {slot}: say the shape of a sample in input_tensor_shapes")
        rows: Any = {i: slot.shape[1:] for i, slot in enumerate(slots)}
    else:
        rows = dict(given if isinstance(given, Mapping) else enumerate(given))
        if not isinstance(given, Mapping) and len(rows) != len(slots):
            raise InvalidArgument(f"input_tensor_shapes has {len(rows)} shapes, and '{signature.model}' {len(slots)} inputs")
    for i, shape in rows.items():
        if not 0 <= i < len(slots):
            raise InvalidArgument(f"input_tensor_shapes has a shape of input {i}, and '{signature.model}' {len(slots)} inputs")
        if shape is not None and slots[i].shape and sample_shape(slots[i].shape[1:], tuple(shape)) is None:
            raise InvalidArgument(f"input_tensor_shapes says {list(shape)}, and input '{slots[i].name}' takes {slots[i]}")
    if len(slots) == 1:  # predict_batch_udf takes no None of an only input
        return [list(rows.get(0) or [])]
    return [list(rows[i]) if rows.get(i) else None for i in range(len(slots))]


class _Field(NamedTuple):
    """A part of the result: its name, the output that it is, its type, and whether it has an array per row."""
    name: str
    output: str
    dtype: str
    array: bool


def _field(slot: Slot, name: str, datatype: Any) -> _Field:
    """An output as a column of one of Spark's types."""
    kind = kind_of(datatype)
    said = f"output '{slot.name}' is {slot}, which is no {datatype.simpleString()}"
    if kind is None or kind.fields or kind.depth > 1 or (kind.depth == 0 and kind.dtype == np.bool_):
        raise InvalidArgument(f'{said}: numbers can be returned, and arrays of them')
    if not converts(slot.dtype, kind.dtype):
        raise InvalidArgument(f'{said}: {slot.datatype} does not convert to it')
    if kind.depth == 0 and slot.shape and sample_shape((), tuple(d for d in slot.shape[1:] if d >= 0)) is None:
        raise InvalidArgument(f'{said}: a row has more than one value')
    return _Field(name, slot.name, kind.dtype.str, kind.depth == 1)


def _spark_type(slot: Slot) -> str:
    element = _NAMED.get(slot.dtype, 'float')
    return element if len(slot.shape) == 1 else f'array<{element}>'


def _parsed(datatype: Any) -> Any:
    if not isinstance(datatype, str):
        return datatype
    from pyspark.sql.types import DataType
    return DataType.fromDDL(datatype)


def returned(signature: Signature, return_type: Any, output: str | None) -> tuple[Any, list[_Field]]:
    """The type of a prediction as Spark has it, and which outputs it is made of."""
    if return_type is None:
        slots = output_slots(signature, None if output is None else [output])
        check_rows(signature, 'output', slots)
        types = ['tinyint' if t == 'boolean' else t for t in map(_spark_type, slots)]  # predict_batch_udf returns no boolean
        return_type = types[0] if len(slots) == 1 else ', '.join(f'{_quoted(s.name)} {t}' for s, t in zip(slots, types))
    made = _parsed(return_type)
    if made.typeName() == 'struct':
        slots = output_slots(signature, made.names)
        check_rows(signature, 'output', slots)
        return made, [_field(slot, f.name, f.dataType) for slot, f in zip(slots, made.fields)]
    slots = output_slots(signature, None if output is None else [output])
    if len(slots) != 1:
        raise InvalidArgument(f"'{signature.model}' has the outputs {', '.join(s.name for s in slots)}: say which (output=), or return a struct")
    check_rows(signature, 'output', slots)
    return made, [_field(slots[0], '', made)]


# ---- models on their way to the nodes

class _SparkFile:
    """Where a file that was added to a Spark job lies on this node."""

    def __init__(self, name: str):
        self.name = name

    def __call__(self) -> str:
        from pyspark import SparkFiles
        return SparkFiles.get(self.name)


def _context() -> Any:
    from pyspark.sql import SparkSession
    return SparkSession.active().sparkContext


@atexit.register
def _tidy() -> None:
    for folder in _folders:
        folder.cleanup()


def _predictor(model: str | os.PathLike[str], server: str | None, patience: Patience, ship: bool | None) -> Predictor:
    """A predictor whose model gets to the nodes: Spark hands out its file, once per node, where they may lack it."""
    context = _context()
    predictor = Predictor(model, server=server, patience=patience)
    local = context.master.startswith('local') and 'cluster' not in context.master
    if predictor.file is None and ship is None:
        ship = not local and (server is None or server.startswith('ipc://'))
    if not (ship or predictor.file is not None):
        return predictor
    folder = tempfile.TemporaryDirectory(prefix='hearth-spark-')
    path = os.path.join(folder.name, 'model.onnx')
    if predictor.file is None:
        client(predictor.server).export(predictor.name, path)
    else:
        shutil.copyfile(predictor.file, path)
    predictor.send(path)
    key = (context.applicationId, predictor.name)
    if key not in _sent:  # Spark hands a name out once
        _sent[key] = os.path.join(folder.name, predictor.name + '.onnx')
        os.rename(path, _sent[key])
        _folders.append(folder)
        context.addFile(_sent[key])
    predictor.file, predictor.source = _sent[key], _SparkFile(os.path.basename(_sent[key]))
    return predictor


# ---- a column of predictions

class _Predict:
    """What predict_batch_udf calls with an array per column, of several requests' rows; its signature says how many columns."""

    def __init__(self, predictor: Predictor, fields: Sequence[_Field], whole: bool, rows: int):
        self._predictor, self._fields, self._whole, self._rows = predictor, fields, whole, rows
        self.__signature__ = inspect.Signature([inspect.Parameter(f'x{i}', inspect.Parameter.POSITIONAL_ONLY)
                                                for i in range(len(predictor.signature.inputs))])

    def __call__(self, *arrays: np.ndarray) -> Any:
        slots, n = self._predictor.signature.inputs, max((len(a) for a in arrays), default=0)
        parts = [{s.name: a[i:i + self._rows] for s, a in zip(slots, arrays)} for i in range(0, max(1, n), self._rows)]
        asked = [f.output for f in self._fields]
        answers = list(self._predictor.map(parts, asked)) if len(parts) > 1 else [self._predictor(parts[0], asked)]
        columns = {f.name: [_column(a[f.output], f) for a in answers] for f in self._fields}
        made = {name: c[0] if len(c) == 1 else np.concatenate(c) for name, c in columns.items()}
        return made if self._whole else made['']


def _column(array: np.ndarray, field: _Field) -> np.ndarray:
    n = len(array)
    if not field.array and array.size != n:
        raise InvalidArgument(f"output '{field.output}' has {array.size // n} values for a row, and return_type says one")
    return converted(array, field.dtype, f"output '{field.output}'").reshape((n, -1) if field.array else (n,))


def predict_udf(model: str | os.PathLike[str], *, return_type: Any = None, batch_size: int, input_tensor_shapes: Any = None,
                server: str | None = None, output: str | None = None, df: Any = None, ship: bool | None = None,
                patience: Patience = Patience()) -> Any:
    """A function of columns that gives a model's predictions: what pyspark.ml.functions.predict_batch_udf makes of the model.

    `model` is a name on the driver's server, whose present version is taken, or an ONNX file. Its file goes to each node once (`ship`;
    None: unless all ask one server over a network, or there is only this machine), and is imported by its content where it is missing,
    as "onnx-" and a hash, which stays there until Client.remove.
    `server` is a URL that all ask; None: each node's own ($HEARTH_SERVER, or that of the machine).

    Columns are those of predict_batch_udf: one for each input, numbers or flat arrays, or a struct of numbers; they are cast to the model's
    types. `input_tensor_shapes` is what the model says, where nothing is given; `return_type` (a type or its text) the type of the only
    output, or of `output`, or a struct of all; a truth value for each row is a tinyint. `batch_size` is how many rows a request has at most.

    Spark hands nulls over as NaN: a model of floats computes with them, one of whole numbers refuses them. map_batches refuses any null.

    With `df` the function refuses columns whose type does not fit as soon as it is called with them. InvalidArgument, NotFound and what the
    driver's server refuses are raised here; a server that is busy or away later is waited for with `patience`.
    """
    from pyspark.ml.functions import predict_batch_udf
    predictor = _predictor(model, server, patience, ship)
    signature = predictor.signature
    check_batch(signature, batch_size)
    shapes = tensor_shapes(signature, input_tensor_shapes)
    made, fields = returned(signature, return_type, output)
    ahead = requests_ahead(signature.inputs, shapes, output_slots(signature, [f.output for f in fields]), batch_size)
    udf = predict_batch_udf(functools.partial(_Predict, predictor, fields, made.typeName() == 'struct', batch_size), return_type=made,
                            batch_size=batch_size * ahead, input_tensor_shapes=shapes)

    @functools.wraps(udf)
    def predict(*columns: Any) -> Any:
        _check_columns(signature, columns, df)
        return udf(*columns)
    return predict


def _check_columns(signature: Signature, columns: Sequence[Any], df: Any) -> None:
    slots = signature.inputs
    struct_of_all = len(columns) == 1 and len(slots) > 1
    if len(columns) != len(slots) and not struct_of_all:
        hint = ', or one that pyspark.sql.functions.array makes of them' if len(slots) == 1 else ''
        raise InvalidArgument(f"'{signature.model}' takes {len(slots)} column{'s' if len(slots) > 1 else ''} "
                              f"({', '.join(s.name for s in slots)}){hint}, and was given {len(columns)}")
    if df is None:
        return
    fields = list(df.select(*columns).schema.fields)
    if struct_of_all:
        fields = list(getattr(fields[0].dataType, 'fields', fields))
        if len(fields) != len(slots):
            raise InvalidArgument(f"'{signature.model}' takes {len(slots)} columns ({', '.join(s.name for s in slots)}), and was given one")
    for slot, field in zip(slots, fields):
        check_column(slot, field.name, field.dataType)


# ---- batches over Arrow

class _MapArrow:
    """What mapInArrow calls in a worker with a partition's batches, in which columns are found by their place."""

    def __init__(self, predictor: Predictor, inputs: Mapping[str, tuple[int, str]], keep: Sequence[str], fields: Sequence[_Field], rows: int):
        self._predictor, self._inputs, self._keep, self._fields, self._rows = predictor, dict(inputs), list(keep), list(fields), rows

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from . import _arrow
        for batch in batches:
            kept = [batch.schema.field(i).with_name(name) for i, name in enumerate(self._keep)]  # Spark looks at what may be null, too
            parts = [batch.slice(begin, self._rows) for begin in range(0, batch.num_rows, self._rows)]
            arrays = ({slot: _arrow.to_numpy(part.column(i), name) for slot, (i, name) in self._inputs.items()} for part in parts)
            for part, outputs in zip(parts, self._predictor.map(arrays, [f.output for f in self._fields])):
                made = [_arrow.to_arrow(_column(outputs[f.output], f)) for f in self._fields]
                schema = pa.schema([*kept, *(pa.field(f.name, column.type) for f, column in zip(self._fields, made))])
                yield pa.RecordBatch.from_arrays([*(part.column(i) for i in range(len(kept))), *made], schema=schema)


def _inputs_of(signature: Signature, columns: Any) -> dict[str, str]:
    """The column of each input: a name for the only one, a mapping, or those of the same names."""
    names = [s.name for s in signature.inputs]
    if columns is None:
        return {n: n for n in names}
    if isinstance(columns, str):
        if len(names) != 1:
            raise InvalidArgument(f"'{signature.model}' has the inputs {', '.join(names)}: say the column of each ({{input: column}})")
        return {names[0]: columns}
    if set(columns) != set(names):
        raise InvalidArgument(f"'{signature.model}' has the inputs {', '.join(names)}, and columns were given for {', '.join(columns)}")
    return {n: columns[n] for n in names}


def _quoted(column: str) -> str:
    return '`' + column.replace('`', '``') + '`'


def _typed(df: Any, column: str) -> Any:
    fields = [f for f in df.schema.fields if f.name == column]
    if len(fields) != 1:
        found = f'{len(fields)} columns' if fields else 'no column'
        raise InvalidArgument(f"the DataFrame has {found} '{column}', but {', '.join(df.columns)}")
    return fields[0].dataType


def _check_names(df: Any, columns: Sequence[str], kept: Sequence[str]) -> None:
    """Refuses columns of outputs that Spark could not tell from others."""
    plain = df.sparkSession.conf.get('spark.sql.caseSensitive') == 'true'
    others, made = {c if plain else c.lower() for c in kept}, set[str]()
    for column in columns:
        name = column if plain else column.lower()
        if name in others:
            raise Exists(f"the DataFrame has a column '{column}' already: say another name in outputs, or leave it out of keep")
        if name in made:
            raise InvalidArgument(f"two outputs would be the column '{column}': say another name in outputs")
        made.add(name)


def map_batches(df: Any, model: str | os.PathLike[str], *, columns: str | Mapping[str, str] | None = None,
                outputs: Sequence[str] | Mapping[str, str] | None = None, keep: Sequence[str] | None = None, batch_size: int = 1024,
                server: str | None = None, ship: bool | None = None, patience: Patience = Patience()) -> Any:
    """A DataFrame's columns and a model's outputs, computed over Arrow (mapInArrow), without Python's lists: lists of floats are read
    in place, and outputs are columns without a copy.

    `columns` says the column of each input ({input: column}; a name for an only input; None: columns called like the inputs), `outputs`
    which outputs become columns, under which names ({output: column}; None: all, under their own), `keep` which columns of `df` stay (None:
    all). Arrays may be flat or nested; an output has a number per row, or a flat array. The rest is as in predict_udf. Refuses on the driver
    what does not fit; in a worker, a null, and lists of different lengths.
    """
    from pyspark.sql.types import StructField, StructType
    predictor = _predictor(model, server, patience, ship)
    signature = predictor.signature
    check_batch(signature, batch_size)
    inputs = _inputs_of(signature, columns)
    for slot in signature.inputs:
        kind = _typed(df, inputs[slot.name])
        if kind.typeName() == 'struct':
            raise InvalidArgument(f"column '{inputs[slot.name]}' is a struct: map_batches takes numbers and arrays")
        check_column(slot, inputs[slot.name], kind, nested=True)
    names = dict(outputs) if isinstance(outputs, Mapping) else {s.name: s.name for s in output_slots(signature, outputs)}
    kept = list(df.columns if keep is None else keep)
    for column in (*kept, *inputs.values()):
        _typed(df, column)
    _check_names(df, list(names.values()), kept)
    slots = output_slots(signature, list(names))
    check_rows(signature, 'output', slots)
    made = [(slot, _parsed(_spark_type(slot))) for slot in slots]
    fields = [_Field(names[s.name], s.name, kind_of(t).dtype.str, len(s.shape) != 1) for s, t in made]  # type: ignore[union-attr]
    schema = StructType([f for f in df.schema.fields if f.name in kept] + [StructField(f.name, t) for f, (_, t) in zip(fields, made)])
    kept = [f.name for f in df.schema.fields if f.name in kept]
    needed = [*kept, *(c for c in dict.fromkeys(inputs.values()) if c not in kept)]
    places = {slot: (needed.index(c), c) for slot, c in inputs.items()}
    selected = df.select(*(df[_quoted(c)].alias(f'c{i}') for i, c in enumerate(needed)))  # mapInArrow takes no name with a dot
    return selected.mapInArrow(_MapArrow(predictor, places, kept, fields, batch_size), schema)


# ---- training

class _Blocks:
    """Rows as blocks of bytes: for each tensor the values of some samples, and their shape."""

    def __init__(self, slots: Sequence[Slot], columns: Sequence[str]):
        self._slots, self._columns = list(slots), list(columns)

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from . import _arrow
        for batch in batches:
            if batch.num_rows == 0:
                continue
            arrays = [cast(s, _arrow.to_numpy(batch.column(i), c)) for i, (s, c) in enumerate(zip(self._slots, self._columns))]
            rows = max(1, BLOCK // max(1, max(a.nbytes // len(a) for a in arrays)))
            for at in range(0, batch.num_rows, rows):
                parts = [a[at:at + rows] for a in arrays]
                yield pa.RecordBatch.from_arrays(
                    [pa.array([len(parts[0])], pa.int64()), pa.array([json.dumps([list(p.shape[1:]) for p in parts])]),
                     *(pa.array([p.tobytes()], pa.binary()) for p in parts)], names=['rows', 'shapes', *(f't{i}' for i in range(len(parts)))])


class DatasetFile:
    """A safetensors file that is written a few samples at a time: the first tensor in its place, the others beside it until the end."""

    def __init__(self, folder: str, tensors: Sequence[tuple[str, np.dtype]]):
        self.path = os.path.join(folder, 'data.safetensors')
        self.rows = 0
        self._tensors = [(name, np.dtype(dtype)) for name, dtype in tensors]
        self._shapes: list[list[int]] | None = None
        self._files = [open(self.path if i == 0 else os.path.join(folder, f'{i}.bin'), 'w+b') for i in range(len(tensors))]
        self._files[0].write(bytes(HEADER))
        self._hash = hashlib.sha256()

    def add(self, rows: int, shapes: list[list[int]], values: Sequence[bytes]) -> None:
        """Appends samples. InvalidArgument: they have another shape than those before."""
        for (name, dtype), shape, before, data in zip(self._tensors, shapes, self._shapes or shapes, values):
            if shape != before:
                raise InvalidArgument(f"'{name}' has samples of shape {before} and of {shape}: a dataset takes one shape")
            if len(data) != rows * math.prod(shape) * dtype.itemsize:
                raise InvalidArgument(f"'{name}' has {len(data)} bytes for {rows} samples of shape {shape}")
        for f, data in zip(self._files, values):
            f.write(data)
            self._hash.update(data)
        self._shapes = shapes
        self.rows += rows

    def close(self) -> str:
        """Completes the file; a hash of what is in it. InvalidArgument: it has no samples."""
        if self._shapes is None:
            raise InvalidArgument('the DataFrame has no rows')
        header, at, target = {}, 0, self._files[0]
        for (name, dtype), shape in zip(self._tensors, self._shapes):
            size = self.rows * math.prod(shape) * dtype.itemsize
            header[name] = {'dtype': SAFETENSORS[CODES[dtype]], 'shape': [self.rows, *shape], 'data_offsets': [at, at + size]}
            at += size
        for f in self._files[1:]:
            f.seek(0)
            shutil.copyfileobj(f, target, 1 << 20)
        text = json.dumps(header).encode()
        if len(text) > HEADER - 8:
            raise InvalidArgument(f'the names of the inputs have {len(text)} bytes together')
        target.seek(0)
        target.write(struct.pack('<Q', HEADER - 8) + text.ljust(HEADER - 8))
        self._hash.update(text)
        self.abandon()
        return self._hash.hexdigest()

    def abandon(self) -> None:
        for f in self._files:
            f.close()


def _trained_on(signature: Signature, x: Any, y: str, loss: str) -> tuple[list[Slot], list[str]]:
    """The tensors of a dataset for a model, x first (or by the inputs' names), and the columns that they come from."""
    if loss not in LOSSES:
        raise InvalidArgument(f"there is no loss '{loss}', but {', '.join(LOSSES)}")
    inputs = _inputs_of(signature, x)
    kinds = {np.dtype(np.int64): 'INT64', np.dtype(np.float32): 'FP32'}
    alone = len(signature.inputs) == 1
    slots = [Slot('x' if alone else s.name, s.datatype, s.shape and (-1, *s.shape[1:])) for s in signature.inputs]
    return [*slots, Slot('y', kinds[LOSSES[loss]], ())], [*inputs.values(), y]


def _check_free(connection: Client, name: str | None) -> None:
    if name is not None and any(d['name'] == name for d in connection.datasets()):
        raise Exists(f"there is a dataset '{name}' already: say another name, or remove it (Client.remove_data)")


def _submitted(connection: Client, name: str, path: str, model: str, options: Mapping[str, Any]) -> Job:
    """The job on a dataset that is stored first, and removed again only by the call that made it: calls with the same rows share one."""
    while True:
        made = not connection.put_data(name, path)['unchanged']
        try:
            return connection.submit(model, name, **options)
        except Error as e:
            if isinstance(e, NotFound) and all(d['name'] != name for d in connection.datasets()):
                continue  # the call that made it was refused, and has removed it
            if made:
                with contextlib.suppress(Error):  # another call's job has it, or it is gone
                    connection.remove_data(name)
            raise


def fit(df: Any, model: str | os.PathLike[str], *, loss: str, x: str | Mapping[str, str] = 'x', y: str = 'y', name: str | None = None,
        server: str | None = None, **options: Any) -> Job:
    """Trains a model on a DataFrame, as a job of the server, and returns the job: it goes on without Spark and this program.

    Column `x` has the samples (with several inputs {input: column}), numbers or arrays, flat or nested; column `y` the labels of the loss:
    whole numbers for "softmax-xent", floats for "bce" and "mse". The rows go through the driver a partition at a time, into a dataset that the
    server keeps under `name` (None: a name that says its content), until Client.remove_data. `model` is a name or an ONNX file;
    `options` are those of Client.submit: optimizer, lr, batch, epochs, budget, save_as, ..

    InvalidArgument: a column that does not fit, before Spark starts; a null, or rows of several shapes, when they come. Exists: there is a
    dataset of this `name`, which stays. What is refused leaves no dataset that was not there before.
    """
    patience = Patience()
    predictor = Predictor(model, server=server, patience=patience)
    slots, columns = _trained_on(predictor.signature, x, y, loss)
    for slot, column in zip(slots, columns):
        datatype = _typed(df, column)
        if datatype.typeName() == 'struct':
            raise InvalidArgument(f"column '{column}' is a struct: fit takes numbers and arrays")
        check_column(slot, column, datatype, nested=True)
    selected = df.select(*(df[_quoted(column)].alias(f'c{i}') for i, column in enumerate(columns)))
    blocks = selected.mapInArrow(_Blocks(slots, columns), 'rows bigint, shapes string, ' + ', '.join(f't{i} binary' for i in range(len(slots))))
    connection = Client(checked_server(server))
    try:
        _check_free(connection, name)
        with tempfile.TemporaryDirectory(prefix='hearth-spark-') as folder:
            data = DatasetFile(folder, [(s.name, s.dtype) for s in slots])
            try:
                for row in blocks.toLocalIterator():
                    data.add(row['rows'], json.loads(row['shapes']), [row[f't{i}'] for i in range(len(slots))])
                content = data.close()
            finally:
                data.abandon()
            _check_free(connection, name)  # Spark may have taken hours
            return _submitted(connection, name or f'spark-{content[:24]}', data.path, predictor.name, {**options, 'loss': loss})
    except BaseException:
        connection.close()
        raise


# ---- devices as a resource

def discover() -> int:
    """Prints the devices of this machine's server as Spark's spark.executor.resource.hearth.discoveryScript has to: one JSON object."""
    try:
        with Client(timeout=30) as c:
            devices = c.devices()['devices']
    except Error as e:
        print(f'hearthd-spark-resource: {e}', file=sys.stderr)
        return 1
    print(json.dumps({'name': 'hearth', 'addresses': [d['name'] for d in devices if d.get('state', 'up') == 'up']}))
    return 0


if __name__ == '__main__':
    sys.exit(discover())
