#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors as inputs, answers as PyTorch's, and its DataLoader, whose workers ask a server. Speaks TAP.

usage: tests/python/torch_test.py BUILD_DIR, from the root. Without PyTorch, here or in ~/.cache/hearth-peers, all is skipped.
"""
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import weakref

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
import tap  # noqa: E402

if not tap.use_python('torch, numpy', os.path.expanduser('~/.cache/hearth-peers/bin/python')):
    print('1..0 # SKIP PyTorch is not installed')
    sys.exit(0)

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
sys.path.insert(0, 'client/python')
import numpy as np  # noqa: E402
import torch  # noqa: E402
import engines  # noqa: E402
import hearthd  # noqa: E402
from hearthd import _memory  # noqa: E402
from onnx_small import identity  # noqa: E402

DIGITS = 'tests/data/digits'
IMAGES, LABELS = torch.from_numpy(np.load(DIGITS + '/images.npy')), torch.from_numpy(np.load(DIGITS + '/labels.npy').astype(np.int64))
TYPES = {'FP32': torch.float32, 'FP64': torch.float64, 'FP16': torch.float16, 'BF16': torch.bfloat16, 'BOOL': torch.bool, 'INT8': torch.int8,
         'INT16': torch.int16, 'INT32': torch.int32, 'INT64': torch.int64, 'UINT8': torch.uint8}
FOLDER = tempfile.mkdtemp(prefix='hearth-torch-')


def fill(h):
    for datatype in TYPES:
        path = f'{FOLDER}/{datatype}.onnx'
        with open(path, 'wb') as f:
            f.write(identity(datatype, ('a', 'b')))
        h.import_model(datatype.lower(), path)
    h.import_model('digits', DIGITS + '/digits.onnx')


def right(logits):
    return float((logits.argmax(1) == LABELS).double().mean()) > 0.97


class Cases:
    """Each with an engine in this process, and with a server."""
    folder, build, fill = FOLDER, BUILD, staticmethod(fill)

    def same(self, datatype, x):
        y = torch.from_dlpack(self.h.infer(datatype.lower(), {'INPUT0': x})['OUTPUT0'])
        self.assertEqual(y.dtype, x.dtype if datatype != 'BF16' or _memory.BFLOAT16 in _memory.DTYPES else torch.float32)
        self.assertTrue(torch.equal(y, x.to(y.dtype)))
        return y

    def test_types(self):
        for datatype, dtype in TYPES.items():
            with self.subTest(datatype=datatype):
                self.same(datatype, (torch.arange(12) % 5 - (0 if datatype in ('UINT8', 'BOOL') else 2)).to(dtype).reshape(3, 4))

    def test_in_place(self):
        for dtype in (torch.float32, torch.bfloat16, torch.bool):
            x = torch.zeros(5, 4, dtype=dtype)
            for part in (x, x[2:]):
                tensors, keep = _memory.inputs({'INPUT0': part})
                self.assertEqual((tensors[0].data, tensors[0].bytes), (part.data_ptr(), part.numel() * part.element_size()))
                del tensors, keep

    def test_digits(self):
        """With and without shared memory, which the third call of a connection uses."""
        for _ in range(3):
            self.assertTrue(right(torch.from_dlpack(self.h.infer('digits', {'image': IMAGES})['logits'])))

    def test_copied(self):
        """What is not row-major."""
        x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        for part in (x.T, x[:, ::2], x[:1].expand(3, 4), x.to(torch.float32).T[1:]):
            self.assertFalse(part.is_contiguous())
            self.same('FP32', part)
        self.same('BF16', x.bfloat16().T)
        self.same('FP32', torch.empty(0, 4))

    def test_refused(self):
        x = torch.zeros(3, 4)
        for value, words in ((x.to(torch.complex64), "'INPUT0': hearth has no type torch.complex64"),
                             (x.to(torch.float8_e5m2), 'no type torch.float8_e5m2'), (x.clone().requires_grad_(), "'INPUT0': .*detach"),
                             (x.to('meta'), "'INPUT0': .*meta"), (x.to_sparse(), "'INPUT0': .*layout")):
            with self.subTest(words=words):
                with self.assertRaisesRegex(hearthd.InvalidArgument, words):
                    self.h.infer('fp32', {'INPUT0': value})
        if torch.cuda.is_available():
            with self.assertRaisesRegex(hearthd.InvalidArgument, 'on CUDA device 0 .*copy it to the CPU'):
                self.h.infer('fp32', {'INPUT0': x.cuda()})

    def test_answers(self):
        """A tensor over an answer writes it, and outlives array, answer and client."""
        for datatype in ('FP32', 'BF16'):
            if datatype == 'BF16' and _memory.BFLOAT16 not in _memory.DTYPES:
                continue  # it is a copy of other bits
            h = self.another()
            x = torch.arange(12).to(TYPES[datatype]).reshape(3, 4)
            answer = h.infer(datatype.lower(), x)
            array = answer['OUTPUT0']
            y = torch.from_dlpack(array)
            self.assertEqual(y.data_ptr(), array.__array_interface__['data'][0] if datatype == 'FP32' else array.ctypes.data)
            base = array
            while isinstance(base, np.ndarray):
                base = base.base
            memory = weakref.ref(base.owner)
            y[0, 0] = 7
            self.assertEqual(float(array[0, 0]), 7)
            h.close()
            del h, answer, array, base
            gc.collect()
            row = y[0]
            del y
            self.assertIsNotNone(memory())
            self.assertEqual(row.float().tolist(), [7, 1, 2, 3])
            del row
            gc.collect()
            self.assertIsNone(memory())

    def test_buffer(self):
        """PyTorch writes a buffer in place."""
        image = self.h.buffer(tuple(IMAGES.shape))
        torch.from_dlpack(image).copy_(IMAGES)
        self.assertTrue(right(torch.from_dlpack(self.h.infer('digits', image)['logits'])))


class Embedded(engines.Embedded, Cases, unittest.TestCase):
    pass


class Features(torch.utils.data.Dataset):
    """What a model makes of each picture: in a worker, by a client of its own."""

    def __init__(self, client):
        self.client, self.pid, self.refused = client, os.getpid(), False

    def __len__(self):
        return len(IMAGES)

    def __getitem__(self, i):
        if self.pid != os.getpid():  # a worker: its parent's client says so, once
            try:
                self.client.infer('digits', {'image': IMAGES[i:i + 1]})
            except hearthd.InvalidArgument as e:
                self.refused = 'was opened before a fork' in str(e)
            self.client, self.pid = hearthd.Client(self.client.url), os.getpid()
        y = torch.from_dlpack(self.client.infer('digits', {'image': IMAGES[i:i + 1]})['logits'])
        return y[0], self.pid, self.refused


class Daemon(engines.Daemon, Cases, unittest.TestCase):
    def test_data_loader(self):
        for _ in range(3):
            mine = torch.from_dlpack(self.h.infer('digits', {'image': IMAGES})['logits'])
        for persistent in (False, True):
            loader = torch.utils.data.DataLoader(Features(self.h), batch_size=30, num_workers=2, multiprocessing_context='fork',
                                                 persistent_workers=persistent)
            for _ in range(2):  # each time with new workers, or with the same
                logits, pids, old = zip(*loader)
                self.assertTrue(torch.allclose(torch.cat(logits), mine, atol=1e-4))
                self.assertEqual(len(set(torch.cat(pids).tolist())), 2)
                self.assertTrue(torch.cat(old).all())
            del loader
        self.assertTrue(right(torch.from_dlpack(self.h.infer('digits', {'image': IMAGES})['logits'])))
        self.assertTrue(self.daemon.alive())


class Header(unittest.TestCase):
    def test_program(self):
        """A program with PyTorch's copy of dlpack.h: what hearth writes down of it is laid out alike."""
        if shutil.which('g++') is None:
            self.skipTest('there is no g++ (make deps-test)')
        include = os.path.join(os.path.dirname(torch.__file__), 'include')
        if not os.path.exists(include + '/ATen/dlpack.h'):
            self.skipTest('PyTorch has no dlpack.h')
        program = FOLDER + '/program'
        built = subprocess.run(['g++', '-std=c++17', '-Wall', '-Wextra', '-Werror', '-Iclient', '-isystem', include, '-DDLPACK_H=<ATen/dlpack.h>',
                                '-o', program, 'tests/cxx/dlpack.cpp', '-L' + BUILD, '-lhearth', '-Wl,-rpath,' + BUILD],
                               check=False, capture_output=True, text=True)
        self.assertEqual(built.returncode, 0, built.stderr)
        run = subprocess.run([program, FOLDER + '/program-store', DIGITS], check=False, capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout), (0, 'lent and given back\n'), run.stderr)


def main():
    code = tap.run((Embedded, Daemon, Header))
    shutil.rmtree(FOLDER, ignore_errors=True)
    return code


if __name__ == '__main__':
    sys.exit(main())
