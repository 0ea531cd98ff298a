#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is bob's, alice cannot see, follow, pause, cancel, resume, export, remove, or use: one table of actions, over a Unix socket, TCP, TLS
and HTTP. Speaks TAP. usage: tests/remote/matrix_test.py BUILD_DIR, from the root."""
import base64
import http.client
import json
import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
from far import BUILD, DIGITS, FOLDER, PATIENCE, Server, run  # noqa: E402  pylint: disable=wrong-import-position
import tap  # noqa: E402

DATA, OUT = FOLDER + '/few.csv', FOLDER + '/out'
STEP = ['--label', 'class', '--loss', 'softmax-xent', '--batch', '2', '--epochs', '1']
TRAIN = ['--data', DATA, *STEP]
SPEC = {'model': 'house', 'data': 'mine', 'loss': 'softmax-xent', 'batch': 2, 'epochs': 1}
DENIED = (r"belongs to another tenant|there is no job|has no checkpoint|no dataset|no model|names (with '@' )?that end in|"
          r"is not a name|another tenant")


def of_job(j):
    """An action: its name, the command, and the request over HTTP; None: there is no such one."""
    path = f'/v2/hearth/jobs/{j}'
    return [
        ('see', ['job', j], ('GET', path)),
        ('follow', ['job', j, '--follow'], ('GET', path + '/events')),
        ('wait for', ['wait', j], None),
        ('read the log of', ['logs', j], ('GET', path + '/logs')),
        ('have the result of', None, ('GET', path + '/result')),
        ('give another budget', ['job', j, '--budget', '60%'], ('POST', path + '/resume', {'budget': '60%'})),
        ('pause', ['pause', j], ('POST', path + '/pause')),
        ('resume', ['resume', j], ('POST', path + '/resume')),
        ('cancel', ['cancel', j], ('POST', path + '/cancel')),
        ('take over', ['train', j, '--resume'], ('POST', '/v2/hearth/jobs', {'job': j})),
        ('begin after', ['train', 'house', *TRAIN, '--after', j, '--detach'], ('POST', '/v2/hearth/jobs', {**SPEC, 'after': j})),
    ]


def of_checkpoint(name):
    path = f'/v2/hearth/models/{name}'
    return [
        ('export', ['export', name, OUT + '/x.safetensors'], ('GET', path + '/manifest')),
        ('export', ['export', name, OUT + '/x.onnx'], ('GET', path + '/versions/1/manifest')),
        ('remove', ['rm', name, '--yes'], None),
        ('train', ['train', name, *TRAIN], ('POST', '/v2/hearth/jobs', {**SPEC, 'model': name})),
        ('name', ['alias', 'hers', name], ('PUT', '/v2/hearth/aliases/hers', {'model': name})),
        ('replace', ['import', name, DIGITS + '/digits.onnx'], ('POST', path, {'tensors': [], 'graph': 'AAAA'})),
    ]


def of_model(name, tensor):
    path = f'/v2/hearth/models/{name}'
    return [*of_checkpoint(name),
            ('train, under a name of her own', ['train', name, *TRAIN, '--save-as', 'hers'],
             ('POST', '/v2/hearth/jobs', {**SPEC, 'model': name, 'save-as': 'hers'})),
            ('make the next version of', ['train', 'house', *TRAIN, '--save-as', name], ('POST', '/v2/hearth/jobs', {**SPEC, 'save-as': name})),
            ('read a tensor of', None, ('GET', f'{path}/tensors/{tensor}'))]


def of_dataset(name):
    return [
        ('train on', ['train', 'house', '--data', name, *STEP], ('POST', '/v2/hearth/jobs', {**SPEC, 'data': name})),
        ('evaluate on', ['train', 'house', *TRAIN, '--eval', name], ('POST', '/v2/hearth/jobs', {**SPEC, 'eval': name})),
        ('remove', ['data', 'rm', name], ('DELETE', '/v2/hearth/datasets/' + name)),
        ('remove', ['data', 'rm', name, '--tenant', 'bob'], ('DELETE', f'/v2/hearth/datasets/{name}?tenant=bob')),
        ('export', ['export', name + '@bob.dataset', OUT + '/x.safetensors'], ('GET', f'/v2/hearth/models/{name}@bob.dataset/manifest')),
        ('train', ['train', name + '@bob.dataset', *TRAIN], ('POST', '/v2/hearth/jobs', {**SPEC, 'model': name + '@bob.dataset'})),
        ('remove', ['rm', name + '@bob.dataset', '--yes'], None),
    ]


class Matrix(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.chmod(FOLDER, 0o755)
        os.mkdir(OUT)
        os.chmod(OUT, 0o777)
        with open(DATA, 'w', encoding='ascii') as f:
            f.write(','.join(f'p{i}' for i in range(64)) + ',class\n' + 4 * ('0.5,' * 64 + '1\n'))
        cls.http, cls.metrics = tap.free_port(), tap.free_port()
        cls.s = Server('matrix', '--http', f'127.0.0.1:{cls.http}', '--metrics', f'127.0.0.1:{cls.metrics}')
        cls.addClassCleanup(cls.s.stop)
        os.chmod(cls.s.folder, 0o755)
        os.chmod(cls.s.folder + '/sock', 0o777)
        cls.ways = {'tcp': f'tcp://127.0.0.1:{cls.s.port}', 'tls': f'tls+tcp://127.0.0.1:{cls.s.tls_port}'}
        if os.geteuid() == 0:  # else the user of the test is an administrator there
            cls.ways['ipc'] = f'ipc://{cls.s.folder}/sock'
        cls.prepare()

    @classmethod
    def prepare(cls):
        """bob has a model, a dataset, a job at work, two that are paused, one of them for a next version of what is nobody's, and one that was
        canceled; alice has one that was canceled."""
        def bob(*words):
            return cls.s.run(*words, who='bob')
        long = ['--data', 'his-samples', '--loss', 'softmax-xent', '--batch', '64', '--epochs', '1000000', '--detach']
        cls.s.run('import', 'house', DIGITS + '/untrained.onnx', who='root')  # nobody's
        bob('import', 'his', DIGITS + '/digits.onnx')
        bob('data', 'put', 'his-samples', DIGITS + '/train.safetensors')
        cls.s.run('data', 'put', 'mine', DATA, '--label', 'class')
        cls.jobs = {}
        for name, then in (('canceled-one', 'cancel'), ('paused-one', 'pause'), ('house', 'pause'), ('secret-one', None)):
            cls.jobs[name] = bob('train', 'house', *long, '--save-as', name)['job']
            while not bob('job', name)['step']:
                pass
            if then:
                bob(then, name)
        cls.s.run('train', 'house', *TRAIN, '--epochs', '1000000', '--save-as', 'own-one', '--detach')
        while not cls.s.run('job', 'own-one')['step']:
            pass
        cls.s.run('cancel', 'own-one')
        rows = cls.ask('GET', '/v2/hearth/models/his/manifest', who='bob')[1]
        cls.tensor = json.loads(rows)['tensors'][0]['id']

    @classmethod
    def ask(cls, method, path, body=None, who='alice'):
        c = http.client.HTTPConnection('127.0.0.1', cls.metrics if path == '/metrics' else cls.http, timeout=PATIENCE)
        c.request(method, path, json.dumps(body) if body is not None else None, {'Authorization': 'Bearer ' + cls.s.tokens[who]})
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def says(self, way, *words):
        """What alice is told, and the exit code; over the Unix socket as a user that is no administrator."""
        if way != 'ipc':
            p = self.s.start_of(*words, url=self.ways[way])
        else:
            p = subprocess.Popen([BUILD + '/hearth', '--json', '--server', self.ways[way], *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True, env={**os.environ, 'HEARTH_TOKEN': self.s.tokens['alice']}, user='nobody', group='nogroup', extra_groups=[])
        out, err = p.communicate(timeout=PATIENCE)
        return p.returncode, out + err

    def actions(self):
        jobs = [(j, of_job(j)) for name, number in self.jobs.items() for j in (name, str(number))]
        checkpoints = [(name + '.checkpoint', of_checkpoint(name + '.checkpoint')) for name in self.jobs]
        names = [(name, [('have the name of', ['train', 'house', *TRAIN, '--save-as', name], ('POST', '/v2/hearth/jobs', {**SPEC, 'save-as': name}))])
                 for name in self.jobs]
        for target, actions in [*jobs, *checkpoints, *names, ('his', of_model('his', self.tensor)), ('his-samples', of_dataset('his-samples'))]:
            for what, words, request in actions:
                yield f'{what} {target}', words, request

    def test_actions(self):
        n = 0
        for action, words, request in self.actions():
            for way in self.ways if words else ():
                with self.subTest(action=action, way=way):
                    code, said = self.says(way, *words)
                    self.assertNotEqual(code, 0, said)
                    self.assertRegex(said, DENIED)
                    n += 1
            if request:
                with self.subTest(action=action, way='http'):
                    status, said = self.ask(*request)
                    self.assertIn(status, (400, 403, 404), said)
                    self.assertRegex(said, DENIED)
                    n += 1
        self.assertGreater(n, 300 if 'ipc' in self.ways else 200)
        self.assertEqual(os.listdir(OUT), [])

    def test_jobs_go_on_as_they_were(self):
        """What alice's own job was looked at for she does not get by resuming it: bob's model, and the checkpoints of his job."""
        for change in ({'model': 'his'}, {'save-as': 'secret-one'}, {'save-as': 'paused-one'}):
            for path, more in (('/v2/hearth/jobs/own-one/resume', {}), ('/v2/hearth/jobs', {'job': 'own-one'})):
                with self.subTest(change=change, path=path):
                    status, said = self.ask('POST', path, {**change, **more})
                    self.assertEqual(status, 400, said)
                    self.assertIn("job 'own-one' goes on as it was submitted", said)

    def test_resume_without_a_name(self):
        """Of a model that both have trained: the last job is bob's."""
        name = self.s.run('train', 'house', '--data', 'his-samples', *STEP, '--epochs', '1000000', '--detach', who='bob')['name']
        while not self.s.run('job', name, who='bob')['step']:
            pass
        self.s.run('cancel', name, who='bob')
        for way in self.ways:
            code, said = self.says(way, 'train', 'house', *TRAIN, '--resume')
            self.assertEqual(code, 1, said)
            self.assertIn('has no checkpoint to resume from', said)
            self.assertNotIn(name, said)
        status, said = self.ask('POST', '/v2/hearth/jobs', {**SPEC, 'resume': True})
        self.assertEqual(status, 404, said)
        self.assertNotIn(name, said)

    def test_load_over_http(self):
        with open(DIGITS + '/digits.onnx', 'rb') as f:
            model = base64.b64encode(f.read()).decode()
        for name in ('his', 'secret-one.checkpoint', 'his-samples@bob.dataset'):
            status, said = self.ask('POST', f'/v2/repository/models/{name}/load', {'parameters': {'config': '{}', 'file:1/model.onnx': model}})
            self.assertIn(status, (400, 403), said)
            self.assertRegex(said, DENIED)
            self.assertNotEqual(self.ask('GET', f'/v2/models/{name}')[0] if name != 'his' else 0, 200)

    SECRETS = ('canceled-one', 'paused-one', 'secret-one', 'his-samples')

    def unnamed(self, text):
        for secret in self.SECRETS:
            self.assertNotIn(secret, text)

    def test_lists(self):
        """Nothing of bob's is named but his model, which alice may ask; not as his."""
        for way in self.ways:
            for words in (('jobs',), ('jobs', '--all'), ('jobs', '--mine'), ('ls', '--all'), ('data', 'ls'), ('stats',), ('shares',), ('devices',)):
                with self.subTest(words=words, way=way):
                    code, said = self.says(way, *words)
                    self.assertEqual(code, 0, said)
                    self.unnamed(said)
            self.assertEqual({r['job'] for r in json.loads(self.says(way, 'jobs')[1])} - {'own-one'}, set())
            self.assertEqual({r['name'] for r in json.loads(self.says(way, 'ls', '--all')[1])['models'] if r['checkpoint']}, {'own-one.checkpoint'})
            rows = json.loads(self.says(way, 'jobs', '--all')[1])
            self.assertEqual(sorted((r['state'], r['id'], r['job'], r['tenant']) for r in rows if r['job'] != 'own-one'),
                             [(state, None, None, None) for state in ('paused', 'paused', 'running')])
            self.assertEqual({r['name']: r['owner'] for r in json.loads(self.says(way, 'ls')[1])['models']}, {'house': '', 'his': None})
        for path in ('jobs', 'jobs?all=true', 'jobs?mine=true', 'datasets', 'models', 'stats', 'shares', 'devices', 'latency', 'timeline'):
            with self.subTest(path=path):
                status, said = self.ask('GET', '/v2/hearth/' + path)
                self.assertEqual(status, 200, said)
                self.unnamed(said)
        for request in (('POST', '/v2/repository/index'), ('POST', '/v2/repository/index', {'ready': True}), ('GET', '/v2/models/stats'), ('GET', '/metrics')):
            with self.subTest(request=request):
                status, said = self.ask(*request)
                self.assertEqual(status, 200, said)
                self.unnamed(said)
                self.assertIn('house' if 'stats' not in request[1] and 'metrics' not in request[1] else '', said)

    def test_bob_and_administrators_are_told(self):
        for who in ('bob', 'root'):
            rows = {r['name']: (r['owner'], r['checkpoint']) for r in self.s.run('ls', '--all', who=who)['models']}
            self.assertEqual(rows['his'], ('bob', False))
            self.assertEqual(rows['secret-one.checkpoint'], ('bob', True))
            self.assertEqual([r['name'] for r in self.s.run('data', 'ls', who=who)['datasets'] if r['tenant'] == 'bob'], ['his-samples'])
            self.assertEqual([r['name'] for r in self.s.run('stats', who=who)['jobs']], ['secret-one'])
        self.s.run('export', 'paused-one.checkpoint', OUT + '/checkpoint.safetensors', who='bob')
        os.unlink(OUT + '/checkpoint.safetensors')

    def test_zz_nothing_happened(self):
        """All is as it was: who may look has looked."""
        def row(name):
            return self.s.run('job', name, who='bob')
        self.assertEqual({name: row(name)['state'] for name in self.jobs}, 
                         {'canceled-one': 'canceled', 'paused-one': 'paused', 'house': 'paused', 'secret-one': 'running'})
        step = row('secret-one')['step']
        while row('secret-one')['step'] <= step:  # it goes on
            pass
        self.assertEqual(row('canceled-one')['resumable'], True)
        self.assertEqual(self.s.run('show', 'his', who='bob')['version'], 1)
        self.assertEqual([r['alias'] for r in self.s.run('ls', who='bob')['aliases']], [])
        self.assertEqual({r['name'] for r in self.s.run('ls', who='bob')['models']}, {'house', 'his'})
        self.assertEqual([r['job'] for r in self.s.run('jobs') if r['state'] != 'failed'], ['own-one'])
        self.assertEqual(self.s.run('resume', 'canceled-one', who='bob')['state'], 'waiting')
        for name in self.jobs:
            self.s.run('cancel', name, who='bob')


if __name__ == '__main__':
    sys.exit(run([Matrix]))
