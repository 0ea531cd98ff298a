#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sixteen clients at a time: each gets the answer that it gets alone, whatever a model does with its samples. Speaks TAP.
usage: tests/joined_test.py BUILD_DIR, from the root."""
import base64
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import unittest
import urllib.error
import urllib.request

import tap
from onnx_small import graph

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PATIENCE, CLIENTS, ROUNDS = 120, 16, 12
X, ROWS = [('x', 'FP32', ('N', 4))], [('y', 'FP32', ('N', 4))]


def one(op, more=(), outputs=('y',), constants=(), **attributes):
    return graph([(op, ['x', *more], list(outputs), attributes)], X, ROWS, constants)


def number(name, *values):
    return (name, 'INT64', (len(values),), values)


COUNT = [('Shape', ['x'], ['s'], {}), ('Gather', ['s', 'zero'], ['n'], {})]
# What it does -> the model, and part of the sentence about it; "" where samples do not meet.
MODELS = {
    'softmax': (one('Softmax', axis=0), "(Softmax) normalizes over axis 0"),
    'sum': (one('ReduceSum', ['a'], constants=[number('a', 0)], keepdims=1), "(ReduceSum) reduces over axis 0"),
    'cumsum': (one('CumSum', ['a'], constants=[('a', 'INT64', (), (0,))]), "(CumSum) sums along axis 0"),
    'first': (one('Gather', ['a'], constants=[number('a', 0)], axis=0), "(Gather) picks by index along axis 0"),
    'flip': (one('Slice', ['m', 'e', 'a', 'm'], constants=[number('m', -1), number('e', -2**63), number('a', 0)]), "(Slice) cuts axis 0"),
    'gram': (one('Gemm', ['x'], transB=1), "(Gemm) combines each sample with all others"),
    'norm': (one('BatchNormalization', ['g', 'b', 'b', 'g'], training_mode=1, outputs=('y', 'm', 'v'), constants=[
        ('g', 'FP32', (4,), (1, 1, 1, 1)), ('b', 'FP32', (4,), (0, 0, 0, 0))]), "is in training mode"),
    'mixed': (one('Reshape', ['a'], constants=[number('a', 2, -1)]), "(Reshape) regroups elements of different samples"),
    'mean': (graph([('ReduceMean', ['x'], ['m'], {'axes': (0,)}), ('Sub', ['x', 'm'], ['y'], {})], X, ROWS), "reduces over axis 0"),
    'count': (graph(COUNT + [('Cast', ['n'], ['f'], {'to': 1}), ('Mul', ['x', 'f'], ['y'], {})], X, ROWS, [number('zero', 0)]),
              "(Mul) computes with the number of samples"),
    'place': (graph(COUNT + [('Squeeze', ['n'], ['k'], {}), ('Range', ['o', 'k', 'i'], ['r'], {}), ('Cast', ['r'], ['f'], {'to': 1}),
                             ('Unsqueeze', ['f', 'one'], ['u'], {}), ('Add', ['x', 'u'], ['y'], {})], X, ROWS,
                    [number('zero', 0), number('one', 1), ('o', 'INT64', (), (0,)), ('i', 'INT64', (), (1,))]),
              "(Cast) computes with the positions of samples"),
    'scale': (one('Mul', ['c'], constants=[('c', 'FP32', (4,), (1, 2, 3, 4))]), ""),
    'fold': (graph([('Reshape', ['x', 'flat'], ['f'], {}), ('Neg', ['f'], ['g'], {}), ('Reshape', ['g', 'rows'], ['r'], {}),
                    ('Softmax', ['r'], ['y'], {'axis': -1})], X, ROWS, [number('flat', -1), number('rows', -1, 4)]), ""),
}


class Joined(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = tap.Daemon(BUILD)
        for name, (model, _) in MODELS.items():
            cls.load(name, model)

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()

    @classmethod
    def load(cls, name, model=None, **config):
        parameters = {'config': json.dumps(config)}
        if model is not None:
            parameters['file:1/model.onnx'] = base64.b64encode(model).decode()
        url = f'http://{cls.d.address}/v2/repository/models/{name}/load'
        urllib.request.urlopen(url, json.dumps({'parameters': parameters}).encode(), timeout=PATIENCE).read()

    def get(self, path):
        with urllib.request.urlopen(f'http://{self.d.address}/v2/models/{path}', timeout=PATIENCE) as r:
            return json.load(r)

    @staticmethod
    def infer(connection, name, rows, item='x', shape=(4,), zeros=()):
        body = {'inputs': [{'name': item, 'datatype': 'FP32', 'shape': [len(rows), *shape], 'data': rows}]}
        body['inputs'] += [{'name': other, 'datatype': 'FP32', 'shape': [len(rows), n], 'data': [0] * n * len(rows)} for other, n in zeros]
        connection.request('POST', f'/v2/models/{name}/infer', json.dumps(body))
        answer = json.loads(connection.getresponse().read())
        return [(o['name'], o['shape'], o['data']) for o in answer['outputs']] if 'outputs' in answer else answer

    def test_answers(self):
        """Every answer is that of the same request alone: shapes, bits, nothing of another client's."""
        wrong = {name: self.together(name) for name in MODELS}
        self.assertEqual({name: n for name, n in wrong.items() if n > 0}, {},
                         f'of {CLIENTS * ROUNDS} answers each, so many are not those of the requests alone')

    def test_empty(self):
        """Requests that are empty but for their samples, of which a proof says nothing, share no run: a Reshape copies where it is told 0."""
        nodes = [('Shape', ['x'], ['s'], {}), ('Gather', ['s', 'zero'], ['n'], {}), ('Shape', ['z'], ['l'], {}), ('Gather', ['l', 'one'], ['d'], {}),
                 ('Min', ['d', 'one'], ['h'], {}), ('Mul', ['n', 'h'], ['p'], {}), ('Mul', ['p', 'four'], ['m'], {}), ('Transpose', ['x'], ['t'], {}),
                 ('Concat', ['m', 'rest'], ['c'], {'axis': 0}), ('Reshape', ['t', 'c'], ['f'], {}),
                 ('ReduceSum', ['f', 'one'], ['r'], {'keepdims': 1}), ('Unsqueeze', ['r', 'two'], ['u'], {}),
                 ('Concat', ['four', 'rest', 'h'], ['k'], {'axis': 0}), ('Reshape', ['u', 'k'], ['g'], {}),
                 ('Transpose', ['g'], ['w'], {'perm': (1, 0, 2)}), ('ReduceSum', ['w', 'two'], ['v'], {'keepdims': 0}), ('Add', ['x', 'v'], ['y'], {})]
        numbers = [number('zero', 0), number('one', 1), number('two', 2), number('four', 4), number('rest', -1)]
        self.load('empty', graph(nodes, [*X, ('z', 'FP32', ('N', 'H'))], ROWS, numbers))
        self.assertTrue(self.get('empty')['parameters']['independent'])
        self.assertEqual(self.together('empty', [('z', 0)]), 0)
        self.assertEqual(self.together('empty', [('z', 1)]), 0)

    def test_said(self):
        """The metadata and the configuration say whether samples are independent, and if not, which node is in the way."""
        for name, (_, why) in MODELS.items():
            parameters, config = self.get(name)['parameters'], self.get(name + '/config')
            self.assertEqual(parameters['independent'], why == '', name)
            self.assertIn(why, parameters.get('dependent_because', ''))
            self.assertEqual(config['parameters']['independent']['string_value'], 'false' if why else 'true')
            self.assertEqual(config['parameters'].get('dependent_because', {}).get('string_value', ''), parameters.get('dependent_because', ''))
            self.assertEqual((config['max_batch_size'], config['input'][0]['dims']), (0, [-1, 4]) if why else (2**31 - 1, [4]), name)
            self.assertEqual('dynamic_batching' in config, why == '', name)

    def refused(self, name, model, **config):
        with self.assertRaises(urllib.error.HTTPError) as e:
            self.load(name, model, **config)
        with e.exception as answer:
            return answer.code, json.load(answer)['error']

    def test_configuration(self):
        """A configuration cannot say that there is a batch where samples depend on each other: with the model, or afterwards."""
        for name, (model, why) in MODELS.items():
            for most in (1, 4, 2**31 - 1) if why else ():
                for bring in (model, None):
                    code, sentence = self.refused('other' if bring else name, bring, max_batch_size=most)
                    self.assertEqual(code, 400)
                    self.assertIn(f"'max_batch_size' is {most}, and the model's samples are not independent: node ", sentence)
                    self.assertIn(why, sentence)
        self.load('softmax', max_batch_size=0, parameters={'independent': {'string_value': 'true'}})  # what it says anyway
        self.assertFalse(self.get('softmax')['parameters']['independent'])
        self.assertEqual(self.get('softmax')['versions'], ['1'])

    def test_forbidden(self):
        """Runs are shared where that is proven harmless, and not where a configuration forbids it."""
        shared = self.runs('scale')
        self.load('own', MODELS['scale'][0], max_batch_size=0)
        self.assertTrue(self.get('own')['parameters']['independent'])
        self.assertEqual(self.together('own'), 0)
        inferences, executions = self.runs('own')
        self.assertEqual(inferences, executions)
        while shared[1] >= self.requests('scale'):  # until some were: it takes programs that are made meanwhile
            self.assertEqual(self.together('scale'), 0)
            shared = self.runs('scale')

    def requests(self, name):
        return self.get(name + '/stats')['model_stats'][0]['inference_stats']['success']['count']

    def runs(self, name):
        """How many samples, and in how many runs."""
        stats = self.get(name + '/stats')['model_stats'][0]
        return stats['inference_count'], stats['execution_count']

    def test_command(self):
        """`hearth show` and `hearth import` say it, too."""
        path = self.d.folder + '/softmax.onnx'
        with open(path, 'wb') as f:
            f.write(MODELS['softmax'][0])

        def hearth(*words):
            return subprocess.run([BUILD + '/hearth', '--server', f'ipc://{self.d.folder}/sock', *words], check=True, capture_output=True,
                                  text=True, timeout=PATIENCE)
        why = "node 'Softmax_0' (Softmax) normalizes over axis 0, which holds the samples"
        self.assertIn(f'requests are not batched: {why}', hearth('import', 'told', path).stdout)
        self.assertIn(f'--max-batch 8 only limits requests; they are not batched: {why}', hearth('import', 'told', path, '--max-batch', '8').stderr)
        self.assertEqual(self.together('told'), 0)  # its record in the store says a batch of 8, as an older hearth's may
        self.assertEqual(json.loads(hearth('import', 'told', path, '--json').stdout)['dependent_because'], why)
        shown = json.loads(hearth('show', 'told', '--json').stdout)
        self.assertEqual((shown['independent'], shown['batched'], shown['dependent_because']), (False, False, why))
        shown = json.loads(hearth('show', 'scale', '--json').stdout)
        self.assertEqual((shown['independent'], shown['batched']), (True, True))
        self.assertNotIn('dependent_because', shown)

    def test_names(self):
        """A node's name that is no text, or too long, breaks neither JSON nor a terminal."""
        for name in (b'\xff\xfe\x1b[31m', '\u00e9'.encode() * 300, b'"\n\\'):
            self.load('named', one('Softmax', axis=0, node_name=name))
            self.assertIn('(Softmax) normalizes', self.get('named')['parameters']['dependent_because'])

    def together(self, name, zeros=()):
        """How many of many clients' answers are not those of the same requests alone."""
        draw = random.Random(name)
        rows = [[[round(draw.uniform(-4, 4), 3) for _ in range(4)] for _ in range(2 * (1 + i % 3))] for i in range(CLIENTS)]
        lines = [http.client.HTTPConnection(self.d.address, timeout=PATIENCE) for _ in rows]
        alone = [self.infer(c, name, r, zeros=zeros) for c, r in zip(lines, rows)]
        gate, wrong = threading.Barrier(CLIENTS), []

        def client(i):
            for _ in range(ROUNDS):
                gate.wait()
                if self.infer(lines[i], name, rows[i], zeros=zeros) != alone[i]:
                    wrong.append(i)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for c in lines:
            c.close()
        return len(wrong)


if __name__ == '__main__':
    sys.exit(tap.run([Joined]))
