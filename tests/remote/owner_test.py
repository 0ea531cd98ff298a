#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whose a version is, over TCP, TLS and HTTP: others ask it, and neither export, remove, replace, train nor alias it; and what a tenant
may have in the store. Speaks TAP. usage: tests/remote/owner_test.py BUILD_DIR, from the root."""
import base64
import http.client
import json
import os
import sys
import unittest

sys.dont_write_bytecode = True
from far import DIGITS, FOLDER, PATIENCE, Server, model, run  # noqa: E402  pylint: disable=wrong-import-position
import tap  # noqa: E402

TRAIN = ['--data', FOLDER + '/few.csv', '--label', 'class', '--loss', 'softmax-xent', '--batch', '2', '--epochs', '1']
OTHERS = 'belongs to another tenant'


class Owners(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(FOLDER + '/tenants', 'w', encoding='ascii') as f:
            f.write('bob store=200KiB\n')
        with open(FOLDER + '/few.csv', 'w', encoding='ascii') as f:
            f.write(','.join(f'p{i}' for i in range(64)) + ',class\n' + 4 * ('0.5,' * 64 + '1\n'))
        cls.http = tap.free_port()
        cls.s = Server('owners', '--http', f'127.0.0.1:{cls.http}', '--tenant-file', FOLDER + '/tenants')

    @classmethod
    def tearDownClass(cls):
        assert cls.s.stop() == 0

    def urls(self):
        return f'tcp://127.0.0.1:{self.s.port}', f'tls+tcp://127.0.0.1:{self.s.tls_port}'

    def denied(self, who, *words, url=None, said=OTHERS):
        self.assertIn(said, self.s.run(*words, who=who, url=url, code=1))

    def load(self, who, name, file):
        with open(file, 'rb') as f:
            body = json.dumps({'parameters': {'config': '{}', 'file:1/model.onnx': base64.b64encode(f.read()).decode()}})
        c = http.client.HTTPConnection('127.0.0.1', self.http, timeout=PATIENCE)
        c.request('POST', f'/v2/repository/models/{name}/load', body, {'Authorization': 'Bearer ' + self.s.tokens[who]})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def test_others_only_ask_it(self):
        run_, file = self.s.run, FOLDER + '/x.onnx'
        run_('import', 'mine', DIGITS + '/digits.onnx')
        for url in self.urls():
            self.denied('bob', 'export', 'mine', file, url=url)
            self.denied('bob', 'export', 'mine:1', FOLDER + '/x.safetensors', url=url)
            self.denied('bob', 'rm', 'mine', '--yes', url=url)
            self.denied('bob', 'import', 'mine', DIGITS + '/digits-parity.onnx', url=url)
            self.denied('bob', 'alias', 'his', 'mine', url=url)
            self.denied('bob', 'train', 'mine', *TRAIN, url=url)
            self.denied('bob', 'train', 'mine', *TRAIN, '--save-as', 'his', url=url)
            out = run_('infer', 'mine', '--input', DIGITS + '/images.npy', '--labels', DIGITS + '/labels.npy', url=url, who='bob')
            self.assertEqual(out['model'], 'mine')
        self.assertFalse(os.path.exists(file))
        self.assertEqual(self.load('bob', 'mine', DIGITS + '/digits.onnx')[0], 403)
        self.assertIn(OTHERS, self.load('bob', 'mine', DIGITS + '/digits.onnx')[1])
        self.assertEqual(self.s.run('show', 'mine')['version'], 1)
        # its owner, and administrators
        run_('alias', 'hers', 'mine')
        self.denied('bob', 'export', 'hers', file)
        self.denied('bob', 'alias', '--rm', 'hers')
        run_('alias', '--rm', 'hers')
        for who in ('alice', 'root'):
            run_('export', 'mine', file, who=who)
        run_('import', 'mine', DIGITS + '/digits-parity.onnx', who='root')  # .. and it stays hers
        self.denied('bob', 'export', 'mine', file)
        run_('rm', 'mine', '--yes', who='root')
        self.s.admin('gc')

    def test_content_is_not_told_by_its_id(self):
        """Who may not read a version is not told that its tensors are there."""
        first = self.s.run('import', 'hers', DIGITS + '/untrained.onnx', '--no-wait')
        self.assertEqual(self.s.run('import', 'again', DIGITS + '/untrained.onnx', '--no-wait')['moved'], 0)
        self.assertEqual(self.s.run('import', 'his', DIGITS + '/untrained.onnx', '--no-wait', who='bob')['moved'], first['moved'])
        for name, who in (('hers', 'alice'), ('again', 'alice'), ('his', 'bob')):
            self.s.run('rm', name, '--yes', who=who)
        self.s.admin('gc')

    def test_what_administrators_import_is_nobodys(self):
        self.s.run('import', 'house', DIGITS + '/untrained.onnx', who='root')
        self.s.run('export', 'house', FOLDER + '/house.onnx', who='bob')
        self.assertTrue(self.s.run('import', 'house', DIGITS + '/untrained.onnx', who='alice')['unchanged'])
        # what alice trains is hers
        self.s.run('wait', str(self.s.run('train', 'house', *TRAIN, '--save-as', 'trained', '--detach')['job']))
        self.denied('bob', 'export', 'trained', FOLDER + '/x.onnx')
        self.denied('bob', 'train', 'house', *TRAIN, '--save-as', 'trained')
        self.s.run('export', 'trained', FOLDER + '/trained.onnx')
        self.s.run('rm', 'trained', '--yes')
        self.s.run('rm', 'house', '--yes', who='bob')  # as before there were owners
        self.s.admin('gc')

    def test_room(self):
        """Models and datasets count together, each content once."""
        path, _ = model('large', [100000], 1)
        self.denied('bob', 'import', 'large', path, '--no-wait',
                    said="tenant 'bob' has 0 B of models and datasets in the store and may have 200.0 KiB (store=, tenant.file): 390.8 KiB more do not fit")
        self.assertEqual(self.s.left(), ([], 0))
        self.s.run('import', 'his', DIGITS + '/digits.onnx', '--no-wait', who='bob')
        self.s.run('import', 'copy', DIGITS + '/digits-parity.onnx', '--no-wait', who='bob')  # all but its head is the same
        self.denied('bob', 'import', 'other', DIGITS + '/untrained.onnx', '--no-wait', said="tenant 'bob' has 131.5 KiB of models and datasets")
        self.denied('bob', 'data', 'put', 'd', DIGITS + '/train.safetensors', said="tenant 'bob' has 131.5 KiB of models and datasets")
        status, text = self.load('bob', 'other', DIGITS + '/untrained.onnx')
        self.assertEqual((status, "tenant 'bob' has 131.5 KiB" in text), (403, True), text)
        self.s.run('import', 'other', DIGITS + '/untrained.onnx', '--no-wait')  # alice has no limit
        for name, who in (('his', 'bob'), ('copy', 'bob'), ('other', 'alice')):
            self.s.run('rm', name, '--yes', who=who)
        self.s.admin('gc')


if __name__ == '__main__':
    sys.exit(run([Owners]))
