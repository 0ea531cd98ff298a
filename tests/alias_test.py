#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Aliases over all transports, also while they are moved. Speaks TAP. usage: tests/alias_test.py BUILD_DIR, from the root."""
import glob
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest

import onnx_small
import tap

tap.need_numpy()
import numpy as np  # noqa: E402  # pylint: disable=wrong-import-position
import pyhearth  # noqa: E402  # pylint: disable=wrong-import-position

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
HEARTH, DATA = BUILD + '/hearth', 'tests/data/digits'
N, MOVES, PATIENCE = 8, 40, 120
TWICE = np.eye(N, dtype=np.float32) * 2  # OUTPUT0 of onnx_small.powers(N, p) has 2 ** p at the first place: of version V, p is V + 1
for variable in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(variable, None)


class Case(unittest.TestCase):
    def daemon(self, *flags):
        d = tap.Daemon(BUILD, *flags)
        self.addCleanup(d.stop)
        self.url, self.address = f'ipc://{d.folder}/sock', d.address
        return d

    def hearth(self, *args, code=0):
        r = subprocess.run([HEARTH, '--server', self.url, *args], capture_output=True, text=True, check=False, timeout=PATIENCE)
        self.assertEqual(r.returncode, code, (args, r.stdout, r.stderr))
        return r.stdout if code == 0 else r.stderr

    def asks(self, *args):
        return json.loads(self.hearth('--json', *args))

    def versions(self, name, *powers):
        for p in powers:
            with tempfile.NamedTemporaryFile(suffix='.onnx') as f:
                f.write(onnx_small.powers(N, p))
                f.flush()
                self.hearth('import', name, f.name)

    def http(self, method, path, body=None, code=200):
        c = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        c.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body))
        r = c.getresponse()
        data = r.read()
        c.close()
        self.assertEqual(r.status, code, data)
        return json.loads(data) if data else None


def request():
    """An inference over HTTP."""
    head = json.dumps({'inputs': [{'name': 'INPUT0', 'shape': [N, N], 'datatype': 'FP32', 'parameters': {'binary_data_size': 4 * N * N}}]}).encode()
    return head + TWICE.tobytes(), {'Inference-Header-Content-Length': str(len(head))}


class Alias(Case):
    def test_names(self):
        """Which names are allowed, and that a target cannot be removed."""
        self.daemon()
        self.versions('m', 2, 3)
        self.assertIn('no aliases', self.hearth('alias'))
        self.assertEqual(self.asks('alias', 'prod', 'm:1'), {'alias': 'prod', 'model': 'm:1', 'before': None})
        self.assertEqual(self.asks('alias', 'prod', 'm:2'), {'alias': 'prod', 'model': 'm:2', 'before': 'm:1'})
        self.assertEqual(self.asks('alias'), {'aliases': [{'alias': 'prod', 'model': 'm:2'}]})
        self.assertRegex(self.hearth('ls'), r'(?s)alias +model\nprod +m:2')
        for words, args in (("there is a model 'm'", ('alias', 'm', 'm:1')), ("no version 3", ('alias', 'prod', 'm:3')),
                            ("the alias 'new': model 'm' has no version 3; there are: m:1", ('alias', 'new', 'm:3')), ("'prod' is itself an alias", ('alias', 'x', 'prod')), ("no new model can have that name", ('import', 'prod', f'{DATA}/digits.onnx')),
                            ("'m:2' is the target of the alias 'prod'", ('rm', 'm:2')), ("'m:2' is the target of the alias 'prod'", ('rm', 'm')),
                            ('an alias of', ('show', 'prod:1')), ('alias --rm prod', ('rm', 'prod')), ("no alias 'y'", ('alias', '--rm', 'y')),
                            ('no new model can have', ('train', 'm', '--data', f'{DATA}/train.safetensors', '--loss', 'mse', '--save-as', 'prod'))):
            self.assertIn(words, self.hearth(*args, code=1))
        self.hearth('data', 'put', 'd', f'{DATA}/train.safetensors')
        for args in (('alias', 'x', 'd@local.dataset'), ('alias', 'x', 'none@local.dataset'), ('alias', 'd@other.dataset', 'm')):  # a tenant's own
            self.assertIn('are those of datasets', self.hearth(*args, code=1))
        for args in (('alias', 'x', 'job.checkpoint'), ('alias', 'job.checkpoint', 'm'), ('import', 'job.checkpoint', f'{DATA}/digits.onnx')):
            self.assertIn("are those of jobs' checkpoints", self.hearth(*args, code=1))
        self.assertIn('usage', self.hearth('alias', 'x', code=2))
        self.hearth('rm', 'm:1')
        self.assertEqual(self.asks('alias', '--rm', 'prod'), {'alias': 'prod', 'model': None, 'before': 'm:2'})
        self.assertIn("no model 'prod'", self.hearth('show', 'prod', code=1))
        self.hearth('rm', 'm')

    def test_resolved(self):
        """By every command that takes a model, over HTTP, and when another process moves it."""
        daemon = self.daemon()
        self.versions('m', 2, 3)
        self.hearth('alias', 'prod', 'm:1')
        self.assertEqual([self.asks(what, 'prod')[key] for what, key in (('show', 'name'), ('show', 'version'), ('load', 'version'))], ['m', 1, 1])
        with tempfile.TemporaryDirectory() as folder:
            self.hearth('export', 'prod', folder + '/a.onnx')
            self.hearth('export', 'm:1', folder + '/b.onnx')
            with open(folder + '/a.onnx', 'rb') as a, open(folder + '/b.onnx', 'rb') as b:
                self.assertEqual(a.read(), b.read())
            np.save(folder + '/x.npy', TWICE)
            r = self.asks('infer', 'prod', '--input', folder + '/x.npy')
            self.assertEqual((r['model'], r['version']), ('m', 1))
            self.assertIn('m:1\n', self.hearth('infer', 'prod', '--input', folder + '/x.npy'))
        self.assertEqual(self.asks('unload', 'prod')['unloaded'], 1)
        self.assertEqual(self.infer_http('prod'), ('m', '1', 4.0))
        self.assertEqual(self.http('GET', '/v2/models/prod')['name'], 'm')
        self.assertEqual(self.http('GET', '/v2/models/prod')['versions'], ['1'])
        self.http('GET', '/v2/models/prod/ready')
        self.assertEqual(self.http('GET', '/v2/models/prod/config')['name'], 'm')
        self.assertEqual([s['name'] for s in self.http('GET', '/v2/models/prod/stats')['model_stats']], ['m'])
        self.http('POST', '/v2/repository/models/prod/load')
        rows = {(r['name'], r['version']): r['state'] for r in self.http('POST', '/v2/repository/index')}
        self.assertEqual(rows, {('m', '1'): 'READY', ('m', '2'): 'READY', ('prod', '1'): 'READY'})
        self.hearth('alias', 'prod', 'm')  # from now on the newest
        self.assertEqual(self.infer_http('prod'), ('m', '2', 8.0))
        self.versions('m', 4)
        self.assertEqual(self.infer_http('prod'), ('m', '3', 16.0))
        self.http('GET', '/v2/models/other', code=404)
        store = daemon.folder + '/store'
        elsewhere = subprocess.run([HEARTH, '--store', store, 'alias', 'prod', 'm:1'], capture_output=True, text=True, check=True)
        self.assertIn('before: m', elsewhere.stdout)  # another process moves it
        self.assertEqual(self.infer_http('prod'), ('m', '1', 4.0))

    def infer_http(self, name):
        body, headers = request()
        c = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        c.request('POST', f'/v2/models/{name}/infer', body, headers)
        r = c.getresponse()
        data = r.read()
        c.close()
        self.assertEqual(r.status, 200, data)
        doc = json.loads(data)
        return doc['model_name'], doc['model_version'], doc['outputs'][0]['data'][0]

    def test_cannot_run(self):
        """A target that cannot be loaded leaves the alias where it was, except with --no-wait."""
        daemon = self.daemon()
        n = 50000
        with tempfile.NamedTemporaryFile(suffix='.onnx') as f:
            f.write(onnx_small.graph([('Add', ['x', 'w'], ['y'], {})], [('x', 'FP32', (n,))], [('y', 'FP32', (n,))], [('w', 'FP32', (n,), range(n))]))
            f.flush()
            self.hearth('import', 'damaged', f.name)
        self.versions('m', 2)
        self.hearth('unload', 'damaged')
        self.hearth('alias', 'prod', 'm:1')
        stored, = glob.glob(daemon.folder + '/store/tensors/*/*')
        os.truncate(stored, 4 * n - 1)
        self.assertRegex(self.hearth('alias', 'prod', 'damaged', code=1), 'the alias was not moved: .*damaged')
        self.assertEqual(self.infer_http('prod'), ('m', '1', 4.0))
        self.assertEqual(self.asks('alias', 'prod', 'damaged', '--no-wait')['before'], 'm:1')

    def moved(self, *flags):
        """Requests over HTTP, the ring and the socket while an alias goes to and fro: each is answered, by one of the two."""
        self.daemon(*flags)
        self.versions('m', 2, 3)
        self.hearth('alias', 'prod', 'm:1')
        stop, bad, seen, changed = threading.Event(), [], set(), threading.Condition()

        def count(key, model, version, value):
            with changed:
                if model != 'm' or version not in (1, 2) or value != 2.0 ** (version + 1):
                    bad.append((key, model, version, value))
                seen.add((key, version))
                changed.notify_all()

        def fail(what):
            with changed:
                bad.append(what)
                changed.notify_all()

        def over_http():
            body, headers = request()
            c = http.client.HTTPConnection(self.address, timeout=PATIENCE)
            while not stop.is_set():
                c.request('POST', '/v2/models/prod/infer', body, headers)
                r = c.getresponse()
                doc = json.loads(r.read())
                if r.status != 200:
                    fail(doc)
                    return
                count('http', doc['model_name'], int(doc['model_version']), doc['outputs'][0]['data'][0])

        def over_ipc(key, client):
            while not stop.is_set():
                try:
                    out = client.infer('prod', TWICE)
                except Exception as e:  # pylint: disable=broad-exception-caught
                    fail((key, str(e)))
                    return
                count(key, out.model, out.version, float(out['OUTPUT0'][0][0]))

        client = pyhearth.Hearth(BUILD + '/libhearth.so', url=self.url)
        self.addCleanup(client.close)
        threads = [threading.Thread(target=over_http) for _ in range(2)] + [threading.Thread(target=over_ipc, args=('ipc', client)) for _ in range(2)]
        for t in threads:
            t.start()
        try:
            for i in range(MOVES):
                version = 2 - i % 2
                client.query('alias', alias='prod', model=f'm:{version}')
                self.assertEqual(client.infer('prod', TWICE).version, version)  # every later request
                with changed:
                    self.assertTrue(changed.wait_for(lambda: bad or {('http', version), ('ipc', version)} <= seen, PATIENCE))  # pylint: disable=cell-var-from-loop
        finally:
            stop.set()
            for t in threads:
                t.join()
        self.assertEqual(bad, [])

    def test_moved(self):
        self.moved()

    def test_moved_in_thread(self):
        self.moved('--engine-process', 'thread')

    def test_moved_on_two_devices(self):
        self.moved('--device', 'cpu:1,mem=64MiB,threads=1')


if __name__ == '__main__':
    sys.exit(tap.run([Alias]))
