#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries as inputs and answers as theirs, through DLPack: in place, and given back once. Without such a library
(torch_test.py has one): what lends is made by hand. Speaks TAP. usage: tests/python/dlpack_test.py BUILD_DIR, from the root."""
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
import tap  # noqa: E402

tap.need_numpy()
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
sys.path.insert(0, 'client/python')
import numpy as np  # noqa: E402
import engines  # noqa: E402
import hearthd  # noqa: E402
from hearthd import _memory  # noqa: E402
import tensors  # noqa: E402
from lending import Lender, out, tensor_of  # noqa: E402
from onnx_small import identity  # noqa: E402

DIGITS = 'tests/data/digits'
IMAGES, LABELS = np.load(DIGITS + '/images.npy'), np.load(DIGITS + '/labels.npy')
KINDS = {'FP32': (np.float32, 2), 'FP64': (np.float64, 2), 'FP16': (np.float16, 2), 'BOOL': (np.bool_, 6), 'INT8': (np.int8, 0),
         'INT16': (np.int16, 0), 'INT32': (np.int32, 0), 'INT64': (np.int64, 0), 'UINT8': (np.uint8, 1), 'UINT16': (np.uint16, 1),
         'UINT32': (np.uint32, 1), 'UINT64': (np.uint64, 1)}
FOLDER = tempfile.mkdtemp(prefix='hearth-dlpack-')


def sample(dtype):
    return (np.arange(24).reshape(2, 3, 4) % 2).astype(dtype) if dtype == np.bool_ else np.arange(24).reshape(2, 3, 4).astype(dtype)


def floats(**how):
    return Lender(np.arange(12, dtype=np.float32), 2, 32, **{'shape': (3, 4), **how})


def fill(h):
    for datatype in [*KINDS, 'BF16']:
        path = f'{FOLDER}/{datatype}.onnx'
        with open(path, 'wb') as f:
            f.write(identity(datatype, ('a', 'b', 'c')))
        h.import_model(datatype.lower(), path)
    for name, dims in (('flat', ('n',)), ('square', ('a', 'b'))):
        with open(f'{FOLDER}/{name}.onnx', 'wb') as f:
            f.write(identity('FP32', dims))
        h.import_model(name, f'{FOLDER}/{name}.onnx')
    h.import_model('digits', DIGITS + '/digits.onnx')


def address(array):
    return array.__array_interface__['data'][0]


class Cases:
    """Each with an engine in this process, and with a server."""
    folder, build, fill = FOLDER, BUILD, staticmethod(fill)

    def infer(self, model, value):
        return self.h.infer(model, value)[{'digits': 'logits'}.get(model, 'OUTPUT0')]

    def test_types(self):
        for datatype, (dtype, code) in KINDS.items():
            for version in ((1, 0), (1, 3), None):  # None: before DLPack 1.0
                with self.subTest(datatype=datatype, version=version):
                    lender = Lender(sample(dtype), code, 8 * np.dtype(dtype).itemsize, version=version)
                    got = self.infer(datatype.lower(), {'INPUT0': lender})
                    np.testing.assert_array_equal(got, lender.memory)
                    self.assertEqual(got.dtype, lender.memory.dtype)
                    self.assertEqual((lender.lent, lender.returned), (1, 1))

    def test_bf16(self):
        bits = np.array([0x3f80, 0xbf80, 0x4049, 0x0001, 0x7f80, 0xff80], np.uint16).reshape(1, 2, 3)  # 1, -1, 3.14, tiny, inf, -inf
        lender = Lender(bits, 4, 16)
        got = self.infer('bf16', lender)
        np.testing.assert_array_equal(got.astype(np.float32), (bits.astype(np.uint32) << 16).view(np.float32))
        self.assertEqual((lender.lent, lender.returned), (1, 1))

    def test_digits(self):
        lender = Lender(IMAGES, 2, 32)
        self.assertGreater(float((self.infer('digits', {'image': lender}).argmax(1) == LABELS).mean()), 0.97)
        self.assertEqual((lender.lent, lender.returned), (1, 1))

    def test_strides(self):
        """Where the elements do not lie one after the other, they are copied."""
        x = np.arange(12, dtype=np.float32)
        for strides, want in (((4, 1), x.reshape(3, 4)), ((1, 3), x.reshape(4, 3).T), ((0, 1), x[None, :4].repeat(3, 0))):
            np.testing.assert_array_equal(self.infer('square', floats(strides=strides)), want)
        back = floats(offset=44, strides=(-4, -1))
        np.testing.assert_array_equal(self.infer('square', back), x[::-1].reshape(3, 4))
        self.assertEqual((back.lent, back.returned), (1, 1))

    def test_no_elements(self):
        for null in (False, True):
            empty = Lender(np.empty((0, 4), np.float32), 2, 32, null=null, strides=(9, 9))
            self.assertEqual(self.infer('square', empty).shape, (0, 4))
            self.assertEqual(empty.returned, 1)

    def test_refused(self):
        """One sentence, with the input's name, and what was lent is given back."""
        for lender, words in ((floats(device=(2, 1)), r"'INPUT0': the tensor is on CUDA device 1 \(DLPack's type 2\): copy it to the CPU$"),
                              (floats(device=(10, 0)), 'on ROCm device 0'), (floats(device=(99, 0)), 'on another device 0'),
                              (floats(device=(2, 0), claimed=(1, 0)), 'on CUDA device 0'), (floats(lanes=4), '32 bits, 4 lanes'),
                              (Lender(np.zeros((3, 4), np.complex64), 5, 64), "'INPUT0': hearth has no type with code 5 .64 bits"),
                              (Lender(np.zeros((3, 4), np.uint8), 6, 1), 'no type with code 6 .1 bits'),
                              (Lender(np.zeros((3, 4), np.uint8), 10, 8), 'no type with code 10 .8 bits'),
                              (floats(null=True), 'elements, but no data'), (floats(shape=[1] * 9), '9 dimensions, at most 8')):
            with self.subTest(words=words):
                with self.assertRaisesRegex(hearthd.InvalidArgument, words):
                    self.h.infer('square', {'INPUT0': lender})
                gc.collect()  # of the exception
                self.assertEqual(lender.returned, lender.lent)
        later = floats(version=(2, 5))
        with self.assertRaisesRegex(hearthd.NotSupported, "'INPUT0': the tensor is of DLPack 2.5, and only 1.x is known"):
            self.h.infer('square', {'INPUT0': later})
        with self.assertRaises(hearthd.Error):
            self.h.infer('square', {'INPUT0': floats(), 'other': floats()})  # the model has one of the two
        gc.collect()
        self.assertEqual((later.returned, len(out)), (1, 0))

    def test_not_lent(self):
        """What cannot be lent, NumPy may still copy; where it cannot either, the lender says why."""
        class Packed:
            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, **how):
                raise BufferError('it is packed')

        class Copied(Packed):
            def __array__(self, dtype=None, copy=None):
                return np.ones((3, 4), np.float32)

        class Odd(Packed):
            def __dlpack__(self, **how):
                return 'no capsule'
        np.testing.assert_array_equal(self.infer('square', Copied()), np.ones((3, 4)))
        with self.assertRaisesRegex(hearthd.InvalidArgument, "'INPUT0': it is packed$"):
            self.h.infer('square', {'INPUT0': Packed()})
        with self.assertRaisesRegex(hearthd.InvalidArgument, 'gave no capsule'):
            self.h.infer('square', {'INPUT0': Odd()})

    def test_read_only(self):
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        x.flags.writeable = False
        np.testing.assert_array_equal(self.infer('square', x), x)
        self.assertEqual(_memory.inputs(x)[0][0].data, address(x))  # in place

    def test_in_place(self):
        for lender in (floats(), floats(offset=16, shape=(2, 4)), floats(version=None)):
            given, keep = _memory.inputs({'INPUT0': lender})
            self.assertEqual((given[0].data, lender.returned), (lender.address, 0))  # lent until the call is over
            del given, keep
            self.assertEqual((lender.lent, lender.returned), (1, 1))

    @unittest.skipUnless(hasattr(np, 'from_dlpack'), 'NumPy is older than 1.23')
    def test_answers_are_lent(self):
        """In place, to be written, and there until the last user is gone: of the client, the answer, its array, and who got it."""
        h = self.another()
        x = np.arange(12, dtype=np.float32).reshape(3, 4)
        answer = h.infer('square', x)
        y = answer['OUTPUT0']
        self.assertTrue(y.flags.writeable)
        memory = weakref.ref(y.base.owner)
        capsule = y.__dlpack__()
        self.assertEqual(tensor_of(capsule).data, address(y))
        del capsule
        theirs = np.from_dlpack(y)
        self.assertTrue(np.shares_memory(theirs, y))
        y[0, 0] = 99
        h.close()
        del h, answer, y
        gc.collect()
        self.assertIsNotNone(memory())
        self.assertEqual(theirs[0, 0], 99)
        np.testing.assert_array_equal(theirs.ravel()[1:], x.ravel()[1:])
        del theirs
        gc.collect()
        self.assertIsNone(memory())

    @unittest.skipUnless(_memory.BFLOAT16 in _memory.DTYPES, 'ml_dtypes is not installed: BF16 arrives as FP32')
    def test_bf16_is_lent(self):
        bits = np.arange(0x3f80, 0x3f80 + 6, dtype=np.uint16).reshape(1, 2, 3)
        y = self.infer('bf16', Lender(bits, 4, 16))
        for part in (y, y[0, :, 1:], y.T):
            capsule = part.__dlpack__()
            t = tensor_of(capsule)
            self.assertEqual((t.code, t.bits, t.data, t.ndim), (4, 16, address(part), part.ndim))
        np.testing.assert_array_equal(self.infer('bf16', y).view(np.uint16), bits)
        capsule = y.astype(np.float32).__dlpack__()
        self.assertEqual(tensor_of(capsule).code, 2)

    def test_training_data(self):
        """Samples may be lent, too."""
        path, bits, x = FOLDER + '/lent.safetensors', Lender(np.arange(6, dtype=np.uint16), 4, 16), floats(strides=(1, 3))
        _memory.write_safetensors(path, {'x': x, 'b': bits})
        head, data = tensors.read(path)
        self.assertEqual([(t['dtype'], t['shape']) for t in head.values()], [('F32', [3, 4]), ('BF16', [6])])
        self.assertEqual(data, x.memory.reshape(4, 3).T.tobytes() + bits.memory.tobytes())
        self.assertEqual((x.returned, bits.returned), (1, 1))


class Embedded(engines.Embedded, Cases, unittest.TestCase):
    pass


def worker(lent):
    """Of a pool: a client of its own, tensors that are lent, and answers that are."""
    url, i = lent
    with hearthd.Client(url) as h:
        lender = Lender(IMAGES[i * 60:(i + 1) * 60].copy(), 2, 32)
        y = h.infer('digits', {'image': lender})['logits']
    gc.collect()
    theirs = np.from_dlpack(y) if hasattr(np, 'from_dlpack') else y
    del y
    return theirs.argmax(1).tolist(), lender.lent - lender.returned


class Daemon(engines.Daemon, Cases, unittest.TestCase):
    def test_forked_workers(self):
        """multiprocessing's, of a parent that has lent and has an answer, which it uses after them."""
        lender = Lender(IMAGES, 2, 32)
        mine = self.infer('digits', {'image': lender})
        with multiprocessing.get_context('fork').Pool(2) as pool:
            got = pool.map(worker, [(self.url, i) for i in range(6)], chunksize=1)
        self.assertEqual([kept for _, kept in got], [0] * 6)
        np.testing.assert_array_equal(np.concatenate([labels for labels, _ in got]), mine.argmax(1))
        np.testing.assert_array_equal(self.infer('digits', IMAGES), mine)
        self.assertEqual(lender.returned, 1)


def main():
    code = tap.run((Embedded, Daemon))
    shutil.rmtree(FOLDER, ignore_errors=True)
    return code


if __name__ == '__main__':
    sys.exit(main())
