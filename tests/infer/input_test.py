#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is said of a wrong input, to the command, to Python and over HTTP: which input, what it should be, what it is. Speaks TAP.
usage: tests/infer/input_test.py BUILD_DIR, from the root."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
import tap  # noqa: E402

tap.need_numpy()
BUILD = os.path.abspath(sys.argv[1])
os.environ['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
sys.path.insert(0, 'client/python')
import numpy as np  # noqa: E402
import hearthd  # noqa: E402

FOLDER = tempfile.mkdtemp(prefix='hearth-input-')
SIGNATURE = "'image' FP32 [-1,1,8,8]"
WRONG = [  # name, array, what is said
    ('image', np.zeros((2, 1, 8, 8)), "input 'image' data-type is 'FP64', but model 'digits' expects 'FP32', of shape [-1,1,8,8]"),
    ('image', np.zeros((2, 1, 8, 4), np.float32), "input 'image' for model 'digits'. Expected [-1,1,8,8], got [2,1,8,4]"),
    ('image', np.zeros((8, 8), np.float32), 'Expected [-1,1,8,8], got [8,8]'),
    ('picture', np.zeros((2, 1, 8, 8), np.float32), "input 'image' of model 'digits' is missing (got 'picture'): " + SIGNATURE)]
JSON = [  # an input, what is said
    ({'name': 'image', 'shape': [1, 1, 8, 8], 'datatype': 'FP32', 'data': [0, 1, 2]}, '3 values, where FP32 [1,1,8,8] has 64'),
    ({'name': 'image', 'shape': [1, 1, 2, 2], 'datatype': 'FP32', 'data': [0] * 4}, 'Expected [-1,1,8,8], got [1,1,2,2]'),
    ({'name': 'image', 'shape': [1, 1, 8, 8], 'datatype': 'INT8', 'data': [0] * 64}, "expects 'FP32', of shape [-1,1,8,8]"),
    ({'name': 'picture', 'shape': [1, 1, 8, 8], 'datatype': 'FP32', 'data': [0] * 64}, SIGNATURE)]
ARGUMENTS = [  # a question, its arguments, the error, what is said
    ('job', {'job': 42}, hearthd.InvalidArgument, "'job' must be a string, not a number"),
    ('pause', {'job': ['a']}, hearthd.InvalidArgument, "'job' must be a string, not a list"),
    ('cancel', {}, hearthd.InvalidArgument, "the argument 'job' is missing"),
    ('resume', {'job': ''}, hearthd.InvalidArgument, "the argument 'job' is missing"),
    ('job', {'job': '../x'}, hearthd.NotFound, "there is no job '../x'; `hearth jobs` lists what there is"),
    ('job', {'job': 'a:1'}, hearthd.NotFound, "there is no job 'a:1'"),
    ('job', {'job': 'x' * 195}, hearthd.NotFound, "there is no job 'xxx"),
    ('model', {'model': 7}, hearthd.InvalidArgument, "'model' must be a string, not a number"),
    ('unload', {'model': {}}, hearthd.InvalidArgument, "'model' must be a string, not an object"),
    ('verify', {'model': 1}, hearthd.InvalidArgument, "'model' must be a string, not a number"),
    ('load', {'model': 'digits', 'pin': 1}, hearthd.InvalidArgument, "'pin' must be true or false, not a number"),
    ('load', {'model': 'digits', 'on': 0}, hearthd.InvalidArgument, "'on' must be a string, not a number"),
    ('plan', {'model': 'digits', 'budget': 1 << 20}, hearthd.InvalidArgument, "'budget' must be a string, not a number"),
    ('bench', {'model': 'digits', 'batch': '8', 'seconds': 0}, hearthd.InvalidArgument, "'batch' must be a number, not a string"),
    ('train', {'model': 'digits', 'loss': 'mse', 'freeze': 'conv*'}, hearthd.InvalidArgument, "'freeze' must be a list of strings, not a string"),
    ('train', {'model': 'digits', 'loss': 'mse', 'no_shuffle': 1}, hearthd.InvalidArgument, "'no-shuffle' must be true or false, not a number"),
    ('train', {'model': 'digits', 'loss': 'mse', 'lerning_rate': 1}, hearthd.InvalidArgument, "'train' has no argument 'lerning-rate'; `hearth help"),
    ('train', {'model': 'digits', 'loss': 'mse', 'epoch': 3}, hearthd.InvalidArgument, "'train' has no argument 'epoch'; did you mean 'epochs'?")]


class Inputs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = tap.Daemon(BUILD)
        cls.url = f'ipc://{cls.daemon.folder}/sock'
        with hearthd.Client(cls.url) as c:
            c.import_model('digits', 'tests/data/digits/digits.onnx')

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    def hearth(self, *words, code=1):
        r = subprocess.run([BUILD + '/hearth', '--server', self.url, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(r.returncode, code, r.stdout)
        return r.stdout

    def save(self, name, array):
        path = f'{FOLDER}/{name}.npy'
        np.save(path, array)
        return path

    def test_command(self):
        for i, (name, array, sentence) in enumerate(WRONG):
            said = self.hearth('infer', 'digits', '--input', f'{name}={self.save(f"wrong{i}", array)}')
            self.assertIn(sentence, said)
            self.assertEqual(said.count('\n'), 1)
        good = self.save('good', np.zeros((2, 1, 8, 8), np.float32))
        self.assertIn('expected 1 inputs but got 0 inputs', self.hearth('infer', 'digits'))
        self.assertIn(SIGNATURE, self.hearth('infer', 'digits'))
        self.assertIn(SIGNATURE, self.hearth('infer', 'digits', '--input', f'image={good}', '--input', f'more={good}'))
        said = self.hearth('infer', 'digits', '--input', good, '--labels', self.save('labels', np.zeros(3, np.int64)), code=2)
        self.assertRegex(said, r"each row of 'logits' FP32 \[2,10\]; .*labels.npy has INT64 \[3\]")
        self.assertIn('README.md: not a .npy file, and neither .npz, PNG nor JPEG', self.hearth('infer', 'digits', '--input', 'README.md'))
        self.assertIn('predicted_us', self.hearth('plan', 'digits:1', code=0))
        self.assertIn('a budget of 64.0 TiB is more than', self.hearth('plan', 'digits', '--budget', '64TiB'))

    def through(self, data, *words):
        """What the command says, with `data` in the FIFO that it knows as FIFO."""
        path = f'{FOLDER}/fifo'
        os.mkfifo(path)

        def write():
            try:
                with open(path, 'wb', 0) as f:
                    for i in range(0, len(data), 100):
                        f.write(data[i:i + 100])
            except BrokenPipeError:
                pass
        writer = threading.Thread(target=write)
        writer.start()
        try:
            r = subprocess.run([BUILD + '/hearth', '--server', self.url, *(w.replace('FIFO', path) for w in words)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            return r.stdout
        finally:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # where nobody has read
            writer.join()
            os.unlink(path)

    def test_streams(self):
        """What the client alone reads may be whatever its user can read: a FIFO, a pipe, standard input."""
        images = np.load('tests/data/digits/images.npy')[:40]
        path, labels = self.save('images', images), self.save('right', np.load('tests/data/digits/labels.npy')[:40])
        answer = self.hearth('infer', 'digits', '--input', path, code=0)
        with open(path, 'rb') as f:
            data = f.read()
        with open(labels, 'rb') as f:
            numbers = f.read()
        self.assertEqual(self.through(data, 'infer', 'digits', '--input', 'image=FIFO'), answer)
        self.assertIn('accuracy 100.00 %: 40 of 40', self.through(numbers, 'infer', 'digits', '--input', path, '--labels', 'FIFO'))
        for word in ('-', 'image=-', '/dev/stdin', 'image=/dev/stdin'):
            r = subprocess.run([BUILD + '/hearth', '--server', self.url, 'infer', 'digits', '--input', word], input=data, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, check=False)
            self.assertEqual((r.returncode, r.stdout.decode()), (0, answer))
        self.assertIn('/dev/zero: not a .npy file', self.hearth('infer', 'digits', '--input', '/dev/zero'))
        self.assertIn('standard input: not a .npy file', self.hearth('infer', 'digits', '--input', '-'))
        self.assertIn("bytes, but the file holds only", self.through(data[:-1], 'infer', 'digits', '--input', 'FIFO'))
        with open('tests/data/oracle/norm-60.json', 'rb') as f:
            problem = f.read()
        words = ('--json', 'plan', '--policy', 'hearth', '--problem')
        streamed, read = (json.loads(said) for said in (self.through(problem, *words, 'FIFO'),
                                                        self.hearth(*words, 'tests/data/oracle/norm-60.json', code=0)))
        self.assertEqual([streamed[key] for key in ('nodes', 'tensors', 'floor_bytes')], [read[key] for key in ('nodes', 'tensors', 'floor_bytes')])
        self.assertIn('must contain a token and nothing else', self.through(b'x' * 9999, '--token-file', 'FIFO', 'ls'))
        self.assertIn('digits', self.through(b'hth_' + b'0' * 64 + b'\n', '--token-file', 'FIFO', 'ls'))

    def test_python(self):
        with hearthd.Client(self.url) as c:
            for name, array, sentence in WRONG:
                with self.assertRaises(hearthd.InvalidArgument) as e:
                    c.infer('digits', {name: array})
                self.assertIn(sentence, str(e.exception))
            with self.assertRaises(hearthd.NotFound) as e:
                c.infer('digit', np.zeros((1, 1, 8, 8), np.float32))
            self.assertIn("did you mean 'digits'?", str(e.exception))

    def test_arguments(self):
        """What is of another type than it must be is not taken for what nobody has said."""
        with hearthd.Client(self.url) as c:
            for question, arguments, error, sentence in ARGUMENTS:
                with self.subTest(question=question, arguments=arguments), self.assertRaises(error) as e:
                    c.query(question, **arguments)
                self.assertIn(sentence, str(e.exception))

    def test_no_samples(self):
        """A batch of nothing is answered with nothing, whatever way it takes."""
        for where in (self.url, FOLDER + '/store'):
            with hearthd.Client(where, shared_memory=where != self.url) as c:
                if where != self.url:
                    c.import_model('digits', 'tests/data/digits/digits.onnx')
                for _ in range(3):
                    self.assertEqual(c.infer('digits', np.zeros((0, 1, 8, 8), np.float32))['logits'].shape, (0, 10))
        with hearthd.Client(self.url) as c:
            for _ in range(3):
                self.assertEqual(c.infer('digits', np.zeros((0, 1, 8, 8), np.float32))['logits'].shape, (0, 10))

    def test_http(self):
        for body, sentence in JSON:
            request = urllib.request.Request(f'http://{self.daemon.address}/v2/models/digits/infer', json.dumps({'inputs': [body]}).encode())
            with self.assertRaises(urllib.error.HTTPError) as e:
                urllib.request.urlopen(request, timeout=60)
            self.assertEqual(e.exception.code, 400)
            self.assertIn(sentence, json.loads(e.exception.read())['error'])


if __name__ == '__main__':
    rc = tap.run([Inputs])
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(rc)
