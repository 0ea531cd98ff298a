#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A CPU device with a link of a set rate: what `hearth devices` says of it, what is refused, and that training and inference in less memory go over
it: no step is shorter than its copies take, the losses are those without a link, and a trace has both copy streams and the memory. Speaks TAP.

usage: tests/devices/cpu_link_test.py BUILD_DIR, from the root.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, 'tests')

import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
FOLDER = tempfile.TemporaryDirectory(prefix='hearth-link-')
STORE = FOLDER.name + '/store'
DATA = 'tests/data/digits/'
RATE = 100e6
LINKED, PLAIN = 'cpu:mem=256MiB,threads=1,link=100MB/s', 'cpu:mem=256MiB,threads=1'
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN', 'HEARTH_ISA'):
    os.environ.pop(name, None)


def hearth(*args, device=LINKED):
    return subprocess.run([BUILD + '/hearth', '--store', STORE, '--json', *args, '--device', device], capture_output=True, text=True, check=False)


def told(*args, device=LINKED):
    r = hearth(*args, device=device)
    assert r.returncode == 0, r.stderr
    return [json.loads(line) for line in r.stdout.splitlines()]


class Row(unittest.TestCase):
    def test_its_rates(self):
        row = told('devices', device='cpu:mem=64MiB,threads=1,link=100MB/s,d2h=50MiB/s')[0]['devices'][0]
        self.assertIs(row['link_set'], True)
        self.assertEqual((row['h2d_bytes_per_s'], row['d2h_bytes_per_s']), (100e6, 50 * 2**20))
        self.assertIn('link 100 MB/s to it, 52.4 MB/s back', row['description'])
        self.assertGreater(row['link_latency_us'], 0)
        self.assertLess(row['copy_interference'], 1)
        row = told('devices', device=PLAIN)[0]['devices'][0]
        self.assertIs(row['link_set'], False)
        self.assertNotIn('link', row['description'])

    def test_faster_than_memory(self):
        row = told('devices', device='cpu:mem=64MiB,threads=1,link=100000GB/s')[0]['devices'][0]
        self.assertIs(row['link_set'], True)
        self.assertLess(row['h2d_bytes_per_s'], 1e13)  # what memory gives

    def test_refusals(self):
        for option, sentence in (('link=0GB/s', 'device option link=0GB/s: expected at least 1kB/s'), ('link=-1GB/s', 'expected a rate such as 1.5GB/s'),
                                 ('link=fast', 'expected a rate such as 1.5GB/s'), ('h2d=1GB/s', 'link=RATE sets both')):
            r = hearth('devices', device='cpu:mem=64MiB,' + option)
            self.assertNotEqual(r.returncode, 0)
            self.assertIn(sentence, r.stderr)

    def test_of_a_server(self):
        server = tap.Daemon(BUILD, '--device', 'cpu:1,mem=64MiB,threads=1,link=1GB/s')
        r = subprocess.run([BUILD + '/hearth', 'devices', '--json', '--server', f'ipc://{server.folder}/sock'], capture_output=True, text=True, check=True)
        rows = {row['name']: row for row in json.loads(r.stdout)['devices']}
        self.assertEqual((rows['cpu:0']['link_set'], rows['cpu:1']['link_set']), (False, True))
        self.assertEqual(rows['cpu:1']['h2d_bytes_per_s'], 1e9)
        self.assertEqual(server.stop(), 0)


def lanes(trace, process):
    """Bytes that cross in and out, and the samples of the memory."""
    events = [e for e in trace['traceEvents'] if e['pid'] == process]
    moved = [sum(e['args']['bytes'] for e in events if e['ph'] == 'X' and e['tid'] == lane) for lane in (1, 2)]
    return moved, [e for e in events if e['ph'] == 'C' and e['name'] == 'memory']


def check_format(test, trace, processes):
    """The fields that the Trace Event Format asks for, by the kind of event: rows with names, events of a row one after another (Perfetto
    drops one that overlaps another), counters in the order of time. Without numbers that JSON does not have."""
    test.assertEqual(trace['displayTimeUnit'], 'ms')
    rows, ends, sampled = {}, {}, {}
    for e in trace['traceEvents']:
        test.assertTrue(isinstance(e['name'], str) and e['name'] and isinstance(e['pid'], int), e)
        if e['ph'] == 'M':
            if e['name'] in ('process_name', 'thread_name'):
                rows[e['pid'], e.get('tid')] = e['args']['name']
            else:
                test.assertEqual(e['name'], 'thread_sort_index')
                test.assertEqual(e['args'], {'sort_index': e['tid']})
            continue
        test.assertGreaterEqual(e['ts'], 0)
        if e['ph'] == 'X':
            row = e['pid'], e['tid']
            test.assertIn(row, rows)
            test.assertGreaterEqual(e['dur'], 0)
            test.assertGreaterEqual(e['ts'], ends.get(row, 0) - 1e-3, e)
            ends[row] = e['ts'] + e['dur']
        else:
            test.assertEqual(e['ph'], 'C')
            test.assertTrue(e['args'] and all(isinstance(v, int) and v >= 0 for v in e['args'].values()), e)
            test.assertGreaterEqual(e['ts'], sampled.get((e['pid'], e['name']), 0))
            sampled[e['pid'], e['name']] = e['ts']
    lanes_of = ['compute', 'host to device', 'device to host']
    test.assertEqual(rows, {(p, None if k == 0 else k - 1): name for p in processes for k, name in
                            enumerate([('predicted', 'measured')[p - 1]] + lanes_of)})


class Work(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        told('import', 'new', DATA + 'untrained.onnx')
        told('import', 'digits', DATA + 'digits.onnx')

    def test_training_offloads_over_it(self):
        path = FOLDER.name + '/trace.json'
        bench = ('bench', 'new', '--train', '--batch', '64', '--steps', '3')
        whole = told(*bench, '--policy', 'keep')[0]
        for share in (0.7, 0.6, 0.5):  # smaller algorithms may do, by what they were measured to take
            step = told(*bench, '--policy', 'vdnn', '--budget', str(int(share * whole['peak_bytes'])), '--trace', path)[0]
            with open(path, encoding='utf-8') as f:
                trace = json.load(f)
            if all(lanes(trace, 1)[0]):
                break
        lives = []
        check_format(self, trace, (1, 2))
        for process in (1, 2):
            moved, memory = lanes(trace, process)
            self.assertTrue(all(moved), moved)
            self.assertGreater(step['p50_ms'], 1e3 * max(moved) / RATE)
            self.assertEqual(max(sum(e['args'].values()) for e in memory), step['peak_bytes'])
            live = max(sum(e['args'].values()) - e['args']['between buffers'] for e in memory)
            self.assertGreater(live, 0.9 * step['peak_bytes'])  # by the algorithms that were measured, nothing is between buffers or a little
            lives.append(live)
        self.assertEqual(lives[0], lives[1])  # predicted and measured: of the same plan
        print(f"# {step['p50_ms']:.2f} ms a step, predicted {step['planned_ms']:.2f}; without offloads {whole['p50_ms']:.2f}; "
              f'{moved[0]} bytes in, {moved[1]} out')

    def test_trace_of_a_plan(self):
        path = FOLDER.name + '/plan-trace.json'
        for model, *more in (('new', '--train', '--budget', '60%'), ('digits',)):
            plan = told('plan', model, '--batch', '64', *more, '--trace', path)[0]
            with open(path, encoding='utf-8') as f:
                trace = json.load(f, parse_constant=self.fail)
            check_format(self, trace, (1,))
            self.assertEqual(max(sum(e['args'].values()) for e in lanes(trace, 1)[1]), plan['arena_bytes'] + plan['resident_bytes'])

    def test_losses_are_those_without(self):
        def losses(device, *more):
            lines = told('train', 'new', '--data', DATA + 'train.safetensors', '--loss', 'softmax-xent', '--batch', '64', '--epochs', '1', '--seed', '3', *more,
                         device=device)
            return [line['loss'] for line in lines if 'step' in line]
        want = losses(PLAIN, '--policy', 'keep')
        self.assertGreater(len(want), 5)
        self.assertEqual(losses(LINKED, '--policy', 'keep'), want)

    def test_weights_that_do_not_fit_are_streamed_over_it(self):
        images = DATA + 'images.npy'
        plan = FOLDER.name + '/plan.json'
        for budget in ('90KiB', '120KiB', '160KiB', '200KiB', '300KiB'):
            if hearth('plan', 'digits', '--batch', '1', '--budget', budget, '--out', plan).returncode == 0:
                break
        with open(plan, encoding='utf-8') as f:
            doc = json.load(f)
        size = {t['id']: t['bytes'] for t in doc['problem']['tensors']}
        moved = sum(size[i['tensor']] for i in doc['instructions'] if i['kind'] == 'prefetch')
        self.assertGreater(moved, 0)
        took = told('bench', 'digits', '--batch', '1', '--budget', budget, '--seconds', '0.2')[0]['p50_ms']
        print(f'# {moved} bytes of weights streamed under {budget}: {took:.3f} ms')
        self.assertGreater(took, 1e3 * moved / RATE)
        self.assertIn('355 of 360', subprocess.run([BUILD + '/hearth', '--store', STORE, 'infer', 'digits', '--input', images, '--labels', DATA + 'labels.npy',
                                                    '--device', LINKED], capture_output=True, text=True, check=True).stdout)


if __name__ == '__main__':
    sys.exit(tap.run([Row, Work]))
