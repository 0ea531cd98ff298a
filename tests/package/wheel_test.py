#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package as it is installed: its version, its library and its programs; and the wheel of `make wheel`, installed and used in a root
that has nothing but Python, with what docs/install.md says. Speaks TAP. usage: tests/package/wheel_test.py BUILD_DIR, from the root.
HEARTH_WHEEL is the folder of the wheel; without it, and without root and debootstrap, what needs them is skipped."""
import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, 'tests'))
import tap  # noqa: E402

tap.need_numpy()

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
PYTHON = os.path.join(ROOT, 'client', 'python')
TOOLS = os.path.join(BUILD, 'package', 'tools', 'bin')
WHEELS = os.environ.get('HEARTH_WHEEL')
MACHINE = os.uname().machine


def read(*path):
    with open(os.path.join(*path), encoding='utf-8') as f:
        return f.read()


def write(path, content, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as f:
        f.write(content)
    os.chmod(path, mode)


VERSION = re.search(r'^#define HEARTH_VERSION +"(.+)"', read(ROOT, 'client', 'hearth.h'), re.M)[1]


class Tree(unittest.TestCase):
    """In a copy of the tree's package, with what a test puts into it."""

    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix='hearth-package-'))
        self.addCleanup(shutil.rmtree, self.folder)
        self.python = self.folder + '/client/python'
        self.package = self.python + '/hearthd'
        shutil.copytree(PYTHON + '/hearthd', self.package, ignore=shutil.ignore_patterns('__pycache__'))
        shutil.copy(PYTHON + '/_hearthd_programs.py', self.python)
        shutil.copy(ROOT + '/client/hearth.h', self.folder + '/client')
        self.env = {k: v for k, v in os.environ.items() if k not in ('HEARTH_LIBRARY', 'HEARTH_SERVER')}
        self.env.update(PYTHONPATH=self.python, PYTHONDONTWRITEBYTECODE='1')

    @contextlib.contextmanager
    def start(self, *words):
        p = subprocess.Popen([sys.executable, *words], env=self.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
        try:
            yield p
        finally:
            p.kill()  # what a failed test left
            p.wait()
            for pipe in (p.stdin, p.stdout, p.stderr):
                pipe.close()

    def run_python(self, *words):
        with self.start(*words) as p:
            out, err = p.communicate(timeout=120)
        return p.returncode, out, err

    def program(self, name, *words):
        return self.run_python('-c', f'import _hearthd_programs; _hearthd_programs.{name}()', *words)

    def test_version(self):
        """It stands in one place."""
        said = 'import hearthd; print(hearthd.__version__)'
        self.assertEqual(self.run_python('-c', said)[1], VERSION + '\n')
        header = read(self.folder, 'client', 'hearth.h').replace(f'"{VERSION}"', '"9.8.7"')
        write(self.folder + '/client/hearth.h', header.encode())
        self.assertEqual(self.run_python('-c', said)[1], '9.8.7\n')
        project = read(PYTHON, 'pyproject.toml')
        self.assertIn('\ndynamic = ["version"]', project)
        self.assertNotRegex(project, r'(?m)^version\b')

    def test_version_of_what_is_built(self):
        """By setuptools, from a header that says another."""
        if not os.path.exists(TOOLS + '/python'):
            self.skipTest('no tools (make deps-package)')
        header = read(self.folder, 'client', 'hearth.h').replace(f'"{VERSION}"', '"9.8.7"')
        write(self.folder + '/client/hearth.h', header.encode())
        for file in ('pyproject.toml', 'setup.py', 'README.md'):
            shutil.copy(os.path.join(PYTHON, file), self.python)
        subprocess.run([TOOLS + '/python', '-m', 'pip', 'wheel', '-q', '--disable-pip-version-check', '--no-build-isolation', '--no-deps', '-w',
                        self.folder + '/out', self.python], check=True, timeout=300)
        wheel, = os.listdir(self.folder + '/out')
        self.assertEqual(wheel, 'hearthd-9.8.7-py3-none-any.whl')
        with zipfile.ZipFile(f'{self.folder}/out/{wheel}') as z:
            self.assertEqual(z.read('hearthd/_built.py').decode(), f"VERSION = '9.8.7'\nBUILD_FOLDER = {self.folder + '/build'!r}\n")
        os.remove(self.folder + '/client/hearth.h')
        run = subprocess.run([TOOLS + '/python', 'setup.py', '--version'], cwd=self.python, capture_output=True, text=True, check=False)
        self.assertEqual((run.returncode, run.stderr.strip().split('\n')[-1]),
                         (1, f'hearthd is built in its tree: {self.folder}/client/hearth.h, which has the version, is not there'))

    def test_becomes_the_program(self):
        """Process, arguments, exit status, and what is ignored: all are the program's."""
        tell = b'#!/bin/sh\necho $$ "$#" "$@"\ngrep SigIgn /proc/$$/status\nexit 7\n'
        for name in ('hearth', 'hearthd'):
            write(f'{self.package}/bin/{name}', tell, 0o755)
            ignored = subprocess.run([f'{self.package}/bin/{name}'], capture_output=True, text=True, check=False).stdout.split('\n')[1]
            ways = [['-c', f'import _hearthd_programs; _hearthd_programs.{name}()']] + [['-m', 'hearthd']] * (name == 'hearthd')
            for way in ways:
                with self.start(*way, '--store', 'a b', '-h') as p:
                    out = p.communicate(timeout=120)[0]
                self.assertEqual((p.returncode, out), (7, f'{p.pid} 3 --store a b -h\n{ignored}\n'))

    def test_signals(self):
        write(self.package + '/bin/hearthd', b'#!/bin/sh\necho ready\nexec cat\n', 0o755)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.start('-m', 'hearthd') as p:
                self.assertEqual(p.stdout.readline(), 'ready\n')
                p.send_signal(number)
                self.assertEqual(p.wait(120), -number)

    def test_server_of_the_build_folder(self):
        """A package without programs takes those of its tree, or an installed one; it is the daemon, and ends as that does."""
        os.symlink(BUILD, self.folder + '/build')
        for path in ('/nowhere', BUILD):
            self.env['PATH'] = path
            url = f'ipc://{self.folder}/sock'
            with self.start('-m', 'hearthd', '--store', self.folder + '/store', '--listen', url, '--device', 'cpu:mem=64MiB,threads=1') as p:
                self.assertEqual(p.stdout.readline(), f'hearthd {VERSION} ready: {url}\n')
                self.assertEqual(os.readlink(f'/proc/{p.pid}/exe'), os.path.realpath(BUILD + '/hearthd'))
                p.send_signal(signal.SIGTERM)
                p.communicate(timeout=120)
            self.assertEqual(p.returncode, 0)
            if path == '/nowhere':
                os.remove(self.folder + '/build')
        self.assertEqual(self.program('hearth', '--version'), (0, f'hearth {VERSION}\n', ''))

    def test_no_program(self):
        """Another installation's script is none: it would look here in its turn."""
        write(self.folder + '/path/hearth', b'#!/bin/sh\necho a script\n', 0o755)
        self.env['PATH'] = self.folder + '/path'
        code, out, err = self.program('hearth')
        self.assertEqual((code, out, err.count('\n')), (127, '', 1), err)
        self.assertRegex(err, '^hearth: this Python package came without the program, and it is not installed: ')

    def test_program_that_cannot_run(self):
        path = self.package + '/bin/hearth'
        for content, mode, why in ((b'\x7fELF' + bytes(60), 0o755, 'Exec format error'), (b'\x7fELF' + bytes(60), 0o644, 'Permission denied'),
                                   (b'#!/nowhere/ld.so\n', 0o755, 'its loader is not here: it is for Linux with glibc')):
            write(path, content, mode)
            self.assertEqual(self.program('hearth'), (126, '', f'hearth: {path} cannot be run: {why}\n'))

    def test_library_inside(self):
        """It comes first, and no other comes after it; $HEARTH_LIBRARY alone is stronger."""
        name = 'import hearthd._library as l; print(l.load()._name)'
        os.symlink(BUILD, self.folder + '/build')
        self.assertEqual(self.run_python('-c', name)[1], self.folder + '/build/libhearth.so\n')
        inside = self.package + '/lib/libhearth.so.0'
        os.mkdir(os.path.dirname(inside))
        shutil.copy(BUILD + '/libhearth.so', inside)
        self.assertEqual(self.run_python('-c', name)[1], inside + '\n')
        with open(inside, 'r+b') as f:
            f.seek(18)  # e_machine, after the 16 bytes of identity and the type
            f.write(b'\x16\x00')  # S/390
        self.refused(inside, 'not for this kind of processor')
        write(inside, b'')
        self.refused(inside, 'file too short')
        self.env['HEARTH_LIBRARY'] = BUILD + '/libhearth.so'
        self.assertEqual(self.run_python('-c', name)[1], BUILD + '/libhearth.so\n')

    def refused(self, inside, why):
        code, _, err = self.run_python('-c', f'import hearthd; hearthd.Client({self.folder + "/store"!r})')
        self.assertEqual((code, err.rstrip().split('\n')[-1]),
                         (1, f'hearthd._errors.LibraryNotFound: the library in this package cannot be loaded: {inside}: {why}'))
        self.assertFalse(os.path.exists(self.folder + '/store'))


def the_wheel():
    if not WHEELS:
        raise unittest.SkipTest('no wheel: `make wheel` makes one, and runs this')
    wheel, = glob.glob(os.path.join(WHEELS, 'hearthd-*.whl'))
    return os.path.abspath(wheel)


class Wheel(unittest.TestCase):
    """What is in the file."""

    @classmethod
    def setUpClass(cls):
        cls.path = the_wheel()
        cls.folder = tempfile.mkdtemp(prefix='hearth-wheel-')
        with zipfile.ZipFile(cls.path) as z:
            cls.modes = {i.filename: i.external_attr >> 16 & 0o777 for i in z.infolist() if not i.is_dir()}
            z.extractall(cls.folder)
        cls.info = f'{cls.folder}/hearthd-{VERSION}.dist-info'

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_name(self):
        """For this version and kind of processor, and for glibc from one on that is no newer than this machine's."""
        name = re.fullmatch(rf'hearthd-{re.escape(VERSION)}-py3-none-manylinux_2_(\d+)_{MACHINE}\.whl', os.path.basename(self.path))
        self.assertTrue(name, self.path)
        self.assertLessEqual(int(name[1]), int(os.confstr('CS_GNU_LIBC_VERSION').split('.')[1]))

    def test_files(self):
        inside = {f for f in self.modes if f.startswith(('hearthd/bin/', 'hearthd/lib/'))}
        plugin = {'hearthd/lib/libhearth_dnnl.so'} if os.path.exists(BUILD + '/libhearth_dnnl.so') else set()
        self.assertEqual(inside, {'hearthd/bin/hearth', 'hearthd/bin/hearthd', 'hearthd/lib/libhearth.so.0'} | plugin)
        self.assertEqual({self.modes[f] for f in inside if '/bin/' in f}, {0o755})
        self.assertIn(f"VERSION = '{VERSION}'\nBUILD_FOLDER = ''\n", read(self.folder, 'hearthd', '_built.py'))

    def test_says_nothing_of_where_it_was_built(self):
        for path in self.modes:
            with open(os.path.join(self.folder, path), 'rb') as f:
                self.assertFalse(ROOT.encode() in f.read(), path)

    def test_metadata(self):
        said = read(self.info, 'METADATA')
        self.assertIn(f'\nVersion: {VERSION}\n', said)
        self.assertIn('\nLicense-Expression: Apache-2.0\n', said)
        for need in ('pyspark', 'pandas', 'pyarrow'):
            self.assertRegex(said, rf'\nRequires-Dist: {need}[^;]*; extra == "spark"\n')
        self.assertEqual(set(re.findall(r'^(hearthd?) = ', read(self.info, 'entry_points.txt'), re.M)), {'hearth', 'hearthd'})

    def test_licenses(self):
        """Of each library that auditwheel put in, and the texts that they name."""
        grafted = sorted(os.listdir(self.folder + '/hearthd.libs'))
        self.assertGreater(len(grafted), 5)
        self.assertTrue(any('libcrypto' in g for g in grafted), grafted)
        names = {re.sub(r'-[0-9a-f]{8}(?=\.)', '', g).split('.so')[0] for g in grafted}
        there = set(os.listdir(self.info + '/licenses'))
        self.assertEqual({f'LICENSE.{n}' for n in names} - there, set())
        self.assertIn('Apache License', read(self.info, 'licenses', 'LICENSE'))
        for file in there:
            text = read(self.info, 'licenses', file)
            self.assertGreater(len(text), 300, file)
            for common in re.findall(r'/usr/share/common-licenses/([\w.+-]*\w)', text):
                if os.path.exists('/usr/share/common-licenses/' + common):
                    self.assertIn('LICENSE.common-' + common, there, file)
        self.assertEqual(set(re.findall(r'^License-File: (.*)$', read(self.info, 'METADATA'), re.M)), there)

    def test_pip_refuses_other_systems(self):
        own = re.search(r'manylinux_2_\d+_\w+', self.path)[0]
        for platform, fits in ((own, True), (f'manylinux_2_17_{MACHINE}', False), (own.replace(MACHINE, 's390x'), False),
                               ('musllinux_1_2_' + MACHINE, False)):
            with tempfile.TemporaryDirectory() as out:
                run = subprocess.run([TOOLS + '/python', '-m', 'pip', 'download', '--disable-pip-version-check', '--no-index', '--no-deps',
                                      '--only-binary=:all:', '--platform', platform, '-d', out, self.path], capture_output=True, text=True, check=False)
                self.assertEqual((run.returncode == 0, len(os.listdir(out))), (fits, int(fits)), platform + run.stderr)
            if not fits:
                self.assertIn('is not a supported wheel on this platform', run.stderr)


ENTER = '''mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" &&
exec chroot "$0" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/root PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels PIP_DISABLE_PIP_VERSION_CHECK=1 \
    sh -euc "cd /clone; $1"'''
SOCKET = 'ipc:///tmp/here/sock'


class Root(unittest.TestCase):
    """Debian's smallest system with Python; in it the wheel, numpy's, and the digits. No network, and no process that outlives a command."""

    @classmethod
    def setUpClass(cls):
        wheel = the_wheel()
        if os.geteuid() != 0:
            raise unittest.SkipTest('a root of its own needs root')
        debootstrap = shutil.which('debootstrap', path=os.environ['PATH'] + ':/usr/sbin')
        if debootstrap is None:
            raise unittest.SkipTest('no debootstrap (make deps-package)')
        # an archive: make looks through its build folder, and takes all that is named *.d for its own
        archive = os.path.join(BUILD, 'package', 'root.tar')
        cls.root = tempfile.mkdtemp(prefix='hearth-root-', dir='/var/tmp')
        cls.addClassCleanup(shutil.rmtree, cls.root)
        if os.path.exists(archive):
            subprocess.run(['tar', 'xf', archive, '-C', cls.root], check=True)
        else:
            cls.bootstrap(debootstrap)
            subprocess.run(['tar', 'cf', archive + '.new', '-C', cls.root, '.'], check=True)
            os.rename(archive + '.new', archive)
        for folder in ('/wheels', '/clone/build/dist', '/clone/client/python/examples', '/tmp/here'):
            os.makedirs(cls.root + folder)
        shutil.copy(wheel, cls.root + '/clone/build/dist')
        shutil.copy(PYTHON + '/examples/digits.py', cls.root + '/clone/client/python/examples')
        shutil.copytree(ROOT + '/tests/data/digits', cls.root + '/clone/tests/data/digits')
        version = cls.inside('python3 -c "import sys; print(*sys.version_info[:2], sep=chr(46))"').strip()
        kept = os.path.join(BUILD, 'package', 'wheels-' + version)
        if not os.path.exists(kept):
            run = subprocess.run([TOOLS + '/python', '-m', 'pip', 'download', '-q', '--disable-pip-version-check', '--only-binary=:all:', '--no-deps',
                                  '--python-version', version, '--platform', f'manylinux_2_28_{MACHINE}', '--platform', f'manylinux2014_{MACHINE}',
                                  '-d', kept + '.new', 'numpy'], capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise unittest.SkipTest('numpy cannot be downloaded: ' + ' '.join(run.stderr.split())[:300])
            os.rename(kept + '.new', kept)
        shutil.copytree(kept, cls.root + '/wheels', dirs_exist_ok=True)
        cls.inside('python3 -m venv /venv && /venv/bin/pip install -q build/dist/hearthd-*.whl')

    @classmethod
    def bootstrap(cls, debootstrap):
        suite = re.search('^VERSION_CODENAME=(.*)$', read('/etc/os-release'), re.M)
        if not suite or 'ID=debian' not in read('/etc/os-release').split('\n'):
            raise unittest.SkipTest('not a Debian system, of which a root could be made')
        # what it mounts goes with the mount namespace
        made = subprocess.run(['unshare', '--mount', debootstrap, '--variant=minbase', '--include=python3,python3-venv', suite[1], cls.root],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            log = cls.root + '/debootstrap/debootstrap.log'
            said = made.stdout + made.stderr + (read(log) if os.path.exists(log) else '')
            if re.search("Couldn't download|Failed getting release|Invalid Release|Couldn't work out|unshare failed", said):
                raise unittest.SkipTest('debootstrap has no mirror, or may not mount: ' + ' '.join(said.split())[-300:])
            raise AssertionError(said)

    @classmethod
    def inside(cls, script, code=0):
        """What a script printed that ran in the root; both, if it was to fail."""
        run = subprocess.run(['unshare', '--mount', '--pid', '--net', '--ipc', '--fork', '--kill-child', 'sh', '-c', ENTER, cls.root, script],
                             capture_output=True, text=True, timeout=600, check=False)
        assert run.returncode == code, (script, run.returncode, run.stdout, run.stderr)
        return run.stdout + (run.stderr if code else '')

    def test_nothing_but_python(self):
        """No compiler, and none of the libraries that hearth is built with, outside of what pip installed."""
        self.inside('for c in cc gcc ld make; do if command -v $c; then exit 1; fi; done')
        needed = re.findall(r'/(lib(?:nng|mbed|event|jansson|lmdb|protobuf|dnnl|png|jpeg|OpenCL)[^/]*)\.so', read(BUILD, 'package', 'libraries'))
        self.assertIn('libnng', needed)
        found = self.inside(r'find / -xdev -name "lib*.so*" -not -path "/venv/*" -not -path "/tmp/*"').split('\n')
        self.assertGreater(len(found), 50)
        self.assertEqual([f for f in found if re.search('/(' + '|'.join(['libhearth', *needed]) + ')', f)], [])

    def test_all_libraries_are_found(self):
        said = self.inside('cd /venv/lib/python3*/site-packages; for f in hearthd/bin/* hearthd/lib/* hearthd.libs/*; do echo "$f:"; ldd $f; done')
        self.assertGreater(said.count('=>'), 50)
        self.assertNotIn('not found', said)

    def test_what_the_page_says(self):
        """Each command of the page's section, as printed."""
        section = read(ROOT, 'docs', 'install.md').split('## The wheel\n')[1].split('\n## ')[0]
        script, printed = ['mkfifo /tmp/said'], []
        for language, block in re.findall(r'^```(\w*)\n(.*?)^```', section, re.M | re.S):
            if language == 'python':
                write(self.root + '/clone/three-lines', block.encode())
                script.append('python -m doctest three-lines')
            for line in block.split('\n')[:-1] if not language else ():
                if line.startswith('$ ') and line.endswith(' &'):
                    script.append(f'{line[2:-2]} >/tmp/said & server=$!; head -n 1 /tmp/said')
                elif line.startswith('$ '):
                    script.append(line[2:])
                else:
                    printed.append(line)
        self.assertEqual((len(script), len(printed)), (8, 3))
        said = self.inside('\n'.join([*script, 'kill $server', 'wait $server']))
        for line in printed:
            self.assertIn(line + '\n', said)

    def test_server(self):
        """It is the program of the package, with oneDNN; the example trains on it, the command lists what came of it; it ends in order."""
        said = self.inside(f'''
            export HEARTH_SERVER={SOCKET} PATH=/venv/bin:$PATH
            mkfifo said
            python -m hearthd --store /tmp/here/store --listen $HEARTH_SERVER --device cpu:mem=256MiB,threads=2 >said 2>errors & server=$!
            head -n 1 said
            python client/python/examples/digits.py $HEARTH_SERVER
            hearth ls
            echo program: $(readlink /proc/$server/exe)
            echo onednn: $(cat /proc/[0-9]*/maps | grep -o '[^ ]*hearthd.libs/libdnnl[^ ]*' | sort -u)
            kill -TERM $server; wait $server
            cat errors''')
        self.assertIn(f'hearthd {VERSION} ready: {SOCKET}\n', said)
        self.assertRegex(said, r'(?m)^accuracy 0\.9')
        self.assertRegex(said, r'(?m)^\s*trained\b')
        self.assertRegex(said, r'(?m)^program: /venv/lib/python3\.\d+/site-packages/hearthd/bin/hearthd$')
        if os.path.exists(BUILD + '/libhearth_dnnl.so'):
            self.assertRegex(said, r'(?m)^onednn: /venv/lib/python3\.\d+/site-packages/hearthd\.libs/libdnnl')
        self.assertNotRegex(said, 'no oneDNN|OpenMP')  # it is opened, and uses hearth's threads

    def test_in_this_process(self):
        said = self.inside('/venv/bin/python client/python/examples/digits.py; /venv/bin/python -c "import hearthd; print(hearthd.__version__)"')
        self.assertRegex(said, r'(?m)^accuracy 0\.9')
        self.assertTrue(said.endswith(f'\n{VERSION}\n'), said)

    def test_exit_status(self):
        said = self.inside('''set +e; PATH=/venv/bin:$PATH
            for words in "hearth nonsense" "hearth --version" "hearthd --nonsense" "hearthd --version"; do
                $words >out 2>&1; a=$?
                /venv/lib/python3*/site-packages/hearthd/bin/$words >direct 2>&1; b=$?
                cmp out direct; echo $a $b
            done
            python -m hearthd --nonsense >direct 2>&1; echo $?''')
        lines = [line.split() for line in said.split('\n')[:-1]]
        self.assertEqual([len(line) for line in lines], [2, 2, 2, 2, 1], said)
        self.assertTrue(all(a == b for a, b in lines[:4]), said)
        self.assertEqual([lines[1][0], lines[3][0], lines[4][0]], ['0', '0', lines[2][0]])
        self.assertNotEqual(lines[0][0], '0')

    def test_library_that_cannot_be_loaded(self):
        """One sentence, also when it is another's library that is missing."""
        said = self.inside('''python3 -m venv /tmp/broken && cp -a /venv/lib /tmp/broken/
            rm /tmp/broken/lib/python3*/site-packages/hearthd.libs/liblmdb*
            /tmp/broken/bin/python -c "import hearthd; hearthd.Client(chr(120))"''', code=1)
        self.assertRegex(said.rstrip().split('\n')[-1], r'^hearthd\._errors\.LibraryNotFound: the library in this package cannot be loaded: liblmdb\S+: '
                         'cannot open')


if __name__ == '__main__':
    os.chdir(ROOT)
    sys.exit(tap.run((Tree, Wheel, Root)))
