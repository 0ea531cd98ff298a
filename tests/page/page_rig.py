# SPDX-License-Identifier: Apache-2.0
"""What the tests of hearthd's page share: a server with models, a stand-in that serves the page with figures of the test's own, and what is
to be true of the page however it looks."""
import copy
import glob
import http.client
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DATA = os.path.join(ROOT, 'tests', 'data', 'digits')
FOLDER = tempfile.mkdtemp(prefix='hearth-page-')
sys.path.append(os.path.join(ROOT, 'tests'))
import browser  # noqa: E402
import tap  # noqa: E402

CHROMIUM = browser.find()
NO_CHROMIUM = 'no chromium (sh build-aux/deps.sh browser)'
SCRIPT = '<script>window.hacked=1<b> & "quoted" ' + 'long ' * 20 + 'name'  # what a model may be called
IMAGE = '<img src=x onerror=window.hacked=2>'  # .. and a job
STATE = "document.getElementById('status').dataset.state"
WIDTHS = (360, 768, 1920)


class Server:
    """hearthd with HTTP, on a store of its own."""

    def __init__(self, name, *more):
        self.folder = os.path.join(FOLDER, name)
        os.mkdir(self.folder)
        self.url, self.port, self.more = f'ipc://{self.folder}/sock', tap.free_port(), more
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [BUILD + '/hearthd', '--store', tap.known_links(BUILD, self.folder + '/store'), '--listen', self.url, '--http',
             f'127.0.0.1:{self.port}', '--device', 'cpu:mem=256MiB,threads=2', *self.more], stdout=subprocess.PIPE, text=True)
        assert ' ready: ' in self.process.stdout.readline()

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.stdout.close()
        return self.process.wait(300)

    def hearth(self, *words, token=None):
        return subprocess.run([BUILD + '/hearth', '--server', self.url, *words], check=True, capture_output=True, text=True,
                              env={**os.environ, **({'HEARTH_TOKEN': token} if token else {})}).stdout

    def background(self, *words):
        return subprocess.Popen([BUILD + '/hearth', '--server', self.url, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def train(self, save_as, *more):
        return ('train', 'new', '--data', DATA + '/train.safetensors', '--loss', 'softmax-xent', '--optimizer', 'adam', '--lr', '0.002',
                '--batch', '64', '--budget', '50%', '--hold-out', '0.1', '--seed', '1', '--save-as', save_as, *more)

    def request(self, path, method='GET', headers=None, body=None):
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=120)
        c.request(method, path, body, headers or {})
        answer = c.getresponse()
        body = answer.read()
        c.close()
        return answer, body

    def get(self, path, **headers):
        answer, body = self.request(path, headers=headers)
        assert answer.status == 200, (path, answer.status, body)
        return json.loads(body)

    def settled(self, path):
        """A request's answer that is the engine's: not what stands in for it while the engine is busy."""
        end = time.monotonic() + 200
        while True:
            answer, body = self.request(path)
            if answer.status != 200 or json.loads(body).get('state') != 'busy':
                return answer, body
            assert time.monotonic() < end, path
            time.sleep(0.05)

    def models(self):
        """As the store knows them: the engine is not asked."""
        return {m['name']: m for m in self.get('/v2/hearth/models')['data']}

    def view(self, name):
        """What a view shows, asked anew: not what was kept from just before."""
        begun = time.monotonic()
        while True:
            answer = self.get('/v2/hearth/' + name)
            since = time.monotonic() - begun
            if answer['state'] == 'ready' and answer['age_ms'] < since * 1000:
                return answer['data']
            assert since < 200, answer['state']
            time.sleep(0.05)

    def cpu_ns(self):
        total = 0
        for path in glob.glob(f'/proc/{self.process.pid}/task/*/schedstat'):
            try:
                with open(path, encoding='ascii') as f:
                    total += int(f.read().split()[0])
            except (FileNotFoundError, ProcessLookupError):
                pass  # a thread that has ended meanwhile
        return total


def token(who, roles):
    """Of a server that has --auth-tokens-file FOLDER/tokens."""
    out = subprocess.run([BUILD + '/hearth', 'token', 'new', who, '--roles', roles, '--file', FOLDER + '/tokens'], check=True, capture_output=True, text=True)
    return out.stdout.split('\n')[0]


def infer(server, model):
    server.hearth('infer', model, '--input', f'image={DATA}/images.npy')


def filled(name, *more):
    server = Server(name, *more)
    for model, path in (('digits', 'digits.onnx'), ('parity', 'digits-parity.onnx'), ('new', 'untrained.onnx'), (SCRIPT, 'digits.onnx')):
        server.hearth('import', model, f'{DATA}/{path}')
    for model in ('digits', 'digits', 'parity', SCRIPT):
        infer(server, model)
    return server


# ---- a stand-in

def slot(requests=0, failures=0, ns=2_000_000, seconds=5.0):
    """What the server says of a span of time; `ns`: what most answers took."""
    some = requests > failures
    return {'seconds': seconds, 'requests': requests, 'failures': failures, 'per_second': requests / seconds, 'p50_ns': ns * some,
            'p90_ns': 2 * ns * some, 'p99_ns': 5 * ns * some, 'longest_ns': 6 * ns * some}


def latency(series, models=()):
    requests, failures = (sum(s[k] for s in series) for k in ('requests', 'failures'))
    good = requests - failures
    parts = [(1_900_000, 2_100_000, good - good // 10), (9_000_000, 12_500_000, good // 10)]
    return {**slot(requests, failures, seconds=sum(s['seconds'] for s in series) or 0.001), 'slot_seconds': 5, 'series': series,
            'histogram': [list(p) for p in parts if p[2] > 0], 'models': [{'name': n, 'version': v, **s} for n, v, s in models]}


def loaded(name, private=1 << 20, shared=1 << 20, requests=0):
    return {'name': name, 'version': 1, 'weight_bytes': private + shared, 'resident_private_bytes': private, 'resident_shared_bytes': shared,
            'requests': requests, 'failures': 0}


def stats(models=(), jobs=(), tenants=()):
    private, shared = sum(m['resident_private_bytes'] for m in models), (1 << 20) * any(m['resident_shared_bytes'] for m in models)
    of_jobs = sum(j['job_bytes'] for j in jobs)
    ledger = {'budget_bytes': 256 << 20, 'shared_weight_bytes': shared, 'unclaimed_bytes': 2 << 20, 'compute_arena_bytes': 24 << 20,
              'workspace_bytes': 8 << 20, 'padding_bytes': 1 << 20, 'private_weight_bytes': private, 'job_bytes': of_jobs}
    ledger['free_bytes'] = ledger['budget_bytes'] - sum(v for k, v in ledger.items() if k != 'budget_bytes')
    return {'ledger': ledger, 'models': list(models), 'jobs': list(jobs), 'tenants': list(tenants)}


def job(number, name, state='running', why=None, **more):
    live = state in ('running', 'waiting', 'queued', 'paused')
    return {'id': number, 'job': name, 'tenant': 'ann', 'state': state, 'model': 'new', 'step': 40, 'steps': 84, 'loss': 0.25,
            'held_out_loss': 0.31, 'accuracy': 0.91, 'version': None, 'why': why, 'ended_ns': None if live else 1_700_000_000_000_000_000 + number,
            'resumable': state == 'paused', 'wait_seconds': None, **more}


def losses(row, sets=('hold-out', 'other')):
    """The document of a job, with losses that fall by a factor of a hundred."""
    history = [[2.0 * 0.89 ** i + 0.01, 3.5] for i in range(row['step'])]
    held = [{'set': s, 'step': step, 'loss': 2.2 * 0.9 ** step + 0.02} for s in sets for step in (10, 20, 30, 40)]
    return {**row, 'every': 1, 'history': history, 'held_out': held, 'memory_bytes': 30 << 20, 'budget_bytes': 40 << 20, 'step_ms': 3.5,
            'stall_ms': 0.2, 'measured_ms': 3.6, 'predicted_ms': 3.4, 'replans': 0, 'replanned': None}


def tenant(name, share, waiting=()):
    return {'tenant': name, 'weight': 1, 'share': {'device_time': share, 'device_memory': share / 2, 'threads': share, 'host_memory': 0, 'link': share / 4},
            'dominant': 'device_time', 'dominant_share': share, 'entitlement': 0.5, 'jobs_running': 1, 'jobs_waiting': len(waiting), 'under': False,
            'run_ns': 5_000_000_000, 'waiting': list(waiting), 'running': []}


def counted(name):
    return {'name': name, 'weight': 1, 'memory_bytes': 20 << 20, 'memory_limit': 128 << 20, 'waiting': 0, 'waiting_limit': 64, 'jobs': 1,
            'jobs_limit': None, 'refused': 0, 'run_ns': 5_000_000_000}


def timeline(name):
    bars = [[0, i * 1_000_000, 900_000, f'/conv{i}', 1, 0, i % 4 == 3] for i in range(12)]
    bars += [[1, 500_000, 700_000, 'weights', 1, 65536, False], [2, 6_000_000, 800_000, 'activations', 2, 131072, False]]
    return {'job': name, 'step': 7, 'age_ms': 400, 'wall_ns': 12_000_000, 'streams': ['compute', 'host to device', 'device to host'], 'bars': bars}


def nothing():
    """The views of a server with no models, jobs and requests."""
    return {'devices': {'devices': [{'name': 'cpu:0', 'description': 'a stand-in', 'budget_bytes': 256 << 20, 'total_bytes': 1 << 30, 'threads': 2}]},
            'stats': stats(), 'models': [], 'latency': latency([]), 'jobs': [], 'shares': {'devices': []},
            'timeline': {'job': None, 'step': 0, 'age_ms': 0, 'wall_ns': 0, 'streams': [], 'bars': []}}


def everything(name='digits', reason='the disk is full: 12 MiB are needed and 3 MiB are left'):
    """The views of a server with some of all there is, called after `name`."""
    models = [loaded(name), loaded(name + '-2', private=3 << 20, shared=0)]
    jobs = [job(1, name + '-job'), job(2, name + '-waits', 'waiting', reason, step=None, steps=None, loss=None),
            job(3, name + '-rests', 'paused'), job(4, name + '-broke', 'failed', reason, resumable=True), job(5, name + '-done', 'finished')]
    waiting = [{'id': 2, 'job': name + '-waits', 'state': 'waiting', 'memory_bytes': 90 << 20, 'wait_seconds': 12, 'waits_for': 'memory', 'why': reason}]
    series = [slot(), slot(40), slot(50, 4), slot(), slot(3), slot(60, 2), slot(70)]
    capacity = {k: 1 for k in ('device_time', 'device_memory', 'threads', 'host_memory', 'link')}
    return {**nothing(), 'stats': stats(models, [{'name': name + '-job', 'job_bytes': 30 << 20, 'resident_private_bytes': 0}],
                                        [counted(name + '-tenant'), counted('bob')]),
            'models': [{'name': m['name'], 'version': 1, 'bytes': m['weight_bytes'], 'unloaded': False} for m in models] +
                      [{'name': name + '-stored', 'version': 1, 'bytes': 2 << 20, 'unloaded': False}],
            'latency': latency(series, [(name, 1, slot(200)), (name + '-2', 1, slot(12))]), 'jobs': jobs,
            'shares': {'devices': [{'device': 'cpu:0', 'capacity': capacity, 'tenants': [tenant(name + '-tenant', 0.6, waiting), tenant('bob', 0.2)]}]},
            'timeline': timeline(name + '-job'), **{f'jobs/{j["id"]}': losses(j) for j in jobs if j['step']}, 'jobs/2': losses({**jobs[1], 'step': 0})}


class StandIn:
    """Serves the page as hearthd sends it, and `views`, which a test sets."""

    def __init__(self, page, views, roles=('infer', 'model', 'job', 'admin')):
        self.page, self.views, self.roles, self.version = page, copy.deepcopy(views), roles, 'stand-in'
        self.posts, self.answers, self.held, self.refuses = [], {}, threading.Event(), False
        self.held.set()  # cleared: POSTs wait
        self.port, self.server = tap.free_port(), None
        self.start()

    def start(self):
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, status, doc=None):
                body = b'' if doc is None else json.dumps(doc).encode()
                self.send_response(status)
                self.send_header('Content-Type', 'application/json')
                self.send_header('Content-Length', str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                path = self.path.removeprefix('/v2/hearth/')
                if self.path == '/':
                    headers, body = stand_in.page
                    self.send_response(200)
                    for name, value in headers:
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                elif stand_in.refuses:
                    self.answer(401, {'error': 'a token is needed'})
                elif self.path == '/v2':
                    self.answer(200, {'name': 'hearth', 'version': stand_in.version})
                elif path == 'roles':
                    self.answer(200, {'roles': list(stand_in.roles)})
                elif path in stand_in.views:
                    self.answer(200, {'state': 'ready', 'age_ms': 0, 'data': stand_in.views[path]})
                else:
                    self.answer(404, {'error': 'there is no ' + path})

            def do_POST(self):
                stand_in.posts.append((self.path, self.headers.get('Authorization')))
                stand_in.held.wait(200)
                self.answer(*stand_in.answers.get(self.path, (200, {})))

            def log_message(self, *args):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # a browser hangs up when it likes

        self.server = Listener(('127.0.0.1', self.port), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={'poll_interval': 0.05}, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def page_of(server):
    """The page's head and body, as `server` sends them."""
    answer, body = server.request('/')
    names = ('Content-Type', 'Content-Security-Policy', 'X-Content-Type-Options', 'Referrer-Policy')
    return [(n, answer.getheader(n)) for n in names], body


# ---- a browser

# WCAG 2: texts whose contrast with what is behind them is below 4.5
WEAK = r"""(() => {
  const parse = c => c.match(/[0-9.]+/g).map(Number);
  const light = c => { const [r, g, b] = parse(c).map(v => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (parse(c).length < 4 || parse(c)[3] > 0.5) { return c; } } return 'rgb(255,255,255)'; };
  const out = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('.away') || e.closest('.skip') || !e.checkVisibility() || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) { continue; }
    let through = 1;
    for (let p = e; p; p = p.parentElement) { through *= Number(getComputedStyle(p).opacity); }
    const look = getComputedStyle(e), a = light(e instanceof SVGElement ? look.fill : look.color), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5 || through < 1) { out.push([e.tagName, e.getAttribute('class'), e.textContent.slice(0, 30), ratio, through]); }
  }
  return out; })()"""


@unittest.skipUnless(CHROMIUM, NO_CHROMIUM)
class PageCase(unittest.TestCase):
    """Tests with `cls.browser`; a class sets `cls.server`."""

    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser(CHROMIUM)
        cls.addClassCleanup(cls.browser.close)

    def open(self, server=None, state='live', **look):
        tab = browser.Tab(self.browser, **look)
        server = server or self.server
        tab.go(f'http://127.0.0.1:{server.port}/')
        tab.wait(f"{STATE} === '{state}'")
        self.addCleanup(tab.close)
        return tab

    def login(self, tab, text):
        tab.wait("!document.getElementById('login').hidden")
        tab.run(f"document.getElementById('token').value = '{text}'; document.querySelector('#login button').click()")
        tab.wait(f"{STATE} === 'live'")

    def fine(self, tab, server=None):
        """No complaint of the browser, nothing executed, nothing asked of anybody else."""
        self.assertEqual(tab.complaints(), [])
        self.assertEqual(tab.dialogs(), [])
        self.assertFalse(tab.run('window.hacked || false'))
        base = f'http://127.0.0.1:{(server or self.server).port}/'
        self.assertEqual({u for u in tab.requested() if not u.startswith((base, 'data:', 'about:'))}, set())

    def rows(self, tab, table):
        return tab.run(f"[...document.querySelectorAll('#{table} tbody tr')].map(r => [...r.cells].map(c => c.textContent))")

    def buttons(self, tab):
        """What the buttons in sight are called."""
        return tab.run("[...document.querySelectorAll('main button')].filter(b => b.checkVisibility()).map(b => b.getAttribute('aria-label'))")

    def press(self, tab, label):
        """The button that is called so, when it is there."""
        button = f"[...document.querySelectorAll('main button')].find(b => b.getAttribute('aria-label') === {json.dumps(label)})"
        tab.wait(f'{button} !== undefined')
        tab.run(f'{button}.focus(); {button}.click()')

    def key(self, tab, key, code, **more):
        text = {'text': '\r'} if key == 'Enter' else {}
        for kind in ('keyDown', 'keyUp'):
            tab.call('Input.dispatchKeyEvent', type=kind, key=key, code=key, windowsVirtualKeyCode=code, **(text if kind == 'keyDown' else {}), **more)

    def pictures(self, tab, name):
        for width, dark in ((1200, False), (1200, True), (390, False), (390, True)):
            tab.look(width, 900, dark)
            tab.drawn()
            tab.picture(f'{BUILD}/page-{name}-{width}{"-dark" if dark else ""}.png')


def main(*classes):
    if len(sys.argv) > 2:  # those whose names have it
        unittest.defaultTestLoader.testNamePatterns = [f'*{sys.argv[2]}*']
    try:
        return tap.run(classes)
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)
