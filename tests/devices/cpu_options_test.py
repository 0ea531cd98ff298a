#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A CPU device's only instruction set: answers, kernels, times; its quota; what overlaps on two threads. Speaks TAP.

usage: tests/devices/cpu_options_test.py BUILD_DIR, from the root.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, 'tests')

import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
FOLDER = tempfile.TemporaryDirectory(prefix='hearth-cpu-')
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


def processor_seconds(pid):
    """What the processes that `pid` has started have used."""
    ticks = 0
    for child in tap.children(pid):
        with open(f'/proc/{child}/stat', encoding='ascii') as f:
            ticks += sum(map(int, f.read().rsplit(')', 1)[1].split()[11:13]))
    return ticks / os.sysconf('SC_CLK_TCK')


class Quota(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = tap.Daemon(BUILD, '--device', 'cpu:1,mem=256MiB,threads=1,quota=20%')
        cls.url = ('--server', f'ipc://{cls.server.folder}/sock', '--json')
        assert hearth('import', 'digits', 'tests/data/digits/digits.onnx', *cls.url).returncode == 0

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def quotas(self):
        return [d['quota_percent'] for d in json.loads(hearth('devices', *self.url).stdout)['devices']]

    def bench(self, seconds):
        r = hearth('bench', 'digits', '--batch', '64', '--on', 'cpu:1', '--seconds', str(seconds), *self.url)
        self.assertEqual(r.returncode, 0, r.stderr)

    def test_share_of_the_processor(self):
        self.bench(0.1)  # loaded, measured, planned
        self.assertEqual(self.quotas(), [100, 20])
        start, used = time.monotonic(), processor_seconds(self.server.process.pid)
        self.bench(2)
        share = (processor_seconds(self.server.process.pid) - used) / (time.monotonic() - start)
        print(f'# quota 20%: {share:.3f} of a processor')
        self.assertLess(share, 0.3)  # with all that is not computing: messages, the other device
        self.assertGreater(share, 0.05)

    def test_changed_while_it_serves(self):
        r = hearth('quota', 'cpu:1', '70%', *self.url)
        self.assertEqual(json.loads(r.stdout), {'device': 'cpu:1', 'quota_percent': 70})
        self.assertEqual(self.quotas(), [100, 70])
        for args, sentence in ((('cpu:1', '0%'), "quota '0%': expected 1% to 100%"), (('cpu:1', '70'), "quota '70': expected"),
                               (('cpu:7', '70%'), "there is no device 'cpu:7' (there are: cpu:0, cpu:1)")):
            r = hearth('quota', *args, *self.url)
            self.assertNotEqual(r.returncode, 0)
            self.assertIn(sentence, r.stderr)
        self.assertEqual(self.quotas(), [100, 70])
        self.assertEqual(hearth('quota', 'cpu:1', '20%', *self.url).returncode, 0)


class Pairs(unittest.TestCase):
    def test_table_and_picture(self):
        device, picture = 'cpu:mem=256MiB,threads=2', FOLDER.name + '/pairs.svg'
        if not os.path.exists(STORE):
            self.assertEqual(hearth('import', 'digits', 'tests/data/digits/digits.onnx', device=device).returncode, 0)
        pairs = ('convsel', 'digits', '--batch', '64', '--pairs')
        r = hearth(*pairs, '--json', '--svg', picture, device=device)
        self.assertEqual(r.returncode, 0, r.stderr)
        doc = json.loads(r.stdout)
        alone = {c['class']: c['alone_us'] for c in doc['classes']}
        self.assertLessEqual({'convolution', 'copy', 'reduction'}, set(alone))
        n = len(alone)
        self.assertEqual(len(doc['pairs']), n * (n + 1) // 2)
        for p in doc['pairs']:
            a, b = alone[p['first']], alone[p['second']]
            self.assertAlmostEqual(p['oef'], (a + b - p['together_us']) / min(a, b), places=6)
        with open(picture, encoding='utf-8') as f:
            self.assertEqual(f.read().count('<rect x='), n * n)
        self.assertLessEqual(set(alone), set(tap.picture(self, picture)))
        again = json.loads(hearth(*pairs, '--json', device=device).stdout)  # from the store
        for p, q in zip(doc['pairs'], again['pairs'] if not doc['disturbed'] else []):
            self.assertAlmostEqual(p['together_us'], q['together_us'], delta=0.1)
        self.assertIn('together_us', hearth(*pairs, device=device).stdout)

    def test_refusals(self):
        r = hearth('convsel', 'digits', '--batch', '64', '--svg', FOLDER.name + '/no.svg', device=cpu(None))
        self.assertIn('add --pairs', r.stderr)
        r = hearth('convsel', 'digits', '--batch', '64', '--pairs', device=cpu(None))
        self.assertIn('two threads or more', r.stderr)
        self.assertEqual(r.returncode, 1)


if __name__ == '__main__':
    sys.exit(tap.run([Isa, Quota, Pairs]))
