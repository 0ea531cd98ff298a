#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A device's only instruction set: answers, kernels, times. Speaks TAP. usage: tests/isa_test.py BUILD_DIR, from the root."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import tap

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
FOLDER = tempfile.TemporaryDirectory(prefix='hearth-isa-')
STORE = FOLDER.name + '/store'
IMAGES = 'tests/data/digits/images.npy'
BATCH, TRIES = 360, 5
FORBIDDEN = {'sse2': ('avx', 'amx'), 'avx2': ('avx512', 'amx'), 'avx512': ('amx', 'avx512_core_')}  # in the names of kernels
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN', 'HEARTH_ISA'):
    os.environ.pop(name, None)


def hearth(*args, device=None, **env):
    """An engine of one process, on the common store."""
    where = ('--store', STORE, '--device', device) if device else ()
    return subprocess.run([BUILD + '/hearth', *args, *where], capture_output=True, text=True, check=False, env={**os.environ, **env})


def cpu(isa):
    return 'cpu:mem=256MiB,threads=1' + (f',isa={isa}' if isa else '')


def answer(device):
    """The logits, and the kernels of oneDNN that computed them."""
    folder = tempfile.mkdtemp(dir=FOLDER.name)
    r = hearth('infer', 'digits', '--input', IMAGES, '--output-dir', folder, device=device, DNNL_VERBOSE='1', ONEDNN_VERBOSE='1')
    assert r.returncode == 0, r.stderr
    with open(folder + '/logits.npy', 'rb') as f:
        data = f.read()[-BATCH * 40:]
    kernels = [line.split(',') for line in r.stdout.splitlines() if line.startswith('onednn_verbose') and ',exec,' in line]
    return struct.unpack(f'<{BATCH * 10}f', data), [k[k.index('cpu') + 2] for k in kernels]


def candidates(isa, *more):
    r = hearth('convsel', 'digits', '--batch', str(BATCH), '--json', *more, device=cpu(isa))
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def fastest(isa):
    """The least time of each convolution, together."""
    least = {}
    for c in candidates(isa, '--again'):
        least[c['node']] = min(least.get(c['node'], c['time_us']), c['time_us'])
    return sum(least.values())


class Isa(unittest.TestCase):
    def setUp(self):
        if not os.path.exists(STORE):
            self.assertEqual(hearth('import', 'digits', 'tests/data/digits/digits.onnx', device=cpu(None)).returncode, 0)
        devices = json.loads(hearth('devices', '--json', device=cpu(None)).stdout)['devices']
        self.sets = [s for s, size in (('sse2', 16), ('avx2', 32), ('avx512', 64)) if size <= devices[0]['vector_bytes']]

    def test_answers_are_those_of_plain_c(self):
        want, _ = answer('fake:mem=256MiB')
        most = max(map(abs, want))
        for isa in self.sets:
            with self.subTest(isa):
                got, kernels = answer(cpu(isa))
                self.assertLess(max(abs(a - b) for a, b in zip(got, want)), 1e-5 * most)
                for word in FORBIDDEN[isa]:
                    self.assertFalse([k for k in kernels if word in k])

    def test_candidates_are_those_of_the_set(self):
        first = {isa: candidates(isa) for isa in self.sets}
        names = {isa: {c['algorithm'] for c in first[isa]} for isa in self.sets}
        for isa in self.sets:
            self.assertTrue([n for n in names[isa] if isa in n], names[isa])
            for word in FORBIDDEN[isa]:
                self.assertFalse([n for n in names[isa] if word in n], names[isa])
        for isa in self.sets:  # measured once a set: the common store keeps them apart
            self.assertEqual(candidates(isa), first[isa])

    def test_fewer_instructions_are_slower(self):
        if len(self.sets) < 2:
            self.skipTest('the processor has SSE2 only')
        ratios = []
        while not ratios or (max(ratios) < 1.5 and len(ratios) < TRIES):  # other programs may compute meanwhile
            ratios.append(fastest('sse2') / fastest(self.sets[-1]))
        print('# sse2 takes', ', '.join(f'{r:.2f}' for r in ratios), f'times as long as {self.sets[-1]}')
        self.assertGreater(max(ratios), 1.5)

    def test_devices_of_a_server(self):
        if len(self.sets) < 2:
            self.skipTest('the processor has SSE2 only')
        server = tap.Daemon(BUILD, '--device', 'cpu:1,mem=64MiB,threads=1,isa=sse2', '--device', 'cpu:2,mem=64MiB,threads=1,isa=avx2')
        url = ('--server', f'ipc://{server.folder}/sock', '--json')
        devices = json.loads(hearth('devices', *url).stdout)['devices']
        self.assertEqual([d['vector_bytes'] for d in devices[1:]], [16, 32])
        self.assertIn('SSE2', devices[1]['description'])
        self.assertEqual(server.stop(), 0)

    def test_refusals(self):
        for device, sentence in (('cpu:isa=avx3', 'device option isa=avx3: expected sse2, avx2 or avx512\n'),
                                 ('cpu:isa=avx2', 'device cpu:0 has isa=avx2, but the widest set here is sse2\n')):
            r = subprocess.run([BUILD + '/hearthd', '--store', FOLDER.name + '/other', '--listen', f'ipc://{FOLDER.name}/sock', '--device',
                                device], capture_output=True, text=True, check=False, timeout=60, env={**os.environ, 'HEARTH_ISA': 'sse2'})
            self.assertNotEqual(r.returncode, 0)
            self.assertIn(sentence, r.stderr)
        r = hearth('devices', '--device', 'cpu:1,mem=64MiB', device='cpu:0,mem=64MiB,isa=sse2')
        self.assertIn('each set needs a process of its own', r.stderr)
        self.assertEqual(r.returncode, 1)


if __name__ == '__main__':
    sys.exit(tap.run([Isa]))
