#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The OCI image that make image has put into BUILD_DIR/dist: unpacked by umoci and run by crun as its own user, with a root that nobody can
write and a volume. Speaks TAP. usage: build-aux/packages/image_test.py BUILD_DIR, from the root, as root."""
import http.client
import json
import os
import re
import shutil
import signal
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

IMAGE = f'{BUILD}/dist/hearth-{room.version()}.oci.tar'
USER = 10001
PATIENCE = 300
NO_RUN = room.missing('umoci', 'crun')
FOLDER = tempfile.mkdtemp(prefix='hearth-image-', dir='/var/tmp')
LAYOUT = FOLDER + '/layout'
# crun refuses a machine with both kinds of control groups, of which it needs none here: one kind is out of its sight.
HIDE = 'if [ -d /sys/fs/cgroup/unified ]; then umount -l /sys/fs/cgroup/unified; fi; exec crun --cgroup-manager=disabled --root "$0" "$@"'
CRUN = ['unshare', '--mount', '--propagation', 'private', 'sh', '-c', HIDE, FOLDER + '/crun']


def blob(descriptor):
    with open(f'{LAYOUT}/blobs/{descriptor["digest"].replace(":", "/")}', encoding='utf-8') as f:
        return json.load(f)


def setUpModule():
    os.mkdir(LAYOUT)
    subprocess.run(['tar', 'xf', IMAGE, '-C', LAYOUT], check=True)


class Config(unittest.TestCase):
    """What the image says of itself."""

    def test_config(self):
        with open(LAYOUT + '/index.json', encoding='utf-8') as f:
            manifest, = json.load(f)['manifests']
        self.assertEqual(manifest['annotations']['org.opencontainers.image.ref.name'], room.version())
        c = blob(blob(manifest)['config'])['config']
        self.assertEqual((c['User'], c['Entrypoint'], set(c['Volumes'])), (f'{USER}:{USER}', ['/usr/sbin/hearthd'], {'/var/lib/hearth', '/run/hearth'}))
        self.assertEqual((set(c['ExposedPorts']), c['Labels']['org.opencontainers.image.version']), ({'8000/tcp'}, room.version()))


class Container:
    """The image's process, with its root read-only, a volume of its own, and the machine's network, in which `address` is."""

    def __init__(self, bundle, volume, address):
        self.bundle, self.name, self.address = bundle, os.path.basename(bundle), address
        with open(bundle + '/config.json', encoding='utf-8') as f:
            spec = json.load(f)
        process = spec['process']
        assert process['args'][0] == '/usr/sbin/hearthd', process['args']
        process.update(terminal=False, noNewPrivileges=True, capabilities={}, args=[w.replace('0.0.0.0:8000', address) for w in process['args']])
        spec['root']['readonly'] = True
        spec['linux'].pop('resources', None)
        spec['linux']['namespaces'] = [n for n in spec['linux']['namespaces'] if n['type'] in ('pid', 'ipc', 'uts', 'mount')]
        own = ('/var/lib/hearth', '/run/hearth', '/sys/fs/cgroup')
        spec['mounts'] = [m for m in spec['mounts'] if m['destination'] not in own] + [
            {'destination': '/var/lib/hearth', 'type': 'bind', 'source': volume, 'options': ['bind', 'rw', 'nosuid', 'nodev']},
            {'destination': '/run/hearth', 'type': 'tmpfs', 'source': 'tmpfs', 'options': ['nosuid', 'nodev', f'uid={USER}', f'gid={USER}', 'mode=0755']},
            {'destination': '/mnt', 'type': 'bind', 'source': room.DIGITS, 'options': ['bind', 'ro']}]
        with open(bundle + '/config.json', 'w', encoding='utf-8') as f:
            json.dump(spec, f)
        self.log = open(bundle + '/log', 'w+', encoding='utf-8')
        self.process = subprocess.Popen([*CRUN, 'run', '--bundle', bundle, self.name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True)
        ready = self.process.stdout.readline()
        assert ' ready: ' in ready, ready + self.said()

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def run(self, *words, user=USER):
        """(exit code, what it says) of a command in the container."""
        done = subprocess.run([*CRUN, 'exec', '--user', f'{user}:{user}', self.name, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                              check=False, timeout=PATIENCE)
        return done.returncode, done.stdout

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        try:
            c.request(method, path, body)
            answer = c.getresponse()
            return answer.status, answer.read().decode()
        finally:
            c.close()

    def pid(self):
        return json.loads(subprocess.run([*CRUN, 'state', self.name], capture_output=True, text=True, check=True).stdout)['pid']

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            subprocess.run([*CRUN, 'kill', self.name, signal.Signals(how).name], check=False, stderr=subprocess.DEVNULL)
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.log.close()
        return code


@unittest.skipIf(NO_RUN, NO_RUN)
class Run(unittest.TestCase):
    def setUp(self):
        self.volume, self.count = FOLDER + '/volume', 0
        os.makedirs(self.volume, mode=0o750)
        os.chown(self.volume, USER, USER)
        self.addCleanup(shutil.rmtree, self.volume)

    def container(self):
        self.count += 1
        bundle = f'{FOLDER}/bundle{self.count}'
        subprocess.run(['umoci', 'unpack', '--image', f'{LAYOUT}:{room.version()}', bundle], check=True, capture_output=True)
        self.addCleanup(shutil.rmtree, bundle)
        started = Container(bundle, self.volume, f'127.0.0.1:{tap.free_port()}')
        self.addCleanup(lambda: started.process.poll() is not None or started.stop(signal.SIGKILL))
        return started

    def infer(self, c):
        """The class of an image that is all 0.5, by HTTP."""
        body = json.dumps({'inputs': [{'name': 'image', 'shape': [1, 1, 8, 8], 'datatype': 'FP32', 'data': [0.5] * 64}],
                           'outputs': [{'name': 'logits', 'parameters': {'classification': 1}}]})
        status, said = c.ask('POST', '/v2/models/digits/infer', body)
        self.assertEqual(status, 200, said)
        return json.loads(said)['outputs'][0]['data']

    def test_serve(self):
        c = self.container()
        with open(f'/proc/{c.pid()}/status', encoding='ascii') as f:
            status = f.read()
        self.assertEqual(set(re.search(r'^Uid:\s+(.*)$', status, re.M)[1].split()), {str(USER)})
        self.assertEqual(int(re.search(r'^CapEff:\s+(\w+)$', status, re.M)[1], 16), 0)
        for path in ('/v2/health/live', '/v2/health/ready'):
            self.assertEqual(c.ask('GET', path)[0], 200, path)
        self.assertEqual(c.run('hearth', 'devices')[0], 0)  # the probe for who has no HTTP
        code, said = c.run('hearth', 'import', 'digits', '/mnt/digits.onnx')
        self.assertEqual((code, said.split('\n')[0]), (0, 'digits:1'), said + c.said())
        self.assertIn('accuracy 98.61 %: 355 of 360', c.run('hearth', 'infer', 'digits', '--input', '/mnt/images.npy', '--labels', '/mnt/labels.npy')[1])
        before = self.infer(c)
        self.assertNotIn('no-onednn', c.said())
        for path in ('/x', '/etc/x', '/var/x'):  # root could write there
            self.assertIn('Read-only file system', c.run('sh', '-c', f'echo >{path}', user=0)[1])
        self.assertEqual(c.stop(), 0, 'a drain')
        again = self.container()  # what the volume holds is served by the next
        self.assertEqual(self.infer(again), before)
        self.assertEqual(again.stop(), 0)


if __name__ == '__main__':
    try:
        exit_code = tap.run((Config, Run))
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
    sys.exit(exit_code)
