#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quantised operators of ONNX against the formulas of their specification, in whole numbers; and what is refused. Speaks TAP.
usage: tests/infer/quantized_test.py BUILD_DIR, from the root."""
import os
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
os.environ['HEARTH_LIBRARY'] = os.path.join(BUILD, 'libhearth.so')
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(ROOT, 'client', 'python'), os.path.join(ROOT, 'tests')]
import tap  # noqa: E402

if __name__ == '__main__':
    tap.need_numpy()
import numpy as np  # noqa: E402
from onnx_small import graph  # noqa: E402

import hearthd  # noqa: E402

NAMES = {'float32': 'FP32', 'float16': 'FP16', 'uint8': 'UINT8', 'int8': 'INT8', 'uint16': 'UINT16', 'int16': 'INT16', 'int32': 'INT32', 'int64': 'INT64'}


def along(p, rank, axis):
    """A parameter for each index of an axis, as it broadcasts."""
    p = np.asarray(p)
    return p if p.size == 1 else p.reshape([-1 if i == axis % rank else 1 for i in range(rank)])


def quantized(x, scale, zero, dtype, axis=1):
    scale, zero = along(np.float32(scale), x.ndim, axis), along(zero, x.ndim, axis)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x / scale).astype(np.int64) + zero, limits.min, limits.max).astype(dtype)


def floats(q, scale, zero, axis=1):
    return (q.astype(np.int64) - along(zero, q.ndim, axis)).astype(np.float32) * along(np.float32(scale), q.ndim, axis)


def convolved(x, w, stride, pads):
    """Whole numbers: [n, c, h, w] with [m, c, kh, kw]; pads at the top, left, bottom and right."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    n, _, height, width = x.shape
    m, _, kh, kw = w.shape
    y = np.zeros((n, m, (height - kh) // stride + 1, (width - kw) // stride + 1), np.int64)
    for i in range(y.shape[2]):
        for j in range(y.shape[3]):
            y[:, :, i, j] = np.einsum('nchw,mchw->nm', x[:, :, i * stride:i * stride + kh, j * stride:j * stride + kw], w)
    return y


class Quantized(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix='hearth-quantized-')
        cls.client = hearthd.Client(cls.folder.name + '/store', device='cpu:mem=64MiB,threads=2')
        cls.r = np.random.default_rng(7)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.folder.cleanup()

    def imported(self, nodes, inputs, constants, outputs):
        """inputs: arrays, whose first dimension is any; constants: arrays; outputs: types by name, of the first input's rank, "FP32/0" of another one."""
        values = [(name, NAMES[str(a.dtype)], (('n',) + a.shape[1:]) if a.ndim else ()) for name, a in inputs.items()]
        fixed = [(name, NAMES[str(a.dtype)], a.shape, a.ravel().tolist()) for name, a in constants.items()]
        made = [(op, ins, outs, more[0] if more else {}) for op, ins, outs, *more in nodes]
        path = self.folder.name + '/net.onnx'
        with open(path, 'wb') as f:
            rank = max((a.ndim for a in inputs.values()), default=0)
            kinds = [(name, *(t.split('/') if '/' in t else (t, rank))) for name, t in outputs.items()]
            f.write(graph(made, values, [(name, t, tuple(f'{name}{i}' for i in range(int(n)))) for name, t, n in kinds], fixed))
        self.client.import_model('net', path)

    def run_net(self, nodes, inputs, constants, outputs):
        self.imported(nodes, inputs, constants, outputs)
        return self.client.infer('net', inputs)

    def close(self, got, want):
        """The same whole numbers, but for ties that FP32 rounds to the other side: one step, and few."""
        self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
        off = np.abs(got.astype(np.int64) - want)
        self.assertLessEqual(off.max(), 1)
        self.assertLessEqual(np.count_nonzero(off), off.size // 100)

    def test_quantize(self):
        x = np.concatenate([np.float32([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e9, -1e9, 0, 7.4]), self.r.normal(0, 40, 90).astype('f')]).reshape(5, 20)
        for dtype, scale, zero in (('uint8', 1, 0), ('uint8', 0.5, 128), ('int8', 0.37, -3), ('uint16', 0.01, 40000), ('int16', 0.002, 5)):
            got = self.run_net([('QuantizeLinear', ['x', 's', 'z'], ['y'])], {'x': x}, {'s': np.float32(scale), 'z': np.dtype(dtype).type(zero)},
                               {'y': NAMES[dtype]})['y']
            np.testing.assert_array_equal(got, quantized(x, scale, zero, dtype), dtype)
        got = self.run_net([('QuantizeLinear', ['x', 's'], ['y'])], {'x': x}, {'s': np.float32(0.25)}, {'y': 'UINT8'})['y']
        np.testing.assert_array_equal(got, quantized(x, 0.25, 0, 'uint8'))

    def test_quantize_along_an_axis(self):
        x = self.r.normal(0, 30, (2, 3, 4)).astype('f')
        for axis, n in ((1, 3), (-2, 3), (2, 4), (-1, 4)):
            scale, zero = self.r.uniform(0.1, 2, n).astype('f'), self.r.integers(-9, 9, n).astype('i1')
            got = self.run_net([('QuantizeLinear', ['x', 's', 'z'], ['y'], {'axis': axis})], {'x': x}, {'s': scale, 'z': zero}, {'y': 'INT8'})['y']
            np.testing.assert_array_equal(got, quantized(x, scale, zero, 'int8', axis), str(axis))

    def test_dequantize(self):
        for dtype, zero in (('uint8', 200), ('int8', -7), ('uint16', 1000), ('int16', -5), ('int32', 0)):
            limits = np.iinfo(dtype) if dtype != 'int32' else np.iinfo('int16')
            q = self.r.integers(limits.min, limits.max, (3, 50), endpoint=True).astype(dtype)
            got = self.run_net([('DequantizeLinear', ['x', 's', 'z'], ['y'])], {'x': q}, {'s': np.float32(0.3), 'z': np.dtype(dtype).type(zero)},
                               {'y': 'FP32'})['y']
            np.testing.assert_array_equal(got, floats(q, 0.3, zero), dtype)
        q = self.r.integers(-128, 127, (5, 3), endpoint=True).astype('i1')
        for axis, n in ((0, 5), (1, 3), (-1, 3)):  # a constant, folded: the model's input is added
            scale, zero = self.r.uniform(0.1, 2, n).astype('f'), self.r.integers(-9, 9, n).astype('i1')
            got = self.run_net([('DequantizeLinear', ['w', 's', 'z'], ['d'], {'axis': axis}), ('Add', ['d', 'x'], ['y'])],
                               {'x': np.zeros((1, 1), 'f')}, {'w': q, 's': scale, 'z': zero}, {'y': 'FP32'})['y']
            np.testing.assert_array_equal(got, floats(q, scale, zero, axis), str(axis))

    def test_layer_between(self):
        """x and weights quantised and made floats again, a product, its result quantised."""
        x, w = self.r.normal(0, 1, (7, 16)).astype('f'), self.r.integers(-127, 127, (16, 5)).astype('i1')
        ws = self.r.uniform(0.01, 0.02, 5).astype('f')
        constants = {'xs': np.float32(0.02), 'xz': np.uint8(128), 'w': w, 'ws': ws, 'wz': np.zeros(5, 'i1'), 'ys': np.float32(0.1), 'yz': np.uint8(100)}
        got = self.run_net([('QuantizeLinear', ['x', 'xs', 'xz'], ['q']), ('DequantizeLinear', ['q', 'xs', 'xz'], ['f']),
                            ('DequantizeLinear', ['w', 'ws', 'wz'], ['v'], {'axis': 1}), ('MatMul', ['f', 'v'], ['m']),
                            ('QuantizeLinear', ['m', 'ys', 'yz'], ['y']), ('DequantizeLinear', ['y', 'ys', 'yz'], ['z'])],
                           {'x': x}, constants, {'y': 'UINT8', 'z': 'FP32'})
        q = quantized(x, 0.02, 128, 'uint8').astype(np.int64) - 128
        want = quantized((q @ w.astype(np.int64)) * (np.float64(np.float32(0.02)) * ws), 0.1, 100, 'uint8')
        self.close(got['y'], want)
        np.testing.assert_array_equal(got['z'], floats(got['y'], 0.1, 100))

    def test_qlinear_conv(self):
        x, w = self.r.integers(0, 255, (2, 3, 9, 8)).astype('u1'), self.r.integers(-127, 127, (4, 3, 3, 3)).astype('i1')
        bias = self.r.integers(-9000, 9000, 4).astype('i4')
        for ws, b in ((self.r.uniform(0.001, 0.01, 4).astype('f'), bias), (np.float32(0.005), bias), (np.float32(0.005), None)):
            constants = {'xs': np.float32(0.03), 'xz': np.uint8(120), 'w': w, 'ws': ws, 'wz': np.zeros(ws.shape, 'i1'), 'ys': np.float32(0.05),
                         'yz': np.uint8(90), **({'b': b} if b is not None else {})}
            names = ['x', 'xs', 'xz', 'w', 'ws', 'wz', 'ys', 'yz'] + (['b'] if b is not None else [])
            got = self.run_net([('QLinearConv', names, ['y'], {'pads': (1, 0, 1, 1), 'strides': (2, 2)})], {'x': x}, constants, {'y': 'UINT8'})['y']
            y = convolved(x.astype(np.int64) - 120, w.astype(np.int64), 2, (1, 0, 1, 1)) + (0 if b is None else b.reshape(1, 4, 1, 1))
            self.close(got, quantized(y * (np.float64(np.float32(0.03)) * along(ws, 4, 1)), 0.05, 90, 'uint8'))

    def test_qlinear_matmul(self):
        a, b = self.r.integers(0, 255, (6, 20)).astype('u1'), self.r.integers(-127, 127, (20, 5)).astype('i1')
        for scale_a, scale_b in ((np.float32(0.02), np.float32(0.01)), (np.float32(0.02), self.r.uniform(0.005, 0.02, 5).astype('f'))):
            constants = {'as': scale_a, 'az': np.uint8(130), 'b': b, 'bs': scale_b, 'bz': np.full(scale_b.shape, 3, 'i1'), 'ys': np.float32(0.2),
                         'yz': np.int8(-4)}
            got = self.run_net([('QLinearMatMul', ['a', 'as', 'az', 'b', 'bs', 'bz', 'ys', 'yz'], ['y'])], {'a': a}, constants, {'y': 'INT8'})['y']
            sums = (a.astype(np.int64) - 130) @ (b.astype(np.int64) - 3)
            self.close(got, quantized(sums * (np.float64(scale_a) * scale_b), 0.2, -4, 'int8'))

    def test_integer(self):
        """To the rounding of FP32's products."""
        def close(got, want):
            self.assertEqual(got.dtype, np.int32)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
        a, b = self.r.integers(0, 255, (4, 30)).astype('u1'), self.r.integers(-127, 127, (30, 6)).astype('i1')
        for names, az, bz in ((['a', 'b'], 0, 0), (['a', 'b', 'az'], 99, 0), (['a', 'b', 'az', 'bz'], 99, 5)):
            got = self.run_net([('MatMulInteger', names, ['y'])], {'a': a}, {'b': b, 'az': np.uint8(az), 'bz': np.int8(bz)}, {'y': 'INT32'})['y']
            close(got, (a.astype(np.int64) - az) @ (b.astype(np.int64) - bz))
        x, w = self.r.integers(0, 255, (2, 3, 7, 7)).astype('u1'), self.r.integers(0, 255, (4, 3, 3, 3)).astype('u1')
        zeros = self.r.integers(0, 255, 4).astype('u1')
        got = self.run_net([('ConvInteger', ['x', 'w', 'xz', 'wz'], ['y'], {'pads': (1, 1, 1, 1)})], {'x': x}, {'w': w, 'xz': np.uint8(7), 'wz': zeros},
                           {'y': 'INT32'})['y']
        want = convolved(x.astype(np.int64) - 7, w.astype(np.int64) - along(zeros.astype(np.int64), 4, 0), 1, (1, 1, 1, 1))
        close(got, want)

    def test_dynamic(self):
        for x in (self.r.normal(1, 3, (4, 50)).astype('f'), self.r.uniform(1, 2, (3, 4)).astype('f'), -self.r.uniform(1, 2, (3, 4)).astype('f'),
                  np.zeros((2, 2), 'f')):
            got = self.run_net([('DynamicQuantizeLinear', ['x'], ['y', 's', 'z'])], {'x': x}, {}, {'y': 'UINT8', 's': 'FP32/0', 'z': 'UINT8/0'})
            low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
            scale = (high - low) / np.float32(255) if high > low else np.float32(1)
            zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
            self.assertEqual((got['s'], got['z']), (scale, zero))
            np.testing.assert_array_equal(got['y'], quantized(x, scale, int(zero), 'uint8'))

    def test_seen_through(self):
        """Parameters through Identity: of no other type, and along the axis that is meant."""
        x = self.r.normal(0, 50, (3, 4)).astype('f')
        got = self.run_net([('Identity', ['z'], ['same']), ('QuantizeLinear', ['x', 's', 'same'], ['y'])], {'x': x}, {'s': np.float32(1), 'z': np.int8(0)},
                           {'y': 'INT8'})['y']
        np.testing.assert_array_equal(got, quantized(x, 1, 0, 'int8'))
        w, scale = self.r.integers(-100, 100, (4, 4)).astype('i1'), self.r.uniform(0.1, 2, 4).astype('f')
        got = self.run_net([('Identity', ['s'], ['same']), ('DequantizeLinear', ['w', 'same'], ['d'], {'axis': 0}), ('Add', ['d', 'x'], ['y'])],
                           {'x': np.zeros((1, 1), 'f')}, {'w': w, 's': scale}, {'y': 'FP32'})['y']
        np.testing.assert_array_equal(got, floats(w, scale, 0, 0))

    def test_weights_as_floats(self):
        """As trainers write them: quantised and made floats in the file, for each channel."""
        w, scale = self.r.normal(0, 1, (4, 6)).astype('f'), self.r.uniform(0.01, 0.02, 4).astype('f')
        got = self.run_net([('QuantizeLinear', ['w', 's', 'z'], ['q'], {'axis': 0}), ('DequantizeLinear', ['q', 's', 'z'], ['d'], {'axis': 0}),
                            ('Add', ['d', 'x'], ['y'])], {'x': np.zeros((1, 1), 'f')}, {'w': w, 's': scale, 'z': np.zeros(4, 'i1')}, {'y': 'FP32'})['y']
        np.testing.assert_array_equal(got, floats(quantized(w, scale, 0, 'int8', 0), scale, 0, 0))

    def test_integers_of_others(self):
        """What a file casts to integers by itself is cut, and what it clips to other limits wraps."""
        x = np.float32([[0.2, 1.7, 3.5, 200.9]])
        got = self.run_net([('Clip', ['x', 'low', 'high'], ['c']), ('Cast', ['c'], ['q'], {'to': 2}), ('DequantizeLinear', ['q', 's'], ['y'])], {'x': x},
                           {'low': np.float32(0), 'high': np.float32(255), 's': np.float32(1)}, {'y': 'FP32', 'c': 'FP32'})['y']
        np.testing.assert_array_equal(got, np.floor(x))

    def test_half(self):
        """Whole numbers of 16 bits are none of FP16's: they are FP32's meanwhile."""
        x = np.float16([[-60000, -1, 0, 5, 60000, 1]])
        got = self.run_net([('QuantizeLinear', ['x', 's', 'z'], ['q']), ('DequantizeLinear', ['q', 's', 'z'], ['y'])], {'x': x},
                           {'s': np.float16(1), 'z': np.int16(0)}, {'q': 'INT16', 'y': 'FP16'})
        self.assertEqual(got['q'].tolist(), [[-32768, -1, 0, 5, 32767, 1]])
        self.assertEqual((got['y'].dtype, got['y'].tolist()), (np.float16, [[-32768, -1, 0, 5, 32768, 1]]))

    def test_refusals(self):
        x = np.zeros((2, 3), 'f')
        for value in (0, -1, np.nan, np.inf):
            for op, given in (('QuantizeLinear', x), ('DequantizeLinear', x.astype('u1'))):
                self.refused('which is not positive and finite', [(op, ['x', 's'], ['y'])], {'x': given}, {'s': np.float32(value)})
        self.refused('the zero point is INT8, and what it belongs to UINT8', [('DequantizeLinear', ['x', 's', 'z'], ['y'])], {'x': x.astype('u1')},
                     {'s': np.float32(1), 'z': np.int8(0)})
        self.refused('block_size is not supported', [('DequantizeLinear', ['x', 's'], ['y'], {'block_size': 2})], {'x': x.astype('u1')},
                     {'s': np.ones((2, 3), 'f')}, hearthd.NotSupported)
        self.refused('quantising to INT32 is not supported', [('QuantizeLinear', ['x', 's', 'z'], ['y'])], {'x': x}, {'s': np.float32(1), 'z': np.int32(0)},
                     hearthd.NotSupported)
        self.refused('axis -3 is none of 2 dimensions', [('QuantizeLinear', ['x', 's'], ['y'], {'axis': -3})], {'x': x}, {'s': np.ones(3, 'f')})
        self.refused('the zero point is INT8, and output_dtype UINT8', [('QuantizeLinear', ['x', 's', 'z'], ['y'], {'output_dtype': 2})], {'x': x},
                     {'s': np.float32(1), 'z': np.int8(0)})
        self.refused('axis 3 is none of 2 dimensions', [('QuantizeLinear', ['x', 's'], ['y'], {'axis': 3})], {'x': x}, {'s': np.ones(3, 'f')})
        self.refused('a required input is missing', [('QLinearConv', ['x'] * 7, ['y'])], {'x': x}, {})
        self.refused('3 inputs and 2 outputs are not', [('QuantizeLinear', ['x', 's', 'z'], ['y', 'v'])], {'x': x}, {'s': np.float32(1), 'z': np.uint8(0)})
        with self.assertRaises(hearthd.NotFound):
            self.client.model('other')

    def refused(self, words, nodes, inputs, constants, kind=hearthd.InvalidArgument):
        before = [(m['name'], m['version']) for m in self.client.models()]
        with self.assertRaises(kind) as caught:
            self.imported(nodes, inputs, constants, {'y': 'FP32'})
        self.assertIn(words, str(caught.exception))
        self.assertNotIn('\n', str(caught.exception))
        self.assertEqual([(m['name'], m['version']) for m in self.client.models()], before)


if __name__ == '__main__':
    os.chdir(ROOT)
    sys.exit(tap.run((Quantized,)))
