#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples for clusters (docs/cluster): the Slurm script by itself and in a Slurm of one node, the Kubernetes manifests by their schema and with
their commands executed here. Speaks TAP. usage: tests/remote/cluster_test.py BUILD_DIR, from the root."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DIGITS, SCRIPT = os.path.join(ROOT, 'tests', 'data', 'digits'), os.path.join(ROOT, 'docs', 'cluster', 'hearth.sbatch')
MANIFEST = os.path.join(ROOT, 'docs', 'cluster', 'kubernetes.yaml')
SERVER = os.path.join(ROOT, 'docs', 'cluster', 'kubernetes-server.yaml')
TRAIN, PATIENCE = DIGITS + '/train.safetensors', 120
LOSS = ('--loss', 'softmax-xent', '--batch', '64')
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(ROOT, 'tests'), os.path.join(ROOT, 'tests', 'remote')]
import slurm_node  # noqa: E402
import tap  # noqa: E402

if __name__ == '__main__':  # the clients' Python has both of these
    tap.use_python('kubernetes_validate', tap.clients_folder() + '/bin/python')
try:
    import yaml
except ImportError:
    yaml = None
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None


def wait_for(found, what):
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Node(unittest.TestCase):
    """A node with a hearthd, and the model `untrained`."""

    def setUp(self):
        self.daemon = tap.Daemon(BUILD)
        self.addCleanup(self.daemon.stop)
        self.url = f'ipc://{self.daemon.folder}/sock'
        self.folder = tempfile.mkdtemp(prefix='hearth-cluster-')
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.env = {**os.environ, 'HEARTH_SERVER': self.url, 'PATH': f'{BUILD}:{os.environ["PATH"]}'}
        self.hearth('import', 'untrained', DIGITS + '/untrained.onnx')

    def hearth(self, *words):
        return subprocess.run([BUILD + '/hearth', *words], check=True, capture_output=True, text=True, env=self.env).stdout

    def job(self, name):
        return json.loads(self.hearth('--json', 'job', name))

    def step(self, name):
        done = subprocess.run([BUILD + '/hearth', '--json', 'job', name], capture_output=True, text=True, check=False, env=self.env)
        return json.loads(done.stdout)['step'] or 0 if done.returncode == 0 else -1


class Script(Node):
    """hearth.sbatch as a program."""

    def start(self, *words, **env):
        return subprocess.Popen(['sh', SCRIPT, *words], env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_status(self):
        ends = self.start('untrained', 'good', TRAIN, *LOSS, '--epochs', '1')
        said = ends.communicate(timeout=PATIENCE)[0]
        self.assertEqual((ends.returncode, self.job('good')['state']), (0, 'finished'), said)
        self.assertRegex(said, r"job 1 of \S+: good\n(.*\n)*job 1 'good' is finished: version 1\n")
        self.assertEqual(self.start('untrained', 'bad', TRAIN, '--loss', 'none').wait(PATIENCE), 1)
        self.assertEqual(self.start('untrained').wait(PATIENCE), 2)

    def test_canceled_and_requeued(self):
        """A signal cancels the training and waits for its end; requeued, it goes on from there."""
        script = self.start('untrained', 'long', TRAIN, *LOSS, '--epochs', '100000')
        wait_for(lambda: self.step('long') > 2, 'no step')
        script.send_signal(signal.SIGTERM)
        said = script.communicate(timeout=PATIENCE)[0]
        self.assertEqual(script.returncode, 1, said)
        ended = self.job('long')
        self.assertEqual(ended['state'], 'canceled', said)
        again = self.start('untrained', 'long', TRAIN, *LOSS, '--epochs', '100000', SLURM_RESTART_COUNT='1')
        wait_for(lambda: self.step('long') > ended['step'], 'it does not go on')
        self.assertEqual((self.job('long')['id'], self.job('long')['state']), (ended['id'], 'running'))
        again.terminate()
        self.assertEqual(again.wait(PATIENCE), 1)
        again.stdout.close()


@unittest.skipIf(slurm_node.missing(), f'no Slurm here: {slurm_node.missing()}')
class InSlurm(Node):
    """The same, placed by a Slurm of one node."""

    def setUp(self):
        super().setUp()
        for name in ('HEARTH_SERVER', 'PATH'):
            os.environ[name], before = self.env[name], os.environ.get(name)
            self.addCleanup(os.environ.__setitem__ if before is not None else os.environ.pop, name, *([before] if before is not None else []))
        self.slurm = slurm_node.Slurm(self.folder + '/slurm')
        self.addCleanup(self.slurm.stop)

    def submit(self, *words):
        return self.slurm.submit(f'--output={self.folder}/out', SCRIPT, *words)

    def test_jobs(self):
        good = self.submit('untrained', 'good', TRAIN, *LOSS, '--epochs', '1')
        self.slurm.wait(lambda: self.slurm.ended(good), 'the end of a job')
        with open(self.folder + '/out', encoding='utf-8') as f:
            said = f.read()
        self.assertEqual(self.slurm.state(good), ('COMPLETED', '0:0'), said)
        self.assertEqual(self.job('good')['state'], 'finished')
        bad = self.submit('untrained', 'bad', TRAIN, '--loss', 'none')
        self.slurm.wait(lambda: self.slurm.ended(bad), 'the end of a job')
        self.assertEqual(self.slurm.state(bad), ('FAILED', '1:0'))
        long = self.submit('untrained', 'long', TRAIN, *LOSS, '--epochs', '100000')
        wait_for(lambda: self.step('long') > 2, 'no step')
        self.slurm.run('scancel', long)
        self.slurm.wait(lambda: self.slurm.ended(long), 'the end of a job')
        wait_for(lambda: self.job('long')['state'] == 'canceled', self.job('long'))
        self.assertEqual(self.slurm.state(long)[0], 'CANCELLED')


class Manifest(Node):
    def objects_of(self, path):
        with open(path, encoding='utf-8') as f:
            return {o['kind']: o for o in yaml.safe_load_all(f)}

    def check_schema(self, objects):
        for o in objects.values():
            kubernetes_validate.validate(o, kubernetes_validate.latest_version(), strict=True)


@unittest.skipIf(yaml is None, 'no PyYAML (python3-yaml)')
class Kubernetes(Manifest):
    """kubernetes.yaml: what its objects refer to is there, and its commands work."""

    def setUp(self):
        super().setUp()
        self.objects = self.objects_of(MANIFEST)
        self.pods = {kind: self.objects[kind]['spec']['template'] for kind in ('DaemonSet', 'Job')}

    def test_objects(self):
        self.assertEqual(list(self.objects), ['Namespace', 'ConfigMap', 'DaemonSet', 'Job'])
        daemons = self.objects['DaemonSet']['spec']
        self.assertEqual(daemons['selector']['matchLabels'].items() & daemons['template']['metadata']['labels'].items(),
                         daemons['selector']['matchLabels'].items())
        for kind, pod in self.pods.items():
            self.assertEqual(self.objects[kind]['metadata']['namespace'], self.objects['Namespace']['metadata']['name'])
            volumes = {v['name'] for v in pod['spec']['volumes']}
            for c in pod['spec']['containers']:
                self.assertEqual({m['name'] for m in c['volumeMounts']}, volumes)
        paths = [next(v['hostPath']['path'] for v in p['spec']['volumes'] if v['name'] == 'run') for p in self.pods.values()]
        self.assertEqual(paths[0], paths[1])  # they meet at the socket

    @unittest.skipIf(kubernetes_validate is None, 'no kubernetes-validate (make deps-clients)')
    def test_schema(self):
        self.check_schema(self.objects)

    def test_daemon(self):
        """hearthd accepts its flags, and the file of tenants."""
        tokens = self.hearth('token', 'new', 'alice', '--roles', 'job', '--file', self.folder + '/tokens')
        self.assertTrue(tokens)
        with open(self.folder + '/tenants', 'w', encoding='ascii') as f:
            f.write(self.objects['ConfigMap']['data']['tenants'])
        c, = self.pods['DaemonSet']['spec']['containers']
        self.assertEqual(c['command'][:2], ['sh', '-c'])
        args = [a.replace('/etc/hearth/tokens/tokens', self.folder + '/tokens').replace('/etc/hearth/tenants/tenants', self.folder + '/tenants')
                .replace('/var/lib/hearth', self.folder).replace('/run/hearth', self.folder) for a in c['args']]
        done = subprocess.run([*c['command'], *args, '--check-config'], capture_output=True, text=True, env=self.env, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('ipc://' + self.folder, done.stdout)
        probe = [w.replace('ipc:///run/hearth/hearth.sock', self.url) for w in c['readinessProbe']['exec']['command']]
        self.assertEqual(subprocess.run(probe, env=self.env, check=False, stdout=subprocess.DEVNULL).returncode, 0)

    def test_client(self):
        c, = self.pods['Job']['spec']['containers']
        script = re.sub(r'--epochs \d+', '--epochs 1', c['args'][0].replace('/data/', DIGITS + '/'))
        done = subprocess.run([*c['command'], script], capture_output=True, text=True, env=self.env, check=False, timeout=PATIENCE)
        self.assertEqual((done.returncode, self.job('digits')['state']), (0, 'finished'), done.stderr)
        done = subprocess.run([*c['command'], script.replace('--loss softmax-xent', '--loss none')], capture_output=True, text=True, env=self.env, check=False)
        self.assertEqual(done.returncode, 1)
        p = subprocess.Popen([*c['command'], script.replace('--epochs 1', '--epochs 100000').replace('--save-as digits', '--save-as long')], env=self.env,
                             stdout=subprocess.DEVNULL)
        wait_for(lambda: self.step('long') > 2, 'no step')
        p.terminate()
        self.assertEqual((p.wait(PATIENCE), self.job('long')['state']), (1, 'canceled'))


@unittest.skipIf(yaml is None, 'no PyYAML (python3-yaml)')
class KubernetesServer(Manifest):
    """kubernetes-server.yaml: what its objects refer to is there, hearthd accepts its flags, and its probes are answered."""

    def setUp(self):
        super().setUp()
        self.objects = self.objects_of(SERVER)
        self.pod = self.objects['StatefulSet']['spec']['template']
        self.container, = self.pod['spec']['containers']

    def test_objects(self):
        self.assertEqual(list(self.objects), ['Namespace', 'Service', 'StatefulSet'])
        service, stateful = self.objects['Service'], self.objects['StatefulSet']
        self.assertEqual(stateful['spec']['serviceName'], service['metadata']['name'])
        for o in service, stateful:
            self.assertEqual(o['metadata']['namespace'], self.objects['Namespace']['metadata']['name'])
        for labels in (service['spec']['selector'], stateful['spec']['selector']['matchLabels']):
            self.assertEqual(labels, self.pod['metadata']['labels'])
        ports = {p['name']: p['containerPort'] for p in self.container['ports']}
        self.assertEqual({p['targetPort']: p['port'] for p in service['spec']['ports']}, ports)
        listens = {int(a.rsplit(':', 1)[1]) for a in self.container['args'] if a.startswith(('--http=', '--metrics='))}
        self.assertEqual(listens, set(ports.values()))
        volumes = {v['name'] for v in self.pod['spec']['volumes']} | {v['metadata']['name'] for v in stateful['spec']['volumeClaimTemplates']}
        self.assertEqual({m['name'] for m in self.container['volumeMounts']}, volumes)
        self.assertEqual((self.container['securityContext']['readOnlyRootFilesystem'], self.pod['spec']['securityContext']['runAsNonRoot']), (True, True))

    @unittest.skipIf(kubernetes_validate is None, 'no kubernetes-validate (make deps-clients)')
    def test_schema(self):
        self.check_schema(self.objects)
        self.container['readinessProbe']['httpGet']['prot'] = 'http'  # the validator would say it
        with self.assertRaises(kubernetes_validate.ValidationError):
            self.check_schema(self.objects)

    def test_flags(self):
        args = [a.replace('/var/lib/hearth', self.folder).replace('/run/hearth', self.folder) for a in self.container['args']]
        done = subprocess.run([BUILD + '/hearthd', *args, '--check-config'], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(SERVER, encoding='utf-8') as f:
            flags = re.findall(r'^ +# - (--\S+)$', f.read(), re.M)  # those of a GPU
        self.assertEqual(len(flags), 2)
        known = subprocess.run([BUILD + '/hearthd', '--help'], capture_output=True, text=True, check=True).stdout
        for flag in flags:
            self.assertIn(flag[2:].split('=')[0].replace('-', '.'), known)

    def test_probes(self):
        paths = {self.container[p]['httpGet']['path'] for p in ('startupProbe', 'livenessProbe', 'readinessProbe')}
        for path in paths:
            c = http.client.HTTPConnection(self.daemon.address, timeout=PATIENCE)
            self.addCleanup(c.close)
            c.request('GET', path)
            self.assertEqual(c.getresponse().status, 200, path)


if __name__ == '__main__':
    sys.exit(tap.run([Script, InSlurm, Kubernetes, KubernetesServer]))
