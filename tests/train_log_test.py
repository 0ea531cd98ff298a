#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses as files: CSV and TensorBoard's event files, read by a reader of our own that checks every CRC; weights of classes from files; an
early end. Speaks TAP.
usage: tests/train_log_test.py BUILD_DIR, from the root."""
import csv
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, 'tests/security')
sys.dont_write_bytecode = True
import tap  # noqa: E402
from hostile_server_test import Hostile  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', 'digits')
PATIENCE = 300
for name in ('HEARTH_SERVER', 'HEARTH_TOKEN'):
    os.environ.pop(name, None)


def crc32c(data):
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82f63b78 if n & 1 else 0)
        table.append(n)
    crc = 0xffffffff
    for b in data:
        crc = table[(crc ^ b) & 255] ^ crc >> 8
    return crc ^ 0xffffffff


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xa282ead8) & 0xffffffff


def records(path):
    with open(path, 'rb') as f:
        data = f.read()
    at = 0
    while at < len(data):
        length, head = struct.unpack_from('<QI', data, at)
        body = data[at + 12:at + 12 + length]
        tail, = struct.unpack_from('<I', data, at + 12 + length)
        assert head == masked(data[at:at + 8]) and tail == masked(body), 'a checksum is wrong'
        at += 16 + length
        yield body


def fields(message):
    """The fields of a protobuf message: (number, value)."""
    def varint(at):
        v = shift = 0
        while True:
            v |= (message[at] & 127) << shift
            shift += 7
            at += 1
            if message[at - 1] < 128:
                return v, at
    at = 0
    while at < len(message):
        key, at = varint(at)
        kind = key & 7
        if kind == 0:
            v, at = varint(at)
        elif kind in (1, 5):
            n = 8 if kind == 1 else 4
            v, at = struct.unpack_from('<d' if kind == 1 else '<f', message, at)[0], at + n
        else:
            n, at = varint(at)
            v, at = message[at:at + n], at + n
        yield key >> 3, v


def scalars(path):
    """{tag: {step: value}} of an event file; the first record says which version it is."""
    out = {}
    for i, record in enumerate(records(path)):
        event = dict(fields(record))
        assert event[1] > 1.6e9, 'no wall time'
        if i == 0:
            assert event[3] == b'brain.Event:2', event
            continue
        for number, value in fields(event[5]):
            assert number == 1
            v = dict(fields(value))
            assert event[2] not in out.setdefault(v[1].decode(), {}), 'a step is there twice'
            out[v[1].decode()][event[2]] = v[2]
    return out


def f32(v):
    return struct.unpack('f', struct.pack('f', v))[0]


class Told(Hostile):
    """A server of a job that has begun when the command asks first: of its steps `begin` .. `end` it tells one by one, then that it is in `state`
    (None: then it is gone)."""

    def __init__(self, points, begin=1, end=0, state='finished', every=1, held_out=()):
        super().__init__()
        self.begin, self.end, self.state = begin, end, state
        history = [[1 + 0.5 / (i + 1), 2.0, 0.001] for i in range(points)]
        step = (points - 1) * every if every > 1 else points
        self.job = {'id': 7, 'job': 'made', 'step': step, 'steps': 5000, 'steps_per_epoch': 10, 'state': state, 'history': history, 'every': every,
                    'held_out': list(held_out)}
        self.documents = {'job': {**self.job, 'state': 'running', 'step': begin - 1} if end > 0 else self.job}

    def watched(self, query):
        if 'after' not in json.loads(query[2]):
            return {'job': {**self.documents['job'], 'history': []}, 'events': [], 'next': 1, 'missed': False}
        if self.end == 0:
            self.documents = {}
            return None
        steps = [{'n': n, 'done': n, 'total': 5000, 'what': {'step': n, 'epoch': 1, 'loss': 0.5, 'lr': 0.001, 'ms': 2}}
                 for n in range(self.begin, self.end + 1)]
        self.end = 0
        if self.state is None:
            return {'events': steps, 'next': 9000}
        self.documents = {'job': self.job}
        return {'events': [*steps, {'n': 9000, 'what': {'state': self.state}}], 'next': 9001}


class Logs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='hearth-log-')
        self.addCleanup(lambda: subprocess.run(['rm', '-rf', self.folder], check=True))
        self.where = ['--store', self.folder + '/store']

    def run_(self, *args):
        out = subprocess.run([BUILD + '/hearth', *self.where, *args], capture_output=True, text=True, check=False, timeout=PATIENCE)
        return out.returncode, out.stdout, out.stderr

    def train(self, *more, command=('--epochs', '3')):
        """Trains the digits; the lines that --json prints."""
        self.assertEqual(self.run_('import', 'new', DATA + '/untrained.onnx')[0], 0)
        code, said, why = self.run_('--json', 'train', 'new', '--data', DATA + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64',
                                    '--optimizer', 'adam', '--schedule', 'one-cycle', '--hold-out', '0.1', '--save-as', 'made', *command, *more)
        self.assertEqual(code, 0, why)
        return [json.loads(line) for line in said.splitlines()]

    def check_csv(self, path, lines, epochs=3):
        with open(path, encoding='utf-8') as f:
            rows = list(csv.DictReader(f))
        steps, summary = lines[:-1], lines[-1]
        held = {e['step']: e for e in summary['held_out']}
        self.assertEqual([int(r['step']) for r in rows], [s['step'] for s in steps])
        per = len(steps) // epochs
        for row, step in zip(rows, steps):
            self.assertEqual(f32(float(row['loss'])), f32(step['loss']))
            self.assertEqual(int(row['epoch']), (step['step'] - 1) // per + 1)
            self.assertGreater(float(row['lr']), 0)
            e = held.get(step['step'])
            for column, key in (('held_out_loss', 'loss'), ('accuracy', 'accuracy'), ('top5', 'top5'), ('perplexity', 'perplexity')):
                self.assertEqual(row[column] != '', e is not None, (row, column))
                if e:
                    self.assertAlmostEqual(float(row[column]) / e[key], 1, places=7)
        self.assertEqual(len([r for r in rows if r['held_out_loss']]), epochs)
        return rows

    def check_events(self, folder, rows):
        names = os.listdir(folder)
        self.assertEqual(len(names), 1)
        self.assertTrue(names[0].startswith('events.out.tfevents.'), names)
        found = scalars(f'{folder}/{names[0]}')
        for tag, column in (('train/loss', 'loss'), ('train/lr', 'lr'), ('eval/loss', 'held_out_loss'), ('eval/accuracy', 'accuracy'),
                            ('eval/top5', 'top5'), ('eval/perplexity', 'perplexity')):
            want = {int(r['step']): float(r[column]) for r in rows if r[column]}
            self.assertEqual(sorted(found[tag]), sorted(want), tag)
            for step, value in want.items():
                self.assertTrue(math.isclose(found[tag][step], value, rel_tol=1e-6), (tag, step))

    def told(self, *args, **named):
        server = Told(*args, **named)
        self.addCleanup(server.close)
        self.where = ['--server', server.url]

    def logged(self, *more, code=0, path=None):
        path = path or self.folder + '/log.csv'
        got, _, why = self.run_('job', 'made', '--log-csv', path, *more)
        self.assertEqual(got, code, why)
        with open(path, encoding='utf-8') as f:
            return list(csv.DictReader(f)), why

    def test_crc(self):
        self.assertEqual(crc32c(b'123456789'), 0xe3069283)  # the check value of CRC-32C

    def test_embedded(self):
        path, board = self.folder + '/log.csv', self.folder + '/board'
        lines = self.train('--log-csv', path, '--log-tensorboard', board)
        self.check_events(board, self.check_csv(path, lines))
        self.assertAlmostEqual(lines[-1]['held_out'][-1]['perplexity'], math.exp(lines[-1]['held_out'][-1]['loss']), places=6)

    def test_server(self):
        """A job of a server, of which the command hears only now and then; and once more when it has ended."""
        d = tap.Daemon(BUILD)
        self.addCleanup(d.stop)
        self.where = ['--server', f'ipc://{d.folder}/sock']
        path, board = self.folder + '/log.csv', self.folder + '/a/board'
        os.mkdir(self.folder + '/a')
        lines = self.train('--log-csv', path, '--log-tensorboard', board)
        rows = self.check_csv(path, lines)
        self.check_events(board, rows)
        again = self.folder + '/again.csv'
        code, _, why = self.run_('job', 'made', '--follow', '--log-csv', again, '--log-tensorboard', self.folder + '/other')
        self.assertEqual(code, 0, why)
        rows = self.check_csv(again, lines)
        self.check_events(self.folder + '/other', rows)

    def test_lost(self):
        """What was heard of stays where the document is from before, or ends at the last checkpoint."""
        self.told(1000, 1001, 1500, None)
        rows, _ = self.logged('--follow', code=1)
        self.assertEqual([int(r['step']) for r in rows], list(range(1001, 1501)))
        self.told(100, 1, 150, 'failed')
        rows, _ = self.logged('--follow')
        self.assertEqual([int(r['step']) for r in rows], list(range(1, 151)))

    def test_last_evaluation(self):
        held = [{'set': name, 'step': n, 'loss': n / 8, 'accuracy': 0.5} for n in (5, 10) for name in ('tail', 'other')]
        self.told(10, 1, 10, held_out=held)
        rows, _ = self.logged('--follow')
        self.assertEqual((rows[-1]['step'], rows[-1]['held_out_loss'], rows[-1]['accuracy']), ('10', '1.25', '0.5'))

    def test_link(self):
        """A link stays one, and what it leads to gets the whole log."""
        path = self.folder + '/link.csv'
        os.symlink('target.csv', path)
        self.told(20, 11, 20)
        rows, _ = self.logged('--follow', path=path)
        self.assertEqual(os.readlink(path), 'target.csv')
        self.assertEqual([int(r['step']) for r in rows], list(range(1, 21)))

    def test_thinned(self):
        """Of a long job that has ended the server knows every n-th step, and all evaluations."""
        held = [{'set': 'tail', 'step': n, 'loss': n / 8} for n in (4, 9, 20)]
        self.told(11, every=2, held_out=held)
        rows, why = self.logged()
        self.assertEqual([int(r['step']) for r in rows], [1, 3, 4, *range(5, 20, 2), 20])
        self.assertEqual([int(r['step']) for r in rows if r['held_out_loss']], [4, 9, 20])
        self.assertEqual([int(r['step']) for r in rows if not r['loss']], [4])
        self.assertEqual(rows[-1]['epoch'], '2')
        self.assertIn('the log has gaps', why)
        code, said, why = self.run_('job', 'made', '--log-csv', '/dev/stdout')  # a pipe here
        self.assertEqual(code, 0, why)
        self.assertIn('\n20,2,', said)
        self.told(11, 5, 20, every=2, held_out=held)
        rows, why = self.logged('--follow')
        self.assertEqual([int(r['step']) for r in rows], list(range(5, 21)))
        self.assertIn('the log has gaps', why)
        self.told(11, 1, 20, every=2, held_out=held)
        self.assertNotIn('gaps', self.logged('--follow')[1])

    def test_early_end(self):
        lines = self.train('--patience', '1', '--keep', 'best', '--lr', '0.2', '--label-smoothing', '0.1', command=('--epochs', '30'))
        summary = lines[-1]
        self.assertTrue(summary['stopped_early'])
        self.assertLess(len(lines) - 1, summary['steps_per_epoch'] * 30)
        losses = [e['loss'] for e in summary['held_out']]
        self.assertEqual(losses[summary['best_epoch'] - 1], min(losses))
        self.assertEqual(summary['best_epoch'], len(losses) - 1)

    def test_weights(self):
        values = [1, 2, 0.5, 1, 1, 3, 1, 1, 0.25, 1]
        with open(self.folder + '/w.txt', 'w', encoding='utf-8') as f:
            f.write('\n'.join(str(v) for v in values))
        head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10,), }"
        head += b' ' * (63 - (10 + len(head)) % 64) + b'\n'
        with open(self.folder + '/w.npy', 'wb') as f:
            f.write(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(head)) + head + struct.pack('<10f', *values))
        losses = [[s['loss'] for s in self.train('--class-weights', w, command=('--epochs', '1'))[:-1]]
                  for w in (','.join(str(v) for v in values), self.folder + '/w.txt', self.folder + '/w.npy', '1,1,1,1,1,1,1,1,1,1')]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])
        self.assertNotEqual(losses[0], losses[3])
        self.assertEqual(losses[3], [s['loss'] for s in self.train(command=('--epochs', '1'))[:-1]])

    def test_bad(self):
        self.train(command=('--epochs', '1'))
        with open(self.folder + '/bad.txt', 'w', encoding='utf-8') as f:
            f.write('1, 2, three')
        for code, words, args in (
                (1, f'{self.folder}/no/log.csv: No such file', ('--log-csv', self.folder + '/no/log.csv')),
                (1, 'Not a directory', ('--log-tensorboard', self.folder + '/bad.txt')),
                (2, '--detach follows no job', ('--detach', '--log-csv', self.folder + '/x.csv')),
                (2, "bad.txt': 'three' is not a number", ('--class-weights', self.folder + '/bad.txt')),
                (2, 'is neither numbers with commas nor a file', ('--class-weights', self.folder + '/none.txt')),
                (2, "--label-smoothing needs a number, not 'nan'", ('--label-smoothing', 'nan')),
                (1, 'class-axis is 1 or -1', ('--class-axis', '0')),
                (1, "there are 2 class weights, but output 'logits' [64,10] has 10 classes in axis 1", ('--class-weights', '1,2')),
                (1, 'keep needs held-out data', ('--keep', 'best')),
                (1, "schedule 'onecycle' is not one of", ('--schedule', 'onecycle'))):
            got, _, why = self.run_('train', 'new', '--data', DATA + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64', *args)
            self.assertEqual(got, code, (args, why))
            self.assertIn(words, why)
        self.assertFalse(os.path.exists(self.folder + '/x.csv'))

    def test_refused_leaves_files(self):
        """Of a job that is refused nothing is written: an older log stays, and no new files are there."""
        old, new, board = (self.folder + name for name in ('/old.csv', '/new.csv', '/board'))
        self.train(command=('--epochs', '1'))
        with open(old, 'w', encoding='utf-8') as f:
            f.write('the last run\n')
        for path in (old, new):
            code, _, why = self.run_('train', 'new', '--data', DATA + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64',
                                     '--schedule', 'onecycle', '--log-csv', path, '--log-tensorboard', board)
            self.assertEqual(code, 1, why)
        with open(old, encoding='utf-8') as f:
            self.assertEqual(f.read(), 'the last run\n')
        self.assertFalse(os.path.exists(new))
        self.assertEqual(os.listdir(board), [])


if __name__ == '__main__':
    sys.exit(tap.run([Logs]))
