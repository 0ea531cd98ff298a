#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports: what is written, and that onnxruntime answers as hearth does. Speaks TAP. usage: tests/export_test.py BUILD_DIR, from the root.

The second part needs onnx and onnxruntime: in this Python, or in the one that $HEARTH_ONNXRUNTIME names; without them it is skipped.
"""
import array
import glob
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import tap
import tensors

tap.use_python('onnx, onnxruntime', os.environ.get('HEARTH_ONNXRUNTIME', ''))
try:
    import numpy as np
    import onnx
    import onnxruntime as ort
except ImportError:
    onnx = None

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
HEARTH = BUILD + '/hearth'
DATA = 'tests/data'
NEAR = 1e-5  # of the largest element, at least of 1


def hearth(*args, code=0):
    """What the command prints; of an error its sentence."""
    r = subprocess.run([HEARTH, *args], capture_output=True, text=True, check=False, timeout=300)
    assert r.returncode == code, (args, r.returncode, r.stderr)
    return r.stdout if code == 0 else r.stderr


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='hearth-export-')
        self.addCleanup(shutil.rmtree, self.folder)
        self.store = ('--store', self.folder + '/s')

    def path(self, name):
        return f'{self.folder}/{name}'

    def run_json(self, *args):
        return json.loads(hearth(*self.store, '--json', *args))

    def tensors(self, name):
        """The tensors of a version: what its safetensors export holds."""
        hearth(*self.store, 'export', name, self.path('t.safetensors'))
        head, body = tensors.read(self.path('t.safetensors'))
        return {k: (v['dtype'], v['shape'], body[slice(*v['data_offsets'])]) for k, v in head.items()}


class Files(Case):
    def test_extensions(self):
        """Anything but the two formats is refused before a store is made, and by the server as well."""
        for name in ('m.pt', 'm', 'onnx', '.onnx/m', 'm.onnx.gz', 'm.safetensor'):
            said = hearth('--store', self.path('none'), 'export', 'm', self.path(name), code=1)
            self.assertIn('ends in .onnx or .safetensors', said)
        self.assertEqual(os.listdir(self.folder), [])

    def test_bytes(self):
        self.run_json('import', 'digits', f'{DATA}/digits/digits.onnx')
        for name in ('d.onnx', 'd.SafeTensors'):
            r = self.run_json('export', 'digits', self.path(name))
            self.assertEqual(r, {'bytes': os.path.getsize(self.path(name)), 'moved': 0})

    def test_again(self):
        """An import of the export is the version that was exported: nothing is new."""
        for name, path in (('digits', 'digits/digits.onnx'), ('functions', 'onnx/functions.onnx'), ('external', 'onnx/external.onnx'),
                           ('constant', 'onnx/external_constant.onnx'), ('branch', 'onnx/if_then.onnx'), ('old', 'onnx/ir3.onnx'),
                           ('trains', 'train/net_sgd.onnx')):
            with self.subTest(name):
                self.run_json('import', name, f'{DATA}/{path}')
                self.run_json('export', name, self.path(name + '.onnx'))
                self.assertTrue(self.run_json('import', name, self.path(name + '.onnx'))['unchanged'])

    def test_absent(self):
        self.run_json('import', 'digits', f'{DATA}/digits/digits.onnx')
        self.assertIn("no model 'digit'", hearth(*self.store, 'export', 'digit', self.path('d.onnx'), code=1))
        self.assertIn('no version 2', hearth(*self.store, 'export', 'digits:2', self.path('d.onnx'), code=1))
        self.assertIn('cannot write', hearth(*self.store, 'export', 'digits', self.path('none/d.onnx'), code=1))
        self.assertEqual(os.listdir(self.folder), ['s'])

    def test_damaged(self):
        """A tensor whose bytes are not what they were: no file."""
        with open(self.path('big.onnx'), 'wb') as f:
            f.write(big_model())
        self.run_json('import', 'big', self.path('big.onnx'))
        stored = max(glob.glob(self.path('s/tensors/*/*')), key=os.path.getsize)
        os.truncate(stored, os.path.getsize(stored) - 1)
        self.assertIn("tensor 'w'", hearth(*self.store, 'export', 'big', self.path('out.onnx'), code=1))
        self.assertEqual([n for n in os.listdir(self.folder) if n.startswith('out')], [])

    def test_memory(self):
        """A server writes 200 MB without growing by them."""
        daemon = tap.Daemon(BUILD)
        self.addCleanup(daemon.stop)
        self.store = ('--server', f'ipc://{daemon.folder}/sock')
        with open(self.path('big.onnx'), 'wb') as f:
            f.write(big_model(50_000_000))
        self.run_json('import', '--no-wait', 'big', self.path('big.onnx'))
        os.remove(self.path('big.onnx'))
        for name in ('out.onnx', 'out.safetensors'):
            # What its processes hold now; from here on the most that they held is kept by the system.
            pids = [daemon.process.pid, *tap.children(daemon.process.pid)]
            before = [self.status(p, 'VmRSS') for p in pids]
            for p in pids:
                with open(f'/proc/{p}/clear_refs', 'w', encoding='ascii') as f:
                    f.write('5')
            self.assertGreater(self.run_json('export', 'big', self.path(name))['bytes'], 200_000_000)
            for p, held in zip(pids, before):
                self.assertLess(self.status(p, 'VmHWM') - held, 64 << 20)
            os.remove(self.path(name))

    def status(self, pid, key):
        with open(f'/proc/{pid}/status', encoding='ascii') as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith(key + ':'))


def big_model(elements=100_000):
    """y = x + w, w of so many elements."""
    from onnx_small import graph  # pylint: disable=import-outside-toplevel
    if elements <= 100_000:
        return graph([('Add', ['x', 'w'], ['y'], {})], [('x', 'FP32', (elements,))], [('y', 'FP32', (elements,))],
                     [('w', 'FP32', (elements,), [i % 251 for i in range(elements)])])
    small = big_model(10_000)
    return bigger(small, elements)


def bigger(model, elements):
    """The same with w of so many elements: its content repeated, all lengths around it mended."""
    from onnx_small import varint  # pylint: disable=import-outside-toplevel

    def fields(data):
        at = 0
        while at < len(data):
            start = at
            tag, at = number(data, at)
            if tag & 7 == 0:
                _, at = number(data, at)
                yield tag, None, data[start:at]
            else:
                n, at = number(data, at)
                yield tag, data[at:at + n], data[start:at + n]
                at += n

    def number(data, at):
        n = shift = 0
        while True:
            n |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                return n, at

    def tensor(data):
        out = varint(8) + varint(elements)
        for tag, payload, whole in fields(data):
            if tag == 9 << 3 | 2:
                body = payload * (elements * 4 // len(payload))
                out += varint(tag) + varint(len(body)) + body
            elif tag >> 3 != 1:
                out += whole
        return out

    def rebuild(data, path):
        out = []
        for tag, payload, whole in fields(data):
            if tag == path[0] << 3 | 2:
                payload = tensor(payload) if len(path) == 1 else rebuild(payload, path[1:])
                out += [varint(tag), varint(len(payload)), payload]
            else:
                out.append(whole)
        return b''.join(out)

    return rebuild(model, (7, 5))


@unittest.skipUnless(onnx, 'onnx and onnxruntime are not installed (HEARTH_ONNXRUNTIME=PYTHON)')
class Runtime(Case):
    """Answers of onnxruntime and of hearth to the same models."""

    def signature(self, model):
        """Inputs that the file asks for: name, type, shape with 2 for what is open."""
        weights = {t.name for t in model.graph.initializer}
        for v in model.graph.input:
            if v.name not in weights:
                t = v.type.tensor_type
                yield v.name, onnx.helper.tensor_dtype_to_np_dtype(t.elem_type), [d.dim_value or 2 for d in t.shape.dim]

    def inputs(self, model):
        random = np.random.default_rng(7)
        return {name: (random.standard_normal(shape) if np.issubdtype(dtype, np.floating) else random.integers(0, 2, shape)).astype(dtype)
                for name, dtype, shape in self.signature(model)}

    def answers(self, name, inputs):
        """What hearth answers."""
        given = []
        for i, (key, value) in enumerate(inputs.items()):
            np.save(self.path(f'in{i}.npy'), value)
            given += ['--input', f'{key}={self.path(f"in{i}.npy")}']
        shutil.rmtree(self.path('out'), ignore_errors=True)
        hearth(*self.store, 'infer', name, *given, '--output-dir', self.path('out'))
        return lambda output: np.load(f'{self.path("out")}/{output}.npy')

    def sound(self, path):
        """Whether ONNX's checker accepts a file."""
        try:
            onnx.checker.check_model(path, full_check=True)
            return True
        except onnx.checker.ValidationError:
            return False

    def session(self, path):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        return ort.InferenceSession(path, options, providers=['CPUExecutionProvider'])

    def compare(self, name, imported):
        """The file is as valid as the one that was imported, and its answers are near."""
        path = self.path(name + '.onnx')
        self.run_json('export', name, path)
        self.assertGreaterEqual(self.sound(path), self.sound(imported))
        inputs = self.inputs(onnx.load(path))
        session = self.session(path)
        mine = self.answers(name, inputs)
        for output, want in zip(session.get_outputs(), session.run(None, inputs)):
            got = mine(output.name)
            self.assertEqual((got.shape, got.dtype), (want.shape, want.dtype))
            allowed = NEAR * max(1, np.abs(want).max(initial=0))
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=0, atol=allowed, err_msg=name)

    def test_imported(self):
        """Old opsets, functions, branches, external data, Constants, all element types."""
        ran = 0
        unlike = {
            'batch_norm9_training', 'batch_norm15_training', 'dropout13_training',  # untrained, they are served in training mode
            'clip6_f16', 'typed',  # half precision is not near; BF16 is no type of NumPy's
            'resize10_down', 'resize11_tf', 'upsample8', 'upsample9',  # where operators differ, docs/onnx.md says so
        }
        for path in sorted(glob.glob(f'{DATA}/onnx/*.onnx') + glob.glob(f'{DATA}/passes/*.onnx') + glob.glob(f'{DATA}/digits/*.onnx')):
            name = os.path.basename(path)[:-5]
            if name in unlike:
                continue
            with self.subTest(name):
                try:
                    self.session(path)
                except Exception:  # pylint: disable=broad-exception-caught
                    continue  # onnxruntime does not run what was imported
                self.run_json('import', name, path)
                self.compare(name, path)
                ran += 1
        self.assertGreater(ran, 40)

    def test_trained(self):
        """Models in training mode, trained for two steps: the file is in inference form."""
        for path in sorted(glob.glob(f'{DATA}/train/*.onnx')):
            name = os.path.basename(path)[:-5]
            if name == 'no_gradient':
                continue
            with self.subTest(name):
                self.run_json('import', name, path)
                (key, x), = self.inputs(onnx.load(path)).items()
                x = np.concatenate([x] * 3)[:8] if len(x) < 8 else x[:8]
                output = onnx.load(path).graph.output[0].name
                y = self.answers(name, {key: x})(output)
                random = np.random.default_rng(1)
                tensors.save(self.path('d.safetensors'), x=x, y=random.standard_normal(y.shape).astype(np.float32))
                hearth(*self.store, 'train', name, '--data', self.path('d.safetensors'), '--loss', 'mse', '--optimizer', 'sgd', '--lr', '0.01',
                       '--batch', str(max(1, len(x) // 2)), '--epochs', '1', '--save-as', name + '-trained')
                self.compare(name + '-trained', path)
                kinds = {n.op_type: n for n in onnx.load(self.path(name + '-trained.onnx')).graph.node}
                if 'BatchNormalization' in kinds:
                    self.assertEqual(len(kinds['BatchNormalization'].output), 1)
                self.assertEqual(set(self.tensors(name)), set(self.tensors(name + '-trained')))


if __name__ == '__main__':
    sys.exit(tap.run([Files, Runtime]))
