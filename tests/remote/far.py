# SPDX-License-Identifier: Apache-2.0
"""What tests of clients elsewhere share: hearthd with tokens over tcp, TLS and HTTP, which can be killed and started again, a proxy that
does something at a given byte, and models with large tensors."""
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import onnx_small  # noqa: E402
import tap  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DIGITS = 'tests/data/digits'
PATIENCE = 120
MIB = 1 << 20
LAYERS = [2 * MIB, 2 * MIB, 3 * MIB // 2, 1, 2 * MIB, 2 * MIB, 100, 1]  # elements of 4 bytes: some tensors are small
FOLDER = tempfile.mkdtemp(prefix='hearth-remote-')
for variable in ('HEARTH_SERVER', 'HEARTH_TOKEN', 'XDG_RUNTIME_DIR'):
    os.environ.pop(variable, None)


def run(classes):
    """As tap.run, where openssl can make a certificate."""
    if shutil.which('openssl') is None:
        print('1..0 # SKIP openssl is not installed')
        return 0
    try:
        return tap.run(classes)
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


def model(name, sizes, seed, change=None):
    """A model of y = x + w0 + w1 + ..; its file, and the bytes of its tensors. change: the tensor that is another one."""
    rng = random.Random(seed)
    with open(f'{FOLDER}/{name}.bin', 'wb') as f:
        for i, n in enumerate(sizes):
            data = rng.randbytes(2 * n)
            data = bytes(4 * n) if n == 1 else b''.join((data, data))  # the ones of one element are the same
            f.write(random.Random(seed + 1).randbytes(4 * n) if i == change else data)
    with open(f'{FOLDER}/{name}.onnx', 'wb') as f:
        f.write(onnx_small.external_sum(sizes, name + '.bin'))
    return f'{FOLDER}/{name}.onnx', 4 * sum(sizes)


class Server:
    """hearthd with tokens, over tcp and tls (and over `web`, http or https), that can be killed and started again."""

    def __init__(self, name='server', *flags, web=None):
        self.folder = f'{FOLDER}/{name}'
        os.mkdir(self.folder)
        self.port = tap.free_port(2)
        self.tls_port = tap.free_port()
        self.tokens = {}
        for who, roles in (('alice', 'infer,model,job'), ('bob', 'infer,model,job'), ('guest', 'infer'), ('root', 'admin')):
            said = subprocess.run([BUILD + '/hearth', 'token', 'new', who, '--roles', roles, '--file', self.folder + '/tokens'], check=True,
                                  capture_output=True, text=True)
            self.tokens[who] = said.stdout.strip().split()[-1]
        self.ca, key = f'{self.folder}/ca.pem', f'{self.folder}/key.pem'
        subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj',
                        '/CN=test', '-addext', 'subjectAltName=IP:127.0.0.1,DNS:localhost', '-keyout', key, '-out', self.ca], check=True,
                       capture_output=True)
        self.command = [BUILD + '/hearthd', '--store', tap.known_links(BUILD, self.folder + '/store'), '--listen', f'ipc://{self.folder}/sock',
                        '--listen', f'tcp://127.0.0.1:{self.port}', '--listen', f'tls+tcp://127.0.0.1:{self.tls_port}', '--tls-cert', self.ca,
                        '--tls-key', key, '--auth-tokens-file', self.folder + '/tokens', '--device', 'cpu:mem=256MiB,threads=1', *flags]
        self.local = f'ipc://{self.folder}/sock'
        self.ports = {'tcp': self.port, 'tls+tcp': self.tls_port}
        if web is not None:
            self.ports[web] = tap.free_port()
            self.command += ['--http', ('https://' if web == 'https' else '') + f'127.0.0.1:{self.ports[web]}']
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        self.process.terminate()
        self.process.stdout.close()
        return self.process.wait(PATIENCE)

    def start_of(self, *words, url=None, who='alice', ca=False):
        url = url or f'tcp://127.0.0.1:{self.port}'
        more = ['--ca', self.ca] if url.startswith(('tls', 'https')) or ca else []
        command = [sys.executable, HERE + '/over_http.py', *more, url] if url.startswith('http') else \
            [BUILD + '/hearth', '--json', '--server', url, *more]
        return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, 'HEARTH_TOKEN': self.tokens[who]})

    def run(self, *words, code=0, **more):
        p = self.start_of(*words, **more)
        out, err = p.communicate(timeout=PATIENCE)
        assert p.returncode == code, f'{words}: exit code {p.returncode}: {out}{err}'
        return json.loads(out) if code == 0 else err

    def admin(self, *words):
        out = subprocess.run([BUILD + '/hearth', '--json', '--server', f'ipc://{self.folder}/sock', *words], check=True, capture_output=True,
                             text=True, timeout=PATIENCE)
        return json.loads(out.stdout)

    def left(self):
        """Files in tmp/, and what gc finds."""
        return os.listdir(self.folder + '/store/tmp'), self.admin('gc')['files']


class Proxy:
    """Passes connections on, and counts; at so many bytes from the client (or to it) it does something, once."""

    def __init__(self, port, counts_client=True):
        self.counts_client = counts_client
        self.to, self.port, self.lock = port, tap.free_port(), threading.Lock()
        self.came, self.at, self.then, self.pairs, self.holds = 0, None, None, [], False
        self.listener = socket.create_server(('127.0.0.1', self.port))
        threading.Thread(target=self.accept, daemon=True).start()

    def arm(self, at, then):
        with self.lock:
            self.at, self.then = self.came + at, then

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(('127.0.0.1', self.to))
            except OSError:
                near.close()
                continue
            self.pairs.append((near, far))
            for a, b, counted in ((near, far, self.counts_client), (far, near, not self.counts_client)):
                threading.Thread(target=self.forward, args=(a, b, counted), daemon=True).start()

    def cut(self):
        for pair in self.pairs:
            for s in pair:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.pairs = []

    def forward(self, a, b, counted):
        try:
            while data := a.recv(65536):
                then = None
                with self.lock:
                    self.came += len(data) if counted else 0
                    if counted and self.at is not None and self.came >= self.at:
                        then, self.at = self.then, None
                if then is not None:
                    then()
                b.sendall(data)
        except OSError:
            pass
        for s in (a, b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()
        self.cut()
