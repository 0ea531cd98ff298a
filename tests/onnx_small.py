# SPDX-License-Identifier: Apache-2.0
"""Small models as ONNX files, written without the onnx package."""
import struct
import sys

ELEMENT = {'FP32': 1, 'UINT8': 2, 'INT8': 3, 'UINT16': 4, 'INT16': 5, 'INT32': 6, 'INT64': 7, 'BOOL': 9, 'FP16': 10, 'FP64': 11,
           'UINT32': 12, 'UINT64': 13, 'BF16': 16}


def varint(n):
    """A number as protobuf writes it."""
    out, n = b'', n & 2**64 - 1
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def _bytes(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def _int(field, n):
    return varint(field << 3) + varint(n)


def _value(name, datatype, dims):
    shape = b''.join(_bytes(1, _bytes(2, d.encode()) if isinstance(d, str) else _int(1, d)) for d in dims)
    tensor = _int(1, ELEMENT[datatype]) + _bytes(2, shape)
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _model(nodes, inputs, outputs, constants=()):
    graph = b''.join(_bytes(1, n) for n in nodes) + _bytes(2, b'test') + b''.join(_bytes(5, c) for c in constants)
    graph += b''.join(_bytes(11, v) for v in inputs) + b''.join(_bytes(12, v) for v in outputs)
    return _int(1, 8) + _bytes(7, graph) + _bytes(8, _int(2, 17))


def _attribute(name, value):
    if isinstance(value, str):
        return _bytes(1, name.encode()) + _bytes(4, value.encode()) + _int(20, 3)
    if isinstance(value, tuple):
        return _bytes(1, name.encode()) + b''.join(_int(8, v) for v in value) + _int(20, 7)
    return _bytes(1, name.encode()) + _int(3, value % 2**64) + _int(20, 2)


def _constant(name, datatype, dims, values):
    data = struct.pack('<%d%s' % (len(values), {'FP32': 'f', 'FP16': 'e', 'INT64': 'q', 'INT32': 'i', 'INT8': 'b', 'UINT8': 'B', 'INT16': 'h', 'UINT16': 'H'}[datatype]), *values)
    return b''.join(_int(1, d) for d in dims) + _int(2, ELEMENT[datatype]) + _bytes(8, name.encode()) + _bytes(9, data)


def graph(nodes, inputs, outputs, constants=()):
    """A model of nodes (operator, inputs, outputs, attributes), inputs and outputs (name, type, dims) and constants (the same and values).
    The attribute node_name, of bytes, is the node's name."""
    made = [b''.join(_bytes(1, i.encode()) for i in ins) + b''.join(_bytes(2, o.encode()) for o in outs) + _bytes(4, op.encode()) +
            (_bytes(3, more['node_name']) if 'node_name' in more else b'') + b''.join(_bytes(5, _attribute(*a)) for a in more.items() if a[0] != 'node_name')
            for op, ins, outs, more in nodes]
    return _model(made, [_value(*i) for i in inputs], [_value(*o) for o in outputs], [_constant(*c) for c in constants])


def metadata(model, entries):
    """The model with these entries of metadata_props."""
    return model + b''.join(_bytes(14, _bytes(1, k.encode()) + _bytes(2, v.encode())) for k, v in entries.items())


def identity(datatype='FP32', dims=('n',), pairs=1):
    """OUTPUTi = INPUTi; a dimension is a number or a name."""
    return _model([_bytes(1, b'INPUT%d' % i) + _bytes(2, b'OUTPUT%d' % i) + _bytes(4, b'Identity') for i in range(pairs)],
                  [_value(f'INPUT{i}', datatype, dims) for i in range(pairs)],
                  [_value(f'OUTPUT{i}', datatype, dims) for i in range(pairs)])


def powers(n, power):
    """OUTPUT0 = INPUT0 [n, n] multiplied by itself, one MatMul behind the other."""
    names = [b'INPUT0', *(b't%d' % i for i in range(2, power)), b'OUTPUT0']
    return _model([_bytes(1, a) + _bytes(1, b'INPUT0') + _bytes(2, b) + _bytes(4, b'MatMul') for a, b in zip(names, names[1:])],
                  [_value('INPUT0', 'FP32', (n, n))], [_value('OUTPUT0', 'FP32', (n, n))])


def main(folder):
    """The models of tests that are written in C."""
    value = [('x', 'FP32', ('n',))]
    models = {
        'nonzero': graph([('NonZero', ['x'], ['y'], {})], value, [('y', 'INT64', (1, 'm'))]),
        'nonzero_staged': graph([('Relu', ['x'], ['r'], {}), ('NonZero', ['r'], ['y'], {})], value,
                                [('r', 'FP32', ('n',)), ('y', 'INT64', (1, 'm'))]),
    }
    # Logits minus their mean over the batch: samples that depend on each other.
    models['centered'] = graph([('GlobalAveragePool', ['x'], ['p'], {}), ('Flatten', ['p'], ['f'], {}), ('MatMul', ['f', 'w'], ['l'], {}),
                                ('ReduceMean', ['l'], ['m'], {'axes': (0,)}), ('Sub', ['l', 'm'], ['y'], {})],
                               [('x', 'FP32', ('n', 3, 12, 12))], [('y', 'FP32', ('n', 4))],
                               [('w', 'FP32', (3, 4), [(i * 5 % 7 - 3) / 4 for i in range(12)])])
    # The same after two convolutions: such a batch takes memory.
    w = [((i * 37 + i // 7 * 13) % 67 - 33) / 256 for i in range(8 * 8 * 9)]
    conv = {'kernel_shape': (3, 3), 'pads': (1, 1, 1, 1)}
    models['joined'] = graph([('Conv', ['x', 'a'], ['c'], conv), ('Relu', ['c'], ['d'], {}), ('Conv', ['d', 'b'], ['e'], conv), ('Relu', ['e'], ['r'], {}),
                              ('Flatten', ['r'], ['f'], {}), ('MatMul', ['f', 'w'], ['l'], {}), ('ReduceMean', ['l'], ['m'], {'axes': (0,)}),
                              ('Sub', ['l', 'm'], ['y'], {})],
                             [('x', 'FP32', ('n', 3, 12, 12))], [('y', 'FP32', ('n', 4))],
                             [('a', 'FP32', (8, 3, 3, 3), w[:216]), ('b', 'FP32', (8, 8, 3, 3), w),
                              ('w', 'FP32', (8 * 144, 4), [(i * 5 % 7 - 3) / 16 for i in range(8 * 144 * 4)])])
    for name, model in models.items():
        with open(f'{folder}/{name}.onnx', 'wb') as f:
            f.write(model)


def external_add(elements, location):
    """y = x + w [elements], w in the file `location` beside the model."""
    entries = b''.join(_bytes(13, _bytes(1, k) + _bytes(2, v)) for k, v in
                       ((b'location', location.encode()), (b'offset', b'0'), (b'length', b'%d' % (4 * elements))))
    w = _int(1, elements) + _int(2, 1) + _bytes(8, b'w') + entries + _int(14, 1)
    graph = _bytes(1, _bytes(1, b'x') + _bytes(1, b'w') + _bytes(2, b'y') + _bytes(4, b'Add')) + _bytes(2, b'test') + _bytes(5, w)
    graph += _bytes(11, _value('x', 'FP32', (elements,))) + _bytes(12, _value('y', 'FP32', (elements,)))
    return _int(1, 8) + _bytes(7, graph) + _bytes(8, _int(2, 17))


def external_graph(nodes, inputs, outputs, tensors, location, constants=()):
    """graph() with further constants, FP32 tensors (name, dims), in the file `location` beside the model, one behind the other."""
    made = [b''.join(_bytes(1, i.encode()) for i in ins) + b''.join(_bytes(2, o.encode()) for o in outs) + _bytes(4, op.encode()) +
            b''.join(_bytes(5, _attribute(*a)) for a in more.items()) for op, ins, outs, more in nodes]
    constants, at = [_constant(*c) for c in constants], 0
    for name, dims in tensors:
        size = 4
        for d in dims:
            size *= d
        entries = b''.join(_bytes(13, _bytes(1, k) + _bytes(2, v)) for k, v in
                           ((b'location', location.encode()), (b'offset', b'%d' % at), (b'length', b'%d' % size)))
        constants.append(b''.join(_int(1, d) for d in dims) + _int(2, 1) + _bytes(8, name.encode()) + entries + _int(14, 1))
        at += size
    return _model(made, [_value(*i) for i in inputs], [_value(*o) for o in outputs], constants)


def external_sum(layers, location):
    """y = x + w0 + w1 + .. [n], whose wi have layers[i] elements each in the file `location`: 1, or the same for all."""
    last, most = len(layers) - 1, max(layers)
    nodes = [('Add', [f't{i - 1}' if i else 'x', f'w{i}'], [f't{i}' if i < last else 'y'], {}) for i in range(last + 1)]
    return external_graph(nodes, [('x', 'FP32', (most,))], [('y', 'FP32', (most,))], [(f'w{i}', (n,)) for i, n in enumerate(layers)], location)


if __name__ == '__main__':
    main(sys.argv[1])
