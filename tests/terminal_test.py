#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`hearth` on a terminal of 80 columns and 24 lines: what asks, asks there; what is shown fits; and
what cannot be written is said. Speaks TAP.
usage: tests/terminal_test.py BUILD_DIR, from the root."""
import codecs
import fcntl
import json
import math
import os
import pty
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unicodedata
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True
import tap  # noqa: E402
from onnx_small import graph  # noqa: E402

BUILD = os.path.abspath(sys.argv[1])
FOLDER = tempfile.mkdtemp(prefix='hearth-terminal-')
DATA = 'tests/data/digits'
PATIENCE = 120


class Terminal:
    """A program whose three streams are a terminal."""

    def __init__(self, *words, columns=80, lines=24, program=BUILD + '/hearth', env=()):
        self.said, self.code, self.cooked = '', None, False
        self.decode = codecs.getincrementaldecoder('utf-8')('replace').decode
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', lines, columns, 0, 0))
            os.environ['TERM'] = 'xterm'
            os.environ.pop('NO_COLOR', None)
            os.environ.update(env)
            os.execv(program, [os.path.basename(program), *words])

    def read(self, end):
        """Reads on; False: there is no more."""
        while time.monotonic() < end:
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    data = b''
                self.said += self.decode(data)
                return bool(data)
        raise AssertionError(f'nothing more came: {self.said}')

    def until(self, text):
        end = time.monotonic() + PATIENCE
        while text not in self.said:
            if not self.read(end):
                raise AssertionError(f'{text} never came: {self.said}')

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        """The exit code; all that was said is in `said`."""
        end = time.monotonic() + PATIENCE
        while self.read(end):
            pass
        cooked = termios.ICANON | termios.ECHO
        self.cooked = termios.tcgetattr(self.fd)[3] & cooked == cooked
        os.close(self.fd)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


class Grid:
    """What a terminal shows of what was written to it: as much of ECMA-48 as `hearth top` uses. Anything else fails, and so do a line that
    wraps, a screen that scrolls, and what clears a last column that was just written."""
    TOKEN = re.compile(r'\x1b\[(\??)([0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n])')

    def __init__(self, lines, columns):
        self.lines, self.columns = lines, columns
        self.cell = [[(' ', '')] * columns for _ in range(lines)]
        self.line = self.column = 0
        self.style = ''

    def feed(self, text):
        at = 0
        while at < len(text):
            m = self.TOKEN.match(text, at)
            assert m, repr(text[at:at + 20])
            at = m.end()
            private, numbers, command, line, char = m.groups()
            if char:
                self.put(char)
            elif line:
                self.column = 0 if line == '\r' else self.column
                self.line += line == '\n'
                assert self.line < self.lines, 'the screen scrolls'
            elif private:
                assert command in 'hl' and numbers in ('1049', '25', '2026'), m.group()
            elif command == 'm':
                self.style = numbers if numbers != '0' else ''
            else:
                self.command(command + numbers)

    def put(self, char):
        width = 0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in 'WF')
        assert self.column + width <= self.columns, f'line {self.line} wraps: {self.text()[self.line]}'
        if width == 0:
            self.cell[self.line][self.column - 1] = (self.cell[self.line][self.column - 1][0] + char, self.style)
        for i in range(width):
            self.cell[self.line][self.column + i] = (char if i == 0 else '', self.style)
        self.column += width

    def command(self, command):
        blank = (' ', '')
        if command == 'H':
            self.line = self.column = 0
        elif command == 'J2':
            self.cell = [[blank] * self.columns for _ in range(self.lines)]
        else:
            assert command in 'JK' and self.column < self.columns, command
            self.cell[self.line][self.column:] = [blank] * (self.columns - self.column)
            for i in range(self.line + 1, self.lines if command == 'J' else 0):
                self.cell[i] = [blank] * self.columns

    def text(self):
        return [''.join(char for char, _ in line).rstrip() for line in self.cell]

    def styled(self, style):
        """The pieces of text that have a style."""
        runs, before = [], ''
        for line in self.cell:
            for char, now in line + [(' ', '')]:
                if now == style and before == style:
                    runs[-1] += char
                elif now == style:
                    runs.append(char)
                before = now
        return runs


class Top(Terminal):
    """`hearth top`: the last whole screen that it wrote."""
    BEGIN, END, LEFT = '\x1b[?1049h', '\x1b[?2026l', '\x1b[?25h\x1b[?1049l'

    def __init__(self, *words, lines=24, columns=80, **more):
        super().__init__(*words, lines=lines, columns=columns, **more)
        self.size, self.since = (lines, columns), 0

    def shown(self):
        begin, end = self.said.find(self.BEGIN, self.since), self.said.rfind(self.END)
        if begin < 0 or end < begin:
            return None
        grid = Grid(*self.size)
        grid.feed(self.said[begin:end + len(self.END)])
        return grid

    def until_shown(self, wanted):
        """Reads on until the screen has a text, or is what a function wants."""
        end = time.monotonic() + PATIENCE
        while True:
            grid = self.shown()
            if grid and (wanted(grid) if callable(wanted) else any(wanted in line for line in grid.text())):
                return grid
            if not self.read(end):
                raise AssertionError(f'{wanted} was never shown: {self.said}')

    def resize(self, lines, columns):
        """Each screen of the new size comes after the terminal has been taken anew."""
        self.since, self.size = len(self.said), (lines, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack('HHHH', lines, columns, 0, 0))


def hearth(store, *words, code=0):
    r = subprocess.run([BUILD + '/hearth', '--store', store, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, check=False)
    assert r.returncode == code, r.stdout
    return r.stdout


class Remove(unittest.TestCase):
    def setUp(self):
        self.store = tempfile.mkdtemp(dir=FOLDER) + '/store'
        for model in ('digits', 'digits-parity'):
            hearth(self.store, 'import', 'm', f'{DATA}/{model}.onnx')

    def versions(self):
        return [m['version'] for m in json.loads(hearth(self.store, '--json', 'ls'))['models']]

    def test_asks(self):
        for answer in ('n\n', '\n', '\x04', 'no, yes\n'):
            t = Terminal('--store', self.store, 'rm', 'm')
            t.until('[y/N]')
            self.assertRegex(t.said, r'remove m:1, m:2 \(2 versions, [0-9.]+ (K|M)?i?B not shared\)\?')
            t.type(answer)
            self.assertEqual(t.end(), 1)
            self.assertIn('nothing was removed', t.said)
            self.assertEqual(self.versions(), [1, 2])
        t = Terminal('--store', self.store, 'rm', 'm:1')
        t.until('remove m:1 (1 version, ')
        t.type('y\n')
        self.assertEqual(t.end(), 0, t.said)
        self.assertEqual(self.versions(), [2])

    def test_yes(self):
        t = Terminal('--store', self.store, 'rm', 'm:2', '--yes')
        self.assertEqual(t.end(), 0, t.said)
        self.assertNotIn('[y/N]', t.said)
        self.assertEqual(self.versions(), [1])

    def test_nobody_to_ask(self):
        self.assertIn('m:1, m:2 (2 versions, ', hearth(self.store, 'rm', 'm'))
        self.assertEqual(self.versions(), [])

    def test_changed_meanwhile(self):
        daemon = tap.Daemon(BUILD)
        url = f'ipc://{daemon.folder}/sock'
        try:
            def ask(*words):
                return subprocess.run([BUILD + '/hearth', '--server', url, *words], check=True, stdout=subprocess.PIPE, text=True).stdout
            ask('import', 'm', f'{DATA}/digits.onnx')
            t = Terminal('--server', url, 'rm', 'm')
            t.until('[y/N]')
            ask('import', 'm', f'{DATA}/digits-parity.onnx')
            t.type('y\n')
            self.assertEqual(t.end(), 1, t.said)
            self.assertIn("the versions of 'm' have changed meanwhile; nothing was removed", t.said)
            self.assertEqual(len(json.loads(ask('--json', 'ls'))['models']), 2)
        finally:
            daemon.stop()


class Screen(unittest.TestCase):
    """80 columns and 24 lines, with more models than lines."""

    @classmethod
    def setUpClass(cls):
        cls.daemon = tap.Daemon(BUILD)
        cls.url = f'ipc://{cls.daemon.folder}/sock'
        for i in range(30):
            cls.ask('import', f'model-with-a-name-{i}', f'{DATA}/digits.onnx', '--no-wait')
            cls.ask('load', f'model-with-a-name-{i}')
        cls.ask('import', 'new', f'{DATA}/untrained.onnx')
        train = ('train', 'new', '--data', f'{DATA}/train.safetensors', '--loss', 'softmax-xent', '--batch', '64', '--epochs', '100000', '--hold-out', '0.1')
        cls.train = subprocess.Popen([BUILD + '/hearth', '--server', cls.url, *train, '--save-as', 'a-job'], stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE
        while 'running' not in cls.ask('jobs'):
            assert time.monotonic() < end
            time.sleep(0.05)
        cls.ask(*train, '--save-as', 'a-second', '--after', 'a-job', '--detach')

    @classmethod
    def tearDownClass(cls):
        cls.ask('cancel', 'a-second')
        cls.ask('cancel', 'a-job')
        cls.train.wait()
        cls.daemon.stop()

    @classmethod
    def ask(cls, *words):
        return subprocess.run([BUILD + '/hearth', '--server', cls.url, *words], check=True, stdout=subprocess.PIPE, text=True).stdout

    def top(self, *words, **more):
        return Top('--server', self.url, 'top', *words, **more)

    @staticmethod
    def models(grid):
        return [m.group(1) for m in (re.match(r'(model-with-a-name-\d+|new) +\d+ ', line) for line in grid.text()) if m]

    def test_top(self):
        self.ask('infer', 'model-with-a-name-27', '--input', f'{DATA}/images.npy')
        t = self.top('--count', '1')
        self.assertEqual(t.end(), 0)
        lines = t.shown().text()
        at = {word: next(i for i, line in enumerate(lines) if word in line) for word in ('a-job', 'name-27', 'model-with')}
        self.assertLess(at['a-job'], at['name-27'])  # jobs first, then models, the busy one in front
        self.assertEqual(at['model-with'], at['name-27'])
        self.assertIn('running', lines[at['a-job']])
        self.assertTrue(any(re.match(r'and \d+ more', line) for line in lines), lines)
        waits = next(i for i, line in enumerate(lines) if line.startswith('waiting_job'))
        self.assertRegex(lines[waits + 1], r"^a-second .*job 'a-job'")  # the reason
        tenant = next(line for line in lines if line.startswith(f'uid:{os.getuid()}'))
        self.assertRegex(tenant, r'^uid:\d+ +1 +[0-9.]+ % +(time|memory|threads) +.*100.0 % +1 +1 ')
        self.assertTrue(lines[-1].startswith('q quit'), lines[-1])

    def test_top_keys(self):
        rows = json.loads(self.ask('--json', 'top', '--count', '1'))['models']
        away = {m['name']: m['private_bytes'] + m['shared_bytes'] + m['arena_bytes'] == 0 for m in rows}
        order = sorted(away, key=lambda name: (away[name], name))
        m = len(order)
        self.assertGreaterEqual(m, 30)
        t = self.top('--interval', '0.5')
        grid = t.until_shown('per_second v')
        self.assertIn('per_second v', grid.styled('7'))
        t.type('n')
        grid = t.until_shown('name ^')
        top = next(i for i, line in enumerate(grid.text()) if line.startswith('name ^'))
        n = len(self.models(grid))
        self.assertGreater(n, 4)
        self.assertEqual(self.models(grid), order[:n])
        t.type('R')
        grid = t.until_shown('name v')
        self.assertEqual(self.models(grid), sorted(sorted(away, reverse=True), key=away.get)[:n])
        t.type('n')
        t.until_shown('name ^')
        for keys, first in (('\x1b[B', 1), ('\x1bOB', 2), ('\x1b[A', 1), ('\x1b[6~', 1 + n), ('\x1b[5~\x1b[A', 0), ('\x1b[F', m - n), ('\x1b[H', 0)):
            t.type(keys)
            grid = t.until_shown(f'rows {first + 1} to {first + n} of {m}' if first else f'and {m - n} more')
            self.assertEqual(self.models(grid), order[first:first + n])
            self.assertTrue(grid.text()[top].startswith('name ^'))
        t.type('?')
        t.until_shown('Columns that sort models')
        t.type('x')
        t.until_shown('name ^')
        t.type('?')
        t.until_shown('Columns that sort models')
        t.type('\x1b')  # no key comes after it
        t.until_shown('name ^')
        t.type('\t')
        grid = t.until_shown(lambda g: 'waiting_job' in g.styled('7'))
        self.assertIn('n waiting_job', grid.text()[-1])
        t.type('q')
        self.assertEqual(t.end(), 0)
        self.assertTrue(t.said.rstrip().endswith(t.LEFT) and t.cooked)

    def test_top_sizes(self):
        t = self.top('--interval', '0.5', lines=60, columns=200)
        for lines, columns in ((60, 200), (24, 80), (60, 200), (10, 40)):
            if t.size != (lines, columns):
                t.resize(lines, columns)
            grid = t.until_shown(lambda g: g.text()[-1].startswith('q quit'))
            text = grid.text()
            self.assertEqual(len(next(line for line in text if '[' in line)), columns)  # the bar
            self.assertEqual('requests' in ' '.join(text[:-1]), columns == 200)
            if columns == 200:
                self.assertLessEqual({f'model-with-a-name-{i}' for i in range(30)}, set(self.models(grid)))
        t.type('q')
        self.assertEqual((t.end(), t.cooked), (0, True))

    def test_top_colors(self):
        for env, colors in (({}, True), ({'TERM': 'screen-256color', 'NO_COLOR': ''}, True), ({'NO_COLOR': '1'}, False), ({'TERM': 'vt100'}, False)):
            with self.subTest(env=env):
                t = self.top('--count', '1', env=env)
                self.assertEqual(t.end(), 0)
                self.assertIn('running', ' '.join(t.shown().text()))
                self.assertEqual('running' in t.shown().styled('32'), colors)
                self.assertEqual(re.search(r'\x1b\[(1;)?3\dm', t.said) is not None, colors)
                self.assertIn('per_second v', t.shown().styled('7'))
        t = self.top(env={'TERM': 'dumb'})  # no cursor that moves: as without a terminal
        self.assertEqual(t.end(), 0)
        self.assertNotIn('\x1b', t.said)
        self.assertEqual(t.said.count('hearth top'), 1)

    def test_top_without_terminal(self):
        self.assertEqual(self.ask('top').count('hearth top'), 1)
        self.assertEqual(self.ask('top', '--interval', '0.1', '--count', '2').count('hearth top'), 2)
        self.assertEqual(len(self.ask('--json', 'top').splitlines()), 1)

    def test_top_server_gone(self):
        daemon = tap.Daemon(BUILD)
        t = Top('--server', f'ipc://{daemon.folder}/sock', 'top', '--interval', '0.2')
        t.until_shown('no model is loaded')
        daemon.stop()
        self.assertTrue(any(piece.startswith('as it was: ') for piece in t.until_shown('as it was: ').styled('1;31')))
        t.type('q')
        self.assertEqual(t.end(), 0)
        self.assertTrue(t.said.rstrip().endswith(t.LEFT) and t.cooked)

    def test_losses(self):
        path = FOLDER + '/losses.svg'
        end = time.monotonic() + PATIENCE
        while not json.loads(self.ask('--json', 'job', 'a-job', '--svg', path)).get('held_out'):
            self.assertLess(time.monotonic(), end)
        texts = tap.picture(self, path)
        self.assertLessEqual({'step', 'loss', 'training', 'Losses of a-job'}, set(texts))

    def test_progress(self):
        t = Terminal('--server', self.url, 'job', 'a-job', '--follow')
        t.until('loss ')
        end = time.monotonic() + 2
        while time.monotonic() < end:
            t.read(end + PATIENCE)
        os.kill(t.pid, 15)
        t.end()
        lines = [line for line in re.split(r'[\r\n]', t.said.replace('\x1b[K', '')) if line]
        self.assertGreater(len(lines), 1)
        self.assertTrue(any('%' in line and 'left' in line for line in lines), lines[-1])
        self.assertLess(max(len(line) for line in lines), 80)


class Lost(unittest.TestCase):
    """Streams and files that take no more."""
    PROBLEM = ('curve', '--problem', 'tests/data/oracle/residual-norm-60.json', '--plan-ms', '5')

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=FOLDER)
        self.store = self.folder + '/store'

    def run_to(self, stream, *words, **more):
        return subprocess.run([BUILD + '/hearth', *words], stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.PIPE, text=True,
                              check=False, timeout=PATIENCE, **more)

    def test_stream(self):
        """What is still in a buffer at the end counts as well; the reason is said once."""
        hearth(self.store, 'import', 'm', f'{DATA}/digits.onnx')
        infer = ('infer', 'm', '--input', f'{DATA}/images.npy')
        with open('/dev/full', 'wb', buffering=0) as full:
            for words in (infer, ('--json', *infer), ('ls',), ('--json', 'ls'), ('help',), ('--version',), self.PROBLEM):
                r = self.run_to(full, '--store', self.store, *words)
                self.assertEqual((r.returncode, r.stderr), (1, 'hearth: cannot write the output: No space left on device\n'), words)
            r = self.run_to(full, 'no-command')
            self.assertEqual(r.returncode, 2)
            self.assertNotIn('cannot write', r.stderr)
        self.assertEqual(self.run_to(subprocess.DEVNULL, '--store', self.store, *infer).returncode, 0)

    def test_reader(self):
        """One that reads no more, as `head`, is told nothing."""
        for words, code in ((('help',), 0), (self.PROBLEM, 1)):
            reads, writes = os.pipe()
            os.close(reads)
            r = self.run_to(writes, *words)
            os.close(writes)
            self.assertEqual((r.returncode, r.stderr), (code, ''), words)

    def test_file(self):
        """A file that has no room for the new content keeps what it had."""
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        for option in ('--csv', '--svg'):
            path = self.folder + '/file'
            for before in ('what it had', None):
                if before is None:
                    os.unlink(path)
                else:
                    with open(path, 'w', encoding='ascii') as f:
                        f.write(before)
                r = self.run_to(subprocess.DEVNULL, *self.PROBLEM, option, path, preexec_fn=limit)
                self.assertEqual((r.returncode, r.stderr), (1, f'hearth: cannot write {path}: File too large\n'))
                self.assertEqual(os.listdir(self.folder), ['file'] if before else [])
                if before:
                    with open(path, encoding='ascii') as f:
                        self.assertEqual(f.read(), before)
            self.assertEqual(self.run_to(subprocess.DEVNULL, *self.PROBLEM, option, path).returncode, 0)
            self.assertGreater(os.stat(path).st_size, 100)
            os.unlink(path)
            r = self.run_to(subprocess.DEVNULL, *self.PROBLEM, option, '/dev/full')
            self.assertEqual((r.returncode, r.stderr), (1, 'hearth: cannot write /dev/full: No space left on device\n'))
            r = self.run_to(subprocess.DEVNULL, *self.PROBLEM, option, self.folder + '/no/file')
            self.assertEqual((r.returncode, r.stderr), (1, f'hearth: cannot write {self.folder}/no/file: No such file or directory\n'))
        r = self.run_to(subprocess.PIPE, *self.PROBLEM, '--csv', '/dev/stdout')  # which is nothing to replace
        self.assertEqual(r.returncode, 0)
        self.assertTrue(r.stdout.startswith('share,'), r.stdout)

    def test_curve(self):
        """What the picture says: round ticks, units, and which line is which."""
        path = self.folder + '/curve.svg'
        self.assertEqual(self.run_to(subprocess.DEVNULL, *self.PROBLEM, '--svg', path).returncode, 0)
        texts = tap.picture(self, path)
        self.assertLessEqual({'planned', 'lower bound', 'step time / fastest (predicted)'}, set(texts))
        self.assertEqual(len([text for text in texts if re.fullmatch(r'device memory \((bytes|[KMGT]iB)\)', text)]), 1)
        numbers = [float(text) for text in texts if re.fullmatch(r'[0-9.]+', text)]
        begin = next(i for i in range(1, len(numbers)) if numbers[i] < numbers[i - 1])
        times, memory = numbers[:begin], numbers[begin:]
        self.assertTrue(times[0] <= 1 < times[-1])
        step = memory[1]
        self.assertEqual(memory, [i * step for i in range(len(memory))])
        self.assertEqual(math.log2(step), round(math.log2(step)))
        self.assertIn(float(f'{times[1] - times[0]:.0e}'.split('e')[0]), (1, 2, 5))

    def test_same_file(self):
        """Outputs whose names make the same file name: neither is written."""
        model, dot, out = self.folder + '/m.onnx', self.folder + '/x.npy', self.folder + '/out'
        head = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(117) + '\n'
        with open(dot, 'wb') as f:
            f.write(b'\x93NUMPY\x01\x00' + struct.pack('<H', len(head)) + head.encode() + struct.pack('<f', 1))
        for names in (['a/b', 'c', 'a_b'], ['a/b', 'c', 'a/b_']):
            with open(model, 'wb') as f:
                f.write(graph([('Relu', ['x'], [y], {}) for y in names], [('x', 'FP32', ('n',))], [(y, 'FP32', ('n',)) for y in names]))
            hearth(self.store, 'import', 'm', model)
            words = ('--store', self.store, 'infer', 'm', '--input', dot)
            r = self.run_to(subprocess.DEVNULL, *words, '--output-dir', out)
            if 'a_b' in names:
                self.assertEqual((r.returncode, r.stderr), (1, f"hearth: outputs 'a/b' and 'a_b' would both be written to {out}/a_b.npy\n"))
                self.assertEqual(os.listdir(out), [])
            else:
                self.assertEqual((r.returncode, r.stderr), (0, ''))
                self.assertEqual(sorted(os.listdir(out)), ['a_b.npy', 'a_b_.npy', 'c.npy'])
            self.assertEqual(self.run_to(subprocess.DEVNULL, *words).returncode, 0)


@unittest.skipIf(shutil.which('zsh') is None, 'zsh is not installed')
class Zsh(unittest.TestCase):
    def test_completes(self):
        store = tempfile.mkdtemp(dir=FOLDER) + '/store'
        for name in ('digits', 'parity'):
            hearth(store, 'import', name, f'{DATA}/digits.onnx')
        subprocess.run(['make', '-s', f'B={os.path.relpath(BUILD)}', 'docs'], check=True)
        folder = BUILD + '/completions/zsh'
        t = Terminal('-f', '-i', program=shutil.which('zsh'), columns=200)
        t.type(f"PS1='> '; unsetopt beep; path=({BUILD} $path) fpath=({folder} $fpath); autoload -U compinit; compinit -u -D; echo re''ady\n")
        t.until('ready\r\n')
        while '?2004h' not in t.said.split('ready\r\n')[-1]:  # the prompt
            t.read(time.monotonic() + PATIENCE)
        for line, wanted in ((f'hearth --store {store} show di', 'show digits'), (f'hearth --store {store} unload p', 'unload parity'),
                             ('hearth train x --optimizer mom', '--optimizer momentum'), ('hearth train x --loss so', '--loss softmax-xent'),
                             ('hearth precis', 'hearth precision'), ('hearth help conv', 'help convsel')):
            t.type(line + '\t')
            t.until(wanted)
            t.type('\x15')  # the line is dropped
        t.type('exit\n')
        t.end()


if __name__ == '__main__':
    rc = tap.run([Remove, Screen, Lost, Zsh])
    shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(rc)
