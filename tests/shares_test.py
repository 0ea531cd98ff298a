#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hearth shares --problem`: the paper's example, random problems against a reference in exact fractions, and bad input. And of a server:
two tenants' training jobs on a device with memory for one. Speaks TAP. usage: tests/shares_test.py BUILD_DIR, from the root."""
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from fractions import Fraction

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data', 'digits')
DEADLINE = 240
EPOCHS = 120  # of 23 steps: long enough to be paused
FOLDER = tempfile.TemporaryDirectory(prefix='hearth-shares-')
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith('HEARTH_')}
FILE = FOLDER.name + '/problem.json'
PAPER = {'capacity': {'cpu': 9, 'memory': 18, 'gpu': 2},
         'tenants': [{'name': 'A', 'weight': 1, 'tasks': None, 'demand': {'memory': 4, 'cpu': 1}},
                     {'name': 'B', 'weight': 1, 'tasks': None, 'demand': {'cpu': 3, 'memory': 1, 'gpu': 1}}]}


def shares(text, *flags):
    """(exit code, stdout, stderr); no server can be found."""
    with open(FILE, 'w', encoding='utf-8') as f:
        f.write(text)
    environment = ENVIRONMENT | {'HEARTH_SERVER': 'ipc:///nowhere'}
    done = subprocess.run([BUILD + '/hearth', *flags, 'shares', '--problem', FILE], capture_output=True, text=True, check=False,
                          env=environment, timeout=300)
    return done.returncode, done.stdout, done.stderr


@functools.cache
def exact(number):
    return Fraction(str(number))


def reference(problem):
    """[(tasks, used, dominant share)], left: progressive filling in fractions, by looking at every tenant for every task."""
    capacity = {r: exact(c) for r, c in problem['capacity'].items()}
    left = dict(capacity)
    rows = [{'tasks': 0, 'used': dict.fromkeys(capacity, Fraction(0))} for _ in problem['tenants']]

    def share(i):
        return max((rows[i]['used'][r] / capacity[r] for r in capacity if capacity[r]), default=Fraction(0))

    def next_demand(tenant):
        demands = tenant['demand'] if isinstance(tenant['demand'], list) else [tenant['demand']]
        for demand in demands:
            if all(exact(amount) <= left[r] for r, amount in demand.items()):
                return demand
        return None

    while True:
        able = [i for i, t in enumerate(problem['tenants'])
                if (t.get('tasks') is None or rows[i]['tasks'] < t['tasks']) and next_demand(t) is not None]
        if not able:
            return [(r['tasks'], r['used'], share(i)) for i, r in enumerate(rows)], left
        i = min(able, key=lambda k: (share(k) / exact(problem['tenants'][k].get('weight', 1)), k))
        for r, amount in next_demand(problem['tenants'][i]).items():
            rows[i]['used'][r] += exact(amount)
            left[r] -= exact(amount)
        rows[i]['tasks'] += 1


def random_problem(seed):
    """Whole numbers, decimals and many equal ones, so that there are ties; rigid and elastic; some want a number of tasks."""
    dice = random.Random(seed)
    resources = ['cpu', 'memory', 'gpu', 'device time', 'link'][:dice.randint(1, 5)]
    decimals = dice.choice([0, 0, 1, 3])
    few = dice.random() < 0.5

    def amount(most):
        return round(dice.choice([1, 2, 3]) if few else dice.uniform(0.2, most), decimals) or 1

    capacity = {r: round(dice.uniform(8, 60), decimals) for r in resources}
    tenants = []
    for i in range(dice.randint(1, 9)):
        demands = []
        for _ in range(dice.choice([1, 1, 2, 4])):
            demands.append({r: amount(6) for r in dice.sample(resources, dice.randint(1, len(resources)))})
        tenants.append({'name': f't{i}', 'demand': demands if len(demands) > 1 or dice.random() < 0.2 else demands[0]})
        if dice.random() < 0.7:
            tenants[-1]['weight'] = dice.choice([1, 2, 3, 0.5, 0.1, 7])
        if dice.random() < 0.7:
            tenants[-1]['tasks'] = dice.choice([None, 0, 1, 5, 40])
    return {'capacity': capacity, 'tenants': tenants}


class Shares(unittest.TestCase):
    def test_paper(self):
        code, out, _ = shares(json.dumps(PAPER), '--json')
        self.assertEqual(code, 0)
        self.assertEqual(json.loads(out), {
            'tenants': [{'name': 'A', 'tasks': 3, 'used': {'cpu': 3, 'memory': 12, 'gpu': 0}, 'dominant_share': 12 / 18},
                        {'name': 'B', 'tasks': 2, 'used': {'cpu': 6, 'memory': 2, 'gpu': 2}, 'dominant_share': 1}],
            'left': {'cpu': 0, 'memory': 4, 'gpu': 0}})

    def test_table(self):
        code, out, _ = shares(json.dumps(PAPER))
        self.assertEqual(code, 0)
        self.assertEqual([line.split() for line in out.splitlines()], [
            'tenant tasks share dominant cpu memory gpu'.split(),
            'A 3 66.67 % memory 3 12 0'.split(), 'B 2 100.00 % gpu 6 2 2'.split(), '(left) - - - 0 4 0'.split()])

    def test_reference(self):
        for seed in range(1000):
            problem = random_problem(seed)
            with self.subTest(seed=seed):
                code, out, err = shares(json.dumps(problem), '--json')
                self.assertEqual((code, err), (0, ''))
                rows, left = reference(problem)
                answer = json.loads(out)
                self.assertEqual([t['name'] for t in answer['tenants']], [t['name'] for t in problem['tenants']])
                for got, (tasks, used, share) in zip(answer['tenants'], rows):
                    self.assertEqual(got['tasks'], tasks)
                    self.assertEqual({r: exact(x) for r, x in got['used'].items()}, used)
                    self.assertAlmostEqual(got['dominant_share'], float(share), delta=1e-12)
                self.assertEqual({r: exact(x) for r, x in answer['left'].items()}, left)

    def test_exact(self):
        tenant = {'name': 'A', 'demand': {'cpu': 0.1}}
        _, out, _ = shares(json.dumps({'capacity': {'cpu': 0.3}, 'tenants': [tenant]}), '--json')
        self.assertEqual(json.loads(out)['tenants'][0]['tasks'], 3)
        self.assertEqual(json.loads(out)['left'], {'cpu': 0})
        huge = {'name': 'A', 'tasks': 10 ** 18, 'demand': {'bytes': 2 ** 40}}
        _, out, _ = shares(json.dumps({'capacity': {'bytes': 2 ** 42 + 1}, 'tenants': [huge]}), '--json')
        self.assertEqual(json.loads(out)['left'], {'bytes': 1})

    def test_bad(self):
        def problem(**tenant):
            return json.dumps({'capacity': {'cpu': 9, 'memory': 18}, 'tenants': [{'name': 'A', 'demand': {'cpu': 1}} | tenant]})
        twice = {'name': 'A', 'demand': {'cpu': 1}}
        for text, words in (
                ('', "line 1"), ('{"capacity":', 'line 1'), ('[]', 'an object'), ('{}', "'capacity' must be an object"),
                ('{"capacity":{},"tenants":[]}', "has 0 resources; it must have 1 to 16"),
                ('{"capacity":{"cpu":1},"tenants":[]}', "has 0 tenants; it must have 1 to"),
                ('{"capacity":{"cpu":-1},"tenants":[]}', "'cpu' is -1; it must be 0, or from 1e-09 to 1e+18"),
                ('{"capacity":{"cpu":"9"},"tenants":[]}', "'cpu' must be a number, not a text"),
                ('{"capacity":{"cpu":9,"cpu":9},"tenants":[]}', 'duplicate object key'),
                ('{"capacity":{"cpu":1e999},"tenants":[]}', 'real number overflow'),
                (problem(weight=float('nan')), "'NaN'"), (problem(weight=-1), 'the weight -1; it must be 1e-06 to 1000000'),
                (problem(weight=0), 'the weight 0;'), (problem(weight='1'), "'weight' must be a number, not a text"),
                (problem(demand={'cpu': 10}), "needs 10 of 'cpu' for a task; the capacity is 9"),
                (problem(demand=[{'cpu': 12}, {'cpu': 9.5}]), "needs in the end 9.5 of 'cpu' for a task; the capacity is 9"),
                (problem(demand={'cpu': -0.5}), "'cpu' is -0.5; it must be 0, or from"),
                (problem(demand={'cpu': 1e-10}), "'cpu' is 1e-10; it must be 0, or from 1e-09"),
                (problem(demand={'gpu': 1}), "needs 'gpu', which the capacity does not name"),
                (problem(demand={}), 'needs 0 of everything'), (problem(demand=[]), 'has 0 demands'),
                (problem(demand=7), "'demand' must be an object or a list of objects, not a whole number"),
                (problem(tasks=-1), 'wants -1 tasks; it must be a whole number from 0 to 1e+18'),
                (problem(tasks=1.5), 'wants 1.5 tasks'), (problem(tasks=10 ** 20), 'too big integer'),
                (problem(name=''), "tenant 1 of 1 must be an object with a 'name'"), (problem(wieght=2), "an unknown key 'wieght'"),
                (problem(demand={'cpu': 1e-8}), 'more than 10000000 tasks fit the capacity'),
                (json.dumps({'capacity': {'cpu': 9}, 'tenants': [twice, twice]}), "tenants 1 and 2 have the same name 'A'")):
            with self.subTest(text=text):
                code, out, err = shares(text)
                self.assertEqual((code, out), (1, ''))
                self.assertIn(words, err)
                self.assertEqual(err.count('\n'), 1)

    def test_no_server(self):
        done = subprocess.run([BUILD + '/hearth', 'shares'], capture_output=True, text=True, check=False,
                              env=ENVIRONMENT | {'HEARTH_SERVER': 'ipc:///nowhere'})
        self.assertEqual(done.returncode, 1)
        self.assertIn('/nowhere', done.stderr)


class Tenants(unittest.TestCase):
    """bob's job waits with a reason; alice's is paused for it, and ends as one that was left alone."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix='hearth-fair-')
        self.addCleanup(temporary.cleanup)
        self.folder, self.process, self.token = temporary.name, None, {}
        tap.known_links(BUILD, self.folder + '/store')
        self.addCleanup(self.stop)
        for who, role in (('alice', 'job'), ('bob', 'job'), ('root', 'admin')):
            made = subprocess.run([BUILD + '/hearth', 'token', 'new', who, '--roles', role, '--file', self.folder + '/tokens'],
                                  capture_output=True, text=True, check=True)
            self.token[who] = made.stdout.split('\n')[0]

    def patience(self, seconds):
        with open(self.folder + '/config', 'w', encoding='utf-8') as f:
            f.write(f'fair.patience = {seconds}\n')

    def start(self, device):
        self.patience(3600)  # what waits is looked at first
        self.process = subprocess.Popen(
            [BUILD + '/hearthd', '--store', self.folder + '/store', '--listen', f'ipc://{self.folder}/sock', '--device', device,
             '--auth-tokens-file', self.folder + '/tokens', '--config', self.folder + '/config'], stdout=subprocess.PIPE, text=True)
        self.assertIn(' ready: ', self.process.stdout.readline())

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.stdout.close()
            self.assertEqual(self.process.wait(DEADLINE), 0)
            self.process = None

    def hearth(self, who, *args, people=False):
        server = ['--server', f'ipc://{self.folder}/sock'] + ([] if people else ['--json'])
        done = subprocess.run([BUILD + '/hearth', *server, *args], capture_output=True,
                              text=True, check=False, timeout=DEADLINE, env=ENVIRONMENT | {'HEARTH_TOKEN': self.token[who]})
        self.assertEqual(done.returncode, 0, (who, args, done.stdout, done.stderr))
        return done.stdout

    def train(self, who, name, epochs, *more):
        return self.hearth(who, 'train', 'new', '--data', DIGITS + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64',
                           '--plan-ms', '50', '--epochs', str(epochs), '--save-as', name, *more)

    def losses(self, name):
        return [row[0] for row in json.loads(self.hearth('root', 'job', name))['history']]

    def until(self, what, is_so):
        """Waits until is_so(answer of what()), and returns that."""
        end = time.monotonic() + DEADLINE
        while True:
            answer = what()
            if is_so(answer):
                return answer
            self.assertLess(time.monotonic(), end, answer)

    def row(self, name):
        return json.loads(self.hearth('root', 'job', name, ))

    def tenant(self, name):
        (device,) = json.loads(self.hearth('root', 'shares'))['devices']
        rows = {row['tenant']: row for row in device['tenants']}
        return rows.get(name, {'waiting': [], 'running': []})

    def test_paused_for_another(self):
        self.start('cpu:mem=1GiB,threads=1')
        self.hearth('root', 'import', 'new', DIGITS + '/untrained.onnx')
        self.train('alice', 'whole', EPOCHS, '--detach')
        self.hearth('alice', 'wait', 'whole')
        whole, peak = self.losses('whole'), json.loads(self.hearth('alice', 'job', 'whole'))['memory']['peak_bytes']
        self.stop()
        self.start(f'cpu:mem={peak * 3 // 2 // 1024}KiB,threads=1')
        self.train('alice', 'long', EPOCHS, '--detach')
        self.until(lambda: self.row('long'), lambda row: row['state'] == 'running')
        self.train('bob', 'short', EPOCHS // 5, '--budget', str(peak), '--detach')
        waits = self.until(lambda: self.tenant('bob'), lambda bob: bob['waiting'] and bob['waiting'][0]['waits_for'] == 'memory')
        self.assertIn('of device memory', waits['waiting'][0]['why'])
        self.assertIn("tenant 'bob' is under its share", waits['waiting'][0]['why'])
        table = self.hearth('bob', 'shares', people=True)
        self.assertRegex(table, r'(?m)^cpu:0 +alice +1 ')
        self.patience(0.2)
        self.process.send_signal(signal.SIGHUP)
        self.hearth('bob', 'wait', 'short')
        self.assertNotEqual(self.row('long')['state'], 'finished')
        self.hearth('alice', 'wait', 'long')
        self.assertEqual(self.losses('long'), whole)
        lines = [line['text'] for line in map(json.loads, self.hearth('alice', 'logs', 'long').splitlines())]
        self.assertTrue(any("in favour of tenant 'bob', which is under its share" in line for line in lines), lines)


sys.exit(tap.run([Shares, Tenants]))
