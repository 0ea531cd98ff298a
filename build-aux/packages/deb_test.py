#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that make deb has put into BUILD_DIR/dist: what is in them, and each of them installed and used in a clean Debian. Speaks
TAP. usage: build-aux/packages/deb_test.py BUILD_DIR, from the root, as root."""
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(ROOT, 'tests')]
import room  # noqa: E402
import tap  # noqa: E402

DIST = BUILD + '/dist'
DEBS = room.debs(DIST)
NO_CUDA = None if 'hearth-cuda' in DEBS else 'hearth-cuda was not built: no nvcc, or no headers of CUDA 13 and cuDNN 9'
NO_ROOM = room.missing('mmdebstrap')
BASE = None


def read(name):
    with open(os.path.join(ROOT, name), encoding='utf-8') as f:
        return f.read()


def field(package, name):
    return subprocess.run(['dpkg-deb', '-f', DEBS[package], name], capture_output=True, text=True, check=True).stdout.strip()


def files(package):
    """The paths of a package's files, without its folders."""
    said = subprocess.run(['dpkg-deb', '-c', DEBS[package]], capture_output=True, text=True, check=True).stdout
    return [line.split(' ./')[1].split(' -> ')[0] for line in said.split('\n') if line and not line.startswith('d')]


class Contents(unittest.TestCase):
    """The files of build/dist."""

    def test_packages(self):
        named = set(re.findall(r'^Package: (.*)$', read('debian/control'), re.M))
        self.assertEqual(set(DEBS), named - ({'hearth-cuda'} if NO_CUDA else set()))
        for package in DEBS:
            self.assertEqual((field(package, 'Source') or 'hearth', field(package, 'Version')), ('hearth', room.version()), package)

    def test_library(self):
        """The name of the package is that of the library in it, so that programs of a later one do not meet it."""
        name, = [os.path.basename(path) for path in files('libhearth0') if '.so' in path]
        self.assertEqual(name, 'libhearth.so.0')
        self.assertEqual(field('libhearth-dev', 'Depends'), f'libhearth0 (= {room.version()})')

    def test_no_folder_of_the_build(self):
        folder = tempfile.mkdtemp(prefix='hearth-deb-')
        self.addCleanup(shutil.rmtree, folder)
        for package, path in DEBS.items():
            subprocess.run(['dpkg-deb', '-x', path, folder], check=True)
            for name in files(package):
                if not os.path.islink(f'{folder}/{name}'):
                    with open(f'{folder}/{name}', 'rb') as f:
                        self.assertNotIn(os.path.join(BUILD, 'deb').encode(), f.read(), name)

    @unittest.skipIf(NO_CUDA, NO_CUDA)
    def test_cuda(self):
        self.assertTrue(any(path.endswith('/hearth/libhearth_cuda.so') for path in files('hearth-cuda')))


@unittest.skipIf(NO_ROOM, NO_ROOM)
class Clean(unittest.TestCase):
    """A test in a room of its own, to which the packages are brought."""
    needs = ()  # of Debian

    @classmethod
    def setUpClass(cls):
        global BASE
        if BASE is None:
            BASE = room.Base()
        if BASE.why:
            return
        cls.room = BASE.room()
        cls.addClassCleanup(cls.room.leave)
        os.mkdir(cls.room.path('/dist'))
        for path in DEBS.values():
            shutil.copy(path, cls.room.path('/dist'))
        cls.room.sh('echo \'APT::Install-Recommends "false"; Dpkg::Use-Pty "false";\' >/etc/apt/apt.conf.d/90room')
        cls.install(*cls.needs)

    def setUp(self):
        if BASE.why:
            self.skipTest(BASE.why)

    @classmethod
    def install(cls, *names):
        """Packages by their names: ours from /dist."""
        if names:
            cls.room.run('apt-get', 'install', '-y', '-q', *(f'/dist/{os.path.basename(DEBS[n])}' if n in DEBS else n for n in names))

    def installed(self):
        """Our packages, {name: state}; "deinstall": removed, but not purged."""
        said = self.room.sh("dpkg-query -W -f '${binary:Package} ${Status}\\n' '*hearth*' 2>/dev/null || true")
        return {line.split(':')[0].split()[0]: line.split()[-3] for line in said.split('\n') if line and not line.endswith('unknown ok not-installed')}


AS_HEARTH = ('setpriv', '--reuid', 'hearth', '--regid', 'hearth', '--init-groups')


class Server(Clean):
    """The service, by the line of docs/install-system.md, to its purge."""

    def serve(self, *flags):
        """hearthd as its unit starts it: systemd does not run here."""
        self.room.sh('install -d -o hearth -g hearth -m 755 /var/lib/hearth /run/hearth')
        return self.room.start('sh', '-c', 'umask 0007; exec "$@"', 'sh', *AS_HEARTH, '/usr/sbin/hearthd', '--config', '/etc/hearth/hearthd.conf', *flags)

    def answer(self):
        self.assertIn('accuracy 98.61 %: 355 of 360', self.room.sh('hearth infer digits --input /digits/images.npy --labels /digits/labels.npy'))

    def test_1_install(self):
        line, = re.findall(r'^\$ sudo apt install (.*)$', read('docs/install-system.md'), re.M)
        self.room.run('bash', '-ec', 'apt-get install -y -q ' + line.replace('./build/dist/', '/dist/'))
        self.assertEqual(self.installed(), dict.fromkeys(('hearth', 'hearth-server', 'hearth-onednn'), 'install'))
        self.assertRegex(self.room.sh('getent passwd hearth'), r'^hearth:x:\d+:\d+:hearth model server:/var/lib/hearth:')
        self.assertIn('/etc/hearth/hearthd.conf', self.room.sh("dpkg-query -W -f '${Conffiles}' hearth-server"))
        self.assertEqual(self.room.sh('stat -c "%U %a" /etc/hearth/hearthd.conf'), 'root 644\n')
        self.assertTrue(self.room.exists('/etc/systemd/system/multi-user.target.wants/hearthd.service'))
        said = self.room.sh('systemd-analyze verify --man=no /lib/systemd/system/hearthd.service 2>&1 || true')
        self.assertNotIn('hearthd', said)
        for page in ('man1/hearth.1.gz', 'man8/hearthd.8.gz'):
            self.assertTrue(self.room.exists('/usr/share/man/' + page), page)
        self.assertIn('/etc/hearth/hearthd.conf', self.room.sh('zcat /usr/share/man/man8/hearthd.8.gz'))
        for name in ('hearth', 'hearthd'):
            self.assertIn(f'_{name}', self.room.sh(f'bash -c ". /usr/share/bash-completion/completions/{name}; complete -p"'))

    def test_2_serve(self):
        self.room.sh('useradd -m alice; useradd -m -G hearth bob')
        port = tap.free_port()
        server = self.serve('--http', f'127.0.0.1:{port}')
        with open(f'/proc/{server.pid}/status', encoding='ascii') as f:
            uids = re.search(r'^Uid:\s+(.*)$', f.read(), re.M)[1].split()
        self.assertEqual(set(uids), {self.room.sh('id -u hearth').strip()})
        self.assertIn('digits:1', self.room.sh('hearth import digits /digits/digits.onnx'))
        self.answer()
        self.assertNotIn('no-onednn', self.room.log())
        c = http.client.HTTPConnection('127.0.0.1', port, timeout=room.PATIENCE)
        self.addCleanup(c.close)
        c.request('GET', '/v2/models/digits/ready')
        self.assertEqual(c.getresponse().status, 200)
        # who is in the group may do everything, others may not connect
        as_user = 'setpriv --reuid {0} --regid {0} --init-groups hearth '
        self.assertIn('you may not open /run/hearth/hearth.sock', self.room.sh(as_user.format('alice') + 'ls 2>&1', code=1))
        self.assertIn('digits', self.room.sh(as_user.format('bob') + 'ls'))
        self.assertIn('parity:1', self.room.sh(as_user.format('bob') + 'import parity /digits/digits-parity.onnx'))
        self.assertEqual(self.room.stop(server), 0, self.room.log())

    def test_3_remove(self):
        """Another installation finds the models and the configuration."""
        self.room.sh('echo "# changed" >>/etc/hearth/hearthd.conf; apt-get remove -y -q hearth-server')
        self.assertEqual(self.installed()['hearth-server'], 'deinstall')
        self.assertFalse(self.room.exists('/usr/sbin/hearthd'))
        self.assertFalse(self.room.exists('/lib/systemd/system/hearthd.service'))
        self.assertIn('# changed', self.room.sh('cat /etc/hearth/hearthd.conf'))
        self.install('hearth-server')
        self.assertIn('# changed', self.room.sh('cat /etc/hearth/hearthd.conf'))
        server = self.serve()
        self.answer()
        self.assertEqual(self.room.stop(server), 0, self.room.log())

    def test_4_purge(self):
        said = self.room.sh('apt-get purge -y -q hearth-server 2>&1')
        self.assertIn('models and training jobs are left in /var/lib/hearth', said)
        self.assertTrue(self.room.exists('/var/lib/hearth/store'))
        self.install('hearth-server')
        self.room.sh('rm -r /var/lib/hearth/* /run/hearth')
        said = self.room.sh('apt-get purge -y -q hearth-server hearth hearth-onednn 2>&1')
        self.assertNotIn('are left', said)
        self.assertEqual(self.installed(), {})
        self.assertEqual(self.room.sh("find / -xdev -name '*hearth*' -not -path '/dist/*' -not -path '/proc/*' -not -path '/dev/*' -not -path '/home/*'"), '')


class Development(Clean):
    """A program is made with the library, through pkg-config."""
    needs = ('libhearth-dev', 'libhearth0', 'hearth-onednn', 'gcc', 'libc6-dev', 'pkg-config')

    def test_program(self):
        self.assertEqual(self.room.sh('pkg-config --modversion hearth').strip(), room.version())
        self.assertNotIn('rpath', self.room.sh('pkg-config --libs hearth'))  # the loader looks there
        self.room.sh('cp /usr/share/doc/libhearth-dev/examples/embed.c /tmp/ && cd /tmp && gcc -o embed embed.c $(pkg-config --cflags --libs hearth)')
        said = self.room.sh('cd /tmp && setpriv --reuid nobody --regid nogroup --clear-groups ./embed /tmp/store /digits/digits.onnx')
        self.assertIn('this is a 2', said)

    def test_purge(self):
        self.room.sh('apt-get purge -y -q libhearth-dev libhearth0 hearth-onednn')
        self.assertEqual(self.room.sh("find /usr /etc /var/lib -name '*hearth*'"), '')


PROGRAM = '''
import importlib.metadata
import numpy
import hearthd
assert importlib.metadata.version('hearthd') == hearthd.__version__, importlib.metadata.version('hearthd')
h = hearthd.Client('/tmp/store', device='cpu:mem=256MiB,threads=1')
h.import_model('digits', '/digits/digits.onnx')
y = h.infer('digits', numpy.load('/digits/images.npy'))['logits'].argmax(1)
print('right:', int((y == numpy.load('/digits/labels.npy')).sum()), 'version', hearthd.__version__)
h.close()
'''


class Python(Clean):
    """The package of Python, with the library of the system."""
    needs = ('python3-hearthd', 'libhearth0')

    def test_infer(self):
        with open(self.room.path('/tmp/program.py'), 'w', encoding='utf-8') as f:
            f.write(PROGRAM)
        self.assertIn(f'right: 355 version {room.version()}', self.room.run('/usr/bin/python3', '/tmp/program.py'))

    def test_programs(self):
        """The server by Python, once it is installed, and what Spark asks for the devices."""
        self.assertIn('hearthd: this Python package came without the program, and it is not installed', self.room.sh('python3 -m hearthd 2>&1', code=127))
        self.install('hearth-server')
        self.assertEqual(self.room.sh('python3 -m hearthd --version'), f'hearthd {room.version()}\n')
        server = self.room.start('hearthd', '--store', '/tmp/served', '--listen', 'ipc:///tmp/served.sock', '--device', 'cpu:mem=256MiB,threads=1')
        self.assertEqual(self.room.sh('HEARTH_SERVER=ipc:///tmp/served.sock hearthd-spark-resource'), '{"name": "hearth", "addresses": ["cpu:0"]}\n')
        self.assertEqual(self.room.stop(server), 0)
        self.assertTrue(self.room.exists('/usr/share/man/man1/hearthd-spark-resource.1.gz'))

    def test_purge(self):
        self.room.sh('apt-get purge -y -q python3-hearthd libhearth0 hearth-server')
        self.assertEqual(self.room.sh("find /usr /etc /var/lib -name '*hearth*'"), '')


RANK = '''#!/bin/sh
export HEARTH_SERVER=ipc:///tmp/$OMPI_COMM_WORLD_RANK.sock
exec hearth train untrained --data /digits/train.safetensors --loss softmax-xent --batch 64 --epochs 1 --group mpi --save-as together
'''


class Mpi(Clean):
    """Two ranks of mpirun, with a server each."""
    needs = ('hearth', 'hearth-server', 'hearth-mpi', 'openmpi-bin')

    def test_train(self):
        with open(self.room.path('/tmp/rank.sh'), 'w', encoding='ascii') as f:
            f.write(RANK)
        os.chmod(self.room.path('/tmp/rank.sh'), 0o755)
        servers = []
        for rank in 0, 1:
            servers.append(self.room.start('hearthd', '--store', f'/tmp/{rank}', '--listen', f'ipc:///tmp/{rank}.sock', '--device', 'cpu:mem=512MiB,threads=1'))
            self.room.run('hearth', '--server', f'ipc:///tmp/{rank}.sock', 'import', 'untrained', '/digits/untrained.onnx')
        said = self.room.run('mpirun', '--allow-run-as-root', '--oversubscribe', '--mca', 'btl', 'self,vader', '--mca', 'plm_rsh_agent', 'false', '-n', '2',
                             '/tmp/rank.sh')
        self.assertIn('together', said)
        self.assertIn('together', self.room.run('hearth', '--server', 'ipc:///tmp/0.sock', 'ls'))
        for server in servers:
            self.assertEqual(self.room.stop(server), 0)


@unittest.skipIf(NO_ROOM or NO_CUDA, NO_ROOM or NO_CUDA)
class Cuda(Clean):
    """The plug-in is found, and says what it misses."""
    needs = ('hearth',)

    def test_1_absent(self):
        self.assertIn('the plug-in was not opened', self.room.sh('hearth --store /tmp/store devices 2>&1'))

    def test_2_installed(self):
        self.install('hearth-cuda')
        self.assertIn("NVIDIA's driver (libcuda.so.1) was not found", self.room.sh('hearth --store /tmp/store devices 2>&1'))

    def test_3_gpu(self):
        self.skipTest("no room has NVIDIA's driver: make gpu-check tries the plug-in on a GPU")


if __name__ == '__main__':
    sys.exit(tap.run((Contents, Server, Development, Python, Mpi, Cuda)))
