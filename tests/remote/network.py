# SPDX-License-Identifier: Apache-2.0
"""Two network namespaces with a cable between them, which is as fast as is said: a server's and a client's machine. Needs root and iproute2."""
import os
import shutil
import subprocess
import sys

SERVER, CLIENT = '10.99.7.1', '10.99.7.2'


def missing():
    """Why there can be none here; None: there can."""
    if os.geteuid() != 0:
        return 'only root makes network namespaces'
    absent = [p for p in ('ip', 'tc', 'nsenter', 'openssl') if shutil.which(p) is None]
    if absent:
        return ', '.join(absent) + ' not installed'
    probe = f'hearth-probe-{os.getpid()}'
    made = subprocess.run(['ip', 'netns', 'add', probe], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        return 'no network namespaces here: ' + made.stderr.strip()
    subprocess.run(['ip', 'netns', 'del', probe], check=True)
    return None


def sh(*words):
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f'{words}: {done.stderr}'
    return done.stdout


class Network:
    """`rate` is one of tc's, "1gbit"; None: as fast as the machine."""

    def __init__(self, rate=None):
        self.name = {SERVER: f'hearth-s-{os.getpid()}', CLIENT: f'hearth-c-{os.getpid()}'}
        try:
            self.make(rate)
        except AssertionError:
            self.close()
            raise

    def make(self, rate):
        device = {SERVER: 'hearth-s', CLIENT: 'hearth-c'}
        for space in self.name.values():
            sh('ip', 'netns', 'add', space)
            sh('ip', '-n', space, 'link', 'set', 'lo', 'up')
        sh('ip', 'link', 'add', device[SERVER], 'netns', self.name[SERVER], 'type', 'veth', 'peer', 'name', device[CLIENT], 'netns', self.name[CLIENT])
        for address, space in self.name.items():
            sh('ip', '-n', space, 'address', 'add', address + '/24', 'dev', device[address])
            sh('ip', '-n', space, 'link', 'set', device[address], 'up')
            if rate is not None:
                sh(*self.inside(address, 'tc', 'qdisc', 'add', 'dev', device[address], 'root', 'tbf', 'rate', rate, 'burst', '256k', 'latency', '50ms'))

    def inside(self, address, *words):
        """The command, as one of that machine."""
        return ['nsenter', f'--net=/run/netns/{self.name[address]}', *words]  # `ip netns exec` has file systems of its own, too

    def close(self):
        for space in self.name.values():
            subprocess.run(['ip', 'netns', 'del', space], check=False, capture_output=True)


class Server:
    """hearthd with TLS and a token, in the server's namespace; and the hearth command, or a client of its HTTP, in the client's."""

    def __init__(self, network, build, folder, *flags):
        self.network, self.build, self.folder = network, build, folder
        self.url, self.local, self.ca = f'tls+tcp://{SERVER}:7300', f'ipc://{folder}/sock', folder + '/ca'
        self.web = f'https://{SERVER}:7380'
        self.token = sh(build + '/hearth', 'token', 'new', 'alice', '--roles', 'infer,model,job', '--file', folder + '/tokens').split()[-1]
        sh('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', '/CN=far', '-addext',
           'subjectAltName=IP:' + SERVER, '-keyout', folder + '/key', '-out', self.ca)
        self.process = subprocess.Popen(
            network.inside(SERVER, build + '/hearthd', '--store', folder + '/store', '--listen', self.local, '--listen', self.url, '--http', self.web, '--tls-cert', self.ca,
                           '--tls-key', folder + '/key', '--auth-tokens-file', folder + '/tokens', *flags), stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def client(self, *words, **more):
        """A command of the client's, who knows url, token and authority only."""
        return self.far([self.build + '/hearth', '--ca', self.ca, '--json', *words], **more)

    def over_http(self, *words):
        """The same by over_http.py."""
        here = os.path.dirname(os.path.abspath(__file__))
        return self.far([sys.executable, here + '/over_http.py', '--ca', self.ca, self.web, *words])

    def far(self, words, **more):
        env = {**{k: v for k, v in os.environ.items() if not k.startswith('HEARTH_')}, 'HEARTH_SERVER': self.url, 'HEARTH_TOKEN': self.token}
        done = subprocess.run(self.network.inside(CLIENT, *words), check=False, capture_output=True, text=True, env=env, **more)
        assert done.returncode == 0, f'{words}: {done.stdout}{done.stderr}'
        return done.stdout

    def here(self, *words):
        """A command of the server's own user."""
        return sh(self.build + '/hearth', '--server', self.local, '--json', *words)

    def stop(self):
        self.process.terminate()
        self.process.stdout.close()
        return self.process.wait(120)
