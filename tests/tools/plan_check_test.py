#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of all policies under an independent checker (tests/tools/plan_check.py): 20 networks made at random and 12 published ones
that are nowhere else in the tests. Speaks TAP. usage: tests/tools/plan_check_test.py BUILD_DIR, from the root."""
import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [TOOLS, os.path.dirname(TOOLS)]
sys.dont_write_bytecode = True
import plan_check  # noqa: E402
import plan_nets  # noqa: E402
import tap  # noqa: E402

HEARTH = os.path.abspath(sys.argv[1]) + '/hearth'
POLICIES = ('hearth', 'keep', 'vdnn', 'chen', 'checkmate-auto', 'str-auto', 'monet', 'capuchin', 'mo-sos')
UNITS = {'B': 1, 'KiB': 1 << 10, 'MiB': 1 << 20, 'GiB': 1 << 30}
FREE = 1 << 50
SEED = int(os.environ.get('HEARTH_TEST_SEED', '0'))  # of the networks made at random


def said(text, words):
    """The bytes that a refusal names after these words, None: it does not."""
    m = re.search(re.escape(words) + r' ([0-9.]+) (\w+)', text)
    return float(m[1]) * UNITS[m[2]] if m else None


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix='hearth-plans-')
        self.addCleanup(shutil.rmtree, self.folder)
        self.plans = self.refused = 0

    def plan(self, problem, policy, budget, ms=40):
        """The plan file as JSON, or the refusal's text."""
        out = self.folder + '/plan.json'
        with open(self.folder + '/problem.json', 'w', encoding='utf-8') as f:
            json.dump(problem, f)
        r = subprocess.run([HEARTH, '--json', 'plan', '--problem', f.name, '--policy', policy, '--budget', str(budget), '--plan-ms', str(ms), '--out', out],
                           capture_output=True, text=True, check=False)
        if r.returncode != 0:
            return r.stderr
        with open(out, encoding='utf-8') as f:
            return json.load(f)


class Plans(Case):
    def checked(self, name, problem, shares):
        """Plans of all policies for these shares of what keeping everything takes."""
        free = self.plan(problem, 'keep', FREE)
        self.assertIsNone(plan_check.fault(free), name)
        peak = free['arena_bytes'] + free['resident_bytes']
        for share in shares:
            budget, made, least = int(peak * share), {}, []
            for policy in POLICIES:
                doc, where = self.plan(problem, policy, budget, 10), f'{name}, {policy}, {share}'
                if isinstance(doc, str):
                    self.assertRegex(doc, 'needs at least|no plan was found', where)
                    least.append(said(doc, 'needs at least'))
                    self.refused += 1
                    continue
                self.plans += 1
                self.assertEqual((doc['policy'], doc['problem']['budget']), (policy, budget), where)
                self.assertIsNone(plan_check.fault(doc), where)
                made[policy] = doc
            bound = max((d['lower_bound_us'] for d in made.values()), default=0)
            for policy, doc in made.items():  # what is proven of one is proven of all
                self.assertLessEqual(bound, doc['predicted_us'] * (1 + 1e-6), f'{name}, {policy}, {share}')
                for n in filter(None, least):
                    self.assertLessEqual(n, doc['arena_bytes'] + doc['resident_bytes'], f'{name}, {policy}, {share}')

    def test_random(self):
        for kind in plan_nets.KINDS:
            for seed in range(4):
                self.checked(f'{kind} {SEED + seed}', plan_nets.made_up(kind, SEED + seed), (0.75, 0.5))
        print(f'# {self.plans} plans, {self.refused} refused')
        self.assertGreater(self.plans, 180)

    def test_published(self):
        for i, (name, net) in enumerate(plan_nets.NETS.items()):
            self.checked(name, net(), ((0.8, 0.65, 0.5)[i % 3],))
        print(f'# {self.plans} plans, {self.refused} refused')
        self.assertGreater(self.plans, 60)


class Planted(Case):
    """What the checker would miss, it could not vouch for."""

    def setUp(self):
        super().setUp()
        problem = plan_nets.made_up('residual', 1)
        free = self.plan(problem, 'keep', FREE)
        self.doc = self.plan(problem, 'hearth', int(0.45 * (free['arena_bytes'] + free['resident_bytes'])))
        self.kinds = {k: [i for i, x in enumerate(self.doc['instructions']) if x['kind'] == k] for k in plan_check.STREAM}
        self.assertIsNone(plan_check.fault(self.doc))
        self.assertTrue(self.kinds['prefetch'] and self.kinds['offload'])

    def broken(self, words, change):
        doc = copy.deepcopy(self.doc)
        change(doc, doc['instructions'])
        self.assertRegex(str(plan_check.fault(doc)), words)

    @staticmethod
    def untimed(doc):
        for x in doc['instructions']:
            x.pop('start_us', None)

    def test_addresses(self):
        live, moved = {}, 0
        for k, x in enumerate(self.doc['instructions']):
            if x['kind'] in ('alloc', 'prefetch'):
                producer = self.doc['problem']['tensors'][x['tensor']]['producer']
                pairs = dict((new, old) for old, new in self.doc['problem']['nodes'][producer]['inplace']) if producer >= 0 else {}
                others = [o for t, o in live.items() if t != pairs.get(x['tensor']) and o != x['offset']]
                if others and k % 5 == 0:
                    moved += 1
                    self.broken('overlaps|ends after|before its content', lambda _, ins, k=k, o=others[-1]: ins[k].update(offset=o))
                live[x['tensor']] = x['offset']
            elif x['kind'] == 'free':
                del live[x['tensor']]
        self.assertGreater(moved, 5)
        self.broken('aligned', lambda _, ins: ins[self.kinds['alloc'][0]].update(offset=32))
        self.broken('ends after', lambda doc, _: doc.update(arena_bytes=doc['arena_bytes'] - 64))

    def test_waits(self):
        """A wait may follow from others, or order nothing but times; most do not."""
        caught = {}
        for kind in ('prefetch', 'offload'):
            for k in self.kinds[kind]:
                for way in ('its own', 'for it'):
                    doc = copy.deepcopy(self.doc)
                    self.untimed(doc)
                    ins = doc['instructions']
                    for x in ins[k:k + 1] if way == 'its own' else ins[k + 1:]:
                        x['waits'] = [w for w in x.get('waits', []) if w != k and way == 'for it']
                    if any(x.get('waits', []) != y.get('waits', []) for x, y in zip(ins, self.doc['instructions'])):
                        caught.setdefault((kind, way), []).append(bool(re.search('surely|overwritten|it takes', str(plan_check.fault(doc)))))
        for case, each in caught.items():
            self.assertGreater(sum(each), len(each) / 3, case)
        self.assertGreaterEqual(len(caught), 3)

    def test_content(self):
        moved = [i for i in self.kinds['prefetch'] if self.doc['problem']['tensors'][self.doc['instructions'][i]['tensor']]['producer'] >= 0]
        p, c = moved[0], self.kinds['compute']
        o = next(i for i in self.kinds['offload'] if self.doc['instructions'][i]['tensor'] == self.doc['instructions'][p]['tensor'])
        self.broken('before its content', lambda doc, ins: self.untimed(doc) or ins[p].update(kind='alloc', waits=[], stream='compute'))
        self.broken('surely no copy', lambda doc, ins: self.untimed(doc) or self.drop(ins, o))
        self.broken('never runs|surely|not there', lambda doc, ins: self.untimed(doc) or self.drop(ins, c[3]))
        self.broken('runs twice', lambda _, ins: ins[c[5]].update(recompute=True))
        self.broken('no alternative', lambda _, ins: ins[c[5]].update(alt=99))
        self.broken('not before it', lambda _, ins: ins[p]['waits'].append(p))
        again = [i for i in c if self.doc['instructions'][i]['recompute']]
        self.assertTrue(again)
        self.broken('another algorithm|no alternative', lambda _, ins: ins[again[0]].update(alt=ins[again[0]]['alt'] + 1))
        self.broken('must not run again', lambda doc, ins: doc['problem']['nodes'][ins[again[0]]['node']].update(recomputable=False))

    @staticmethod
    def drop(ins, k):
        del ins[k]
        for x in ins:
            x['waits'] = [w - (w > k) for w in x.get('waits', []) if w != k]
            x['i'] -= x['i'] > k

    def test_sums(self):
        self.broken('exceed the budget', lambda doc, _: doc['problem'].update(budget=doc['arena_bytes'] + doc['resident_bytes'] - 1))
        self.broken('it takes', lambda doc, _: doc.update(predicted_us=doc['predicted_us'] * 0.999))
        self.broken('it runs from', lambda _, ins: ins[self.kinds['prefetch'][0]].update(end_us=ins[self.kinds['prefetch'][0]]['end_us'] * 0.99))
        self.broken('no plan takes less', lambda doc, _: doc.update(lower_bound_us=doc['predicted_us'] * 1.01))
        self.broken('are resident', lambda doc, _: doc.update(resident_bytes=doc['resident_bytes'] + 64))
        self.broken('live at once', lambda doc, _: doc.update(live_peak_bytes=doc['live_peak_bytes'] + 64))
        self.broken('not a plan file', lambda doc, _: doc.pop('arena_bytes'))
        self.broken('format', lambda doc, _: doc.update(format='hearth-plan-2'))


if __name__ == '__main__':
    sys.exit(tap.run([Plans, Planted]))
