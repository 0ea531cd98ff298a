#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python tests print: a line for each test, `not ok` for whatever fails, and a plan that counts them. Speaks TAP.

usage: tests/tap_test.py, from the root.
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import tap  # noqa: E402

PROGRAM = """
import sys, unittest
sys.dont_write_bytecode = True
sys.path.insert(0, 'tests')
import tap
class Case(unittest.TestCase):
%s
sys.exit(tap.run([c for c in list(globals().values()) if isinstance(c, type)]))
"""
SUB = '        for i in range(3):\n            with self.subTest(i=i):\n                '


def lines(body):
    """Exit code, and the lines that prove reads, of a program whose test case has this body."""
    r = subprocess.run([sys.executable, '-c', PROGRAM % body], stdout=subprocess.PIPE, text=True, check=False, cwd=os.path.dirname(HERE))
    return r.returncode, [line for line in r.stdout.split('\n') if re.match(r'(not )?ok |1\.\.', line)], r.stdout


class Tap(unittest.TestCase):
    def told(self, body, code, *words):
        got, found, text = lines(body)
        self.assertEqual((got, found), (code, [*words, f'1..{len(words)}']))
        return text

    def test_passes(self):
        self.told('    def test_a(self):\n        pass\n    def test_b(self):\n' + SUB + 'pass', 0, 'ok 1 - Case.test_a', 'ok 2 - Case.test_b')

    def test_subtest(self):
        text = self.told('    def test_a(self):\n' + SUB + 'self.assertEqual(i, 1)\n    def test_b(self):\n        pass', 1,
                         'not ok 1 - Case.test_a', 'ok 2 - Case.test_b')
        self.assertIn('(i=0)', text)
        self.assertNotIn('(i=1)', text)
        self.assertIn('(i=2)', text)
        self.told('    def test_a(self):\n' + SUB + 'raise KeyError', 1, 'not ok 1 - Case.test_a')

    def test_once(self):
        self.told('    def test_a(self):\n        self.fail()\n    def tearDown(self):\n        raise KeyError', 1, 'not ok 1 - Case.test_a')

    def test_class(self):
        raises = '    @classmethod\n    def %s(cls):\n        raise KeyError\n    def test_a(self):\n        pass'
        self.told(raises % 'setUpClass', 1, 'not ok 1 - setUpClass (__main__.Case)')
        self.told(raises % 'tearDownClass', 1, 'ok 1 - Case.test_a', 'not ok 2 - tearDownClass (__main__.Case)')

    def test_skipped(self):
        self.told("    def test_a(self):\n        self.skipTest('why')", 0, 'ok 1 - Case.test_a # SKIP why')

    def test_class_is_skipped(self):
        """Told and counted, also after another class's tests."""
        self.told("    def test_a(self):\n        pass\nclass Other(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n"
                  "        raise unittest.SkipTest('why')\n    def test_b(self):\n        pass", 0,
                  'ok 1 - Case.test_a', 'ok 2 - setUpClass (__main__.Other) # SKIP why')

    def test_expected(self):
        self.told('    @unittest.expectedFailure\n    def test_a(self):\n        pass', 1, 'not ok 1 - Case.test_a passes, and should not')
        self.told('    @unittest.expectedFailure\n    def test_a(self):\n        self.fail()', 0, 'ok 1 - Case.test_a fails, as it should')


class Runner(unittest.TestCase):
    """build-aux/tap.sh: neither a test that hangs nor what a test leaves running keeps it waiting; what failed is told."""

    def run_test(self, body, seconds):
        with tempfile.NamedTemporaryFile('w', suffix='_test.py') as f:
            f.write(body)
            f.flush()
            return subprocess.run(['sh', 'build-aux/tap.sh', f.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                                  cwd=os.path.dirname(HERE), env={**os.environ, 'HEARTH_TEST_SECONDS': seconds, 'HEARTH_BUILD': 'no-build'}, timeout=120)

    def test_left(self):
        r = self.run_test("import subprocess\np = subprocess.Popen(['sleep', '1000'])\nprint(f'# {p.pid}\\nok 1 - a # SKIP\\n1..1')\n", '100')
        pid = re.match('# ([0-9]+)', r.stdout)[1]
        self.assertEqual((r.returncode, r.stdout), (0, f'# {pid}\nok 1 - a # SKIP\n1..1\n'))
        self.assertIn(f'killed: {pid} (sleep)', r.stderr)

    def test_hangs(self):
        r = self.run_test("import time\nprint('ok 1 - a', flush=True)\ntime.sleep(1000)\n", '1')
        self.assertEqual((r.returncode, r.stdout), (124, 'ok 1 - a\n'))
        self.assertRegex(r.stderr, r'^python3 \S+ no-build: failed, exit status 124:\nok 1 - a\n$')

    def test_failed(self):
        r = self.run_test("print('ok 1 - a\\nnot ok 2 - b\\n# 3 != 4\\n1..2')\n", '100')
        self.assertEqual((r.returncode, r.stdout), (0, 'ok 1 - a\nnot ok 2 - b\n# 3 != 4\n1..2\n'))
        self.assertRegex(r.stderr, r'failed, exit status 0:\nnot ok 2 - b\n# 3 != 4\n1..2\n$')

    def test_noisy(self):
        """What a test writes as an error does not keep prove from starting others: the first of these three waits for the last."""
        with tempfile.TemporaryDirectory() as folder:
            made = folder + '/made'
            for name, body in (('a', "import os, sys, time\nprint('noise', file=sys.stderr, flush=True)\n"
                                f"while not os.path.exists('{made}'):\n    time.sleep(.01)\n"),
                               ('b', ''), ('c', f"open('{made}', 'w').close()\n")):
                with open(f'{folder}/{name}_test.py', 'w', encoding='ascii') as f:
                    f.write(body + "print('ok 1 - a\\n1..1')\n")
            r = subprocess.run(['prove', '-j', '2', '-e', 'sh build-aux/tap.sh', *(f'{folder}/{name}_test.py' for name in 'abc')],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, cwd=os.path.dirname(HERE),
                               env={**os.environ, 'HEARTH_TEST_SECONDS': '100', 'HEARTH_BUILD': folder}, timeout=300)
            self.assertEqual((r.returncode, r.stderr), (0, 'noise\n'), r.stdout)
            with open(folder + '/test-times', encoding='ascii') as f:
                self.assertEqual(sorted(re.match(r'[0-9.]+ python3 \S+/([abc])_test.py ', line)[1] for line in f), ['a', 'b', 'c'])


if __name__ == '__main__':
    sys.exit(tap.run([Tap, Runner]))
