#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""hearthd's page in a headless Chromium, and its JSON without one. Speaks TAP; keeps screenshots as BUILD_DIR/page-*.png.
usage: tests/page/page_test.py BUILD_DIR [PART OF A TEST'S NAME], from the root."""
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import unittest
from urllib.parse import quote

sys.dont_write_bytecode = True
from page_rig import BUILD, CHROMIUM, DATA, FOLDER, IMAGE, NO_CHROMIUM, SCRIPT, STATE, WEAK, PageCase, Server, filled, infer, main, token  # noqa: E402
import browser  # noqa: E402
import tap  # noqa: E402

STEPS, EVALUATIONS = 4 * 21, 4  # of the jobs: 1437 - 144 samples in batches of 64, 4 epochs


class Answers(unittest.TestCase):
    """Without a browser."""

    @classmethod
    def setUpClass(cls):
        cls.server = filled('answers')
        cls.server.hearth(*cls.server.train(IMAGE, '--epochs', '4'))

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_page(self):
        answer, body = self.server.request('/')
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.getheader('Content-Type'), 'text/html; charset=utf-8')
        policy = answer.getheader('Content-Security-Policy')
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn('unsafe', policy)
        self.assertEqual(answer.getheader('X-Content-Type-Options'), 'nosniff')
        self.assertNotIn(b'@STYLE@', body)
        self.assertNotIn(b'@SCRIPT@', body)
        packed, small = self.server.request('/', headers={'Accept-Encoding': 'gzip'})
        self.assertEqual(packed.getheader('Content-Encoding'), 'gzip')
        self.assertLess(len(small), len(body) / 2)

    def test_other_verbs_and_paths(self):
        for path in ('/', '/v2/hearth/stats', '/v2/hearth/jobs/x', '/v2/hearth/models', '/v2/hearth/roles'):
            for verb in ('POST', 'PUT', 'DELETE', 'PATCH'):
                answer, body = self.server.request(path, verb)
                self.assertEqual(answer.status, 405, (verb, path))
                self.assertIn('error', json.loads(body))
                self.assertEqual(answer.getheader('Allow'), 'GET, HEAD')
            want, end = self.server.settled(path)[0].status if path != '/' else 200, time.monotonic() + 200
            answer, body = self.server.request(path, 'HEAD')
            while answer.status != want and time.monotonic() < end:  # a busy engine's is 200
                answer, body = self.server.request(path, 'HEAD')
            self.assertEqual((answer.status, body), (want, b''), path)
            self.assertGreater(int(answer.getheader('Content-Length')), 0)
        for path in ('/index.html', '/favicon.ico', '/v2/hearth', '/v2/hearth/', '/v2/hearth/nothing', '/v2/hearth/jobs/', '/v2/hearth/stats/x',
                     '//'):
            answer, body = self.server.request(path)
            self.assertEqual(answer.status, 404, path)
            self.assertIn('error', json.loads(body))
        answer, body = self.server.settled('/v2/hearth/jobs/nobody')
        self.assertEqual(answer.status, 404)
        self.assertIn('nobody', json.loads(body)['error'])
        self.assertEqual(self.server.request('/v2/hearth/jobs/%zz')[0].status, 400)

    def test_ledger(self):
        ledger = self.server.view('stats')['ledger']
        used = sum(ledger[k] for k in ('private_weight_bytes', 'shared_weight_bytes', 'compute_arena_bytes', 'job_bytes',
                                       'workspace_bytes', 'padding_bytes', 'unclaimed_bytes'))
        self.assertEqual(used + ledger['free_bytes'], ledger['budget_bytes'])
        self.assertEqual(ledger['budget_bytes'], self.server.view('devices')['devices'][0]['budget_bytes'])

    def test_models(self):
        got = self.server.models()
        self.assertLessEqual({'digits', 'parity', 'new', SCRIPT, IMAGE}, set(got))
        self.assertFalse(got['digits']['unloaded'])
        answer, _ = self.server.request('/v2/repository/models/parity/unload', 'POST')
        self.assertEqual(answer.status, 200)
        self.assertTrue(self.server.models()['parity']['unloaded'])
        self.assertEqual(self.server.request('/v2/repository/models/parity/load', 'POST')[0].status, 200)

    def test_latency(self):
        before = self.server.view('latency')
        for _ in range(5):
            infer(self.server, 'digits')
        with self.assertRaises(subprocess.CalledProcessError):
            self.server.hearth('infer', 'digits', '--input', f'image={DATA}/labels.npy')
        after = self.server.view('latency')
        self.assertEqual(after['requests'] - before['requests'], 6)
        self.assertEqual(after['failures'] - before['failures'], 1)
        digits = [m for m in after['models'] if m['name'] == 'digits'][0]
        self.assertTrue(0 < digits['p50_ns'] <= digits['p90_ns'] <= digits['p99_ns'] <= digits['longest_ns'])
        self.assertEqual(sum(s['requests'] for s in after['series']), after['requests'])
        self.assertEqual(sum(h[2] for h in after['histogram']), after['requests'] - after['failures'])
        self.assertAlmostEqual(after['per_second'], after['requests'] / after['seconds'])

    def test_job(self):
        row = self.server.view('jobs')[-1]
        self.assertEqual((row['job'], row['state'], row['step']), (IMAGE, 'finished', STEPS))
        by_name = self.server.view('jobs/' + quote(IMAGE))
        self.assertEqual(len(by_name['history']), STEPS)
        self.assertEqual(by_name['every'], 1)
        self.assertEqual(len(by_name['held_out']), EVALUATIONS)

    def test_timeline(self):
        self.server.hearth(*self.server.train('lined', '--epochs', '1'))
        line = self.server.view('timeline')
        self.assertEqual(line['job'], 'lined')
        self.assertTrue(1 <= line['step'] <= 21)
        self.assertEqual(line['streams'], ['compute', 'host to device', 'device to host'])
        ends = [0, 0, 0]
        for lane, start, took, name, count, size, _ in line['bars']:
            self.assertGreaterEqual(start, ends[lane])  # one after the other
            ends[lane] = start + took
            self.assertTrue(name)
            self.assertGreaterEqual(count, 1)
            self.assertEqual(size > 0, lane > 0)
        self.assertEqual(max(ends), line['wall_ns'])

    def test_long_curves_are_thinned(self):
        steps, words = 2 * 324, self.server.train('longer', '--epochs', '2')
        self.server.hearth(*('4' if before == '--batch' else word for before, word in zip(('', *words), words)))  # 1293 samples
        doc = self.server.view('jobs/longer')
        self.assertEqual(doc['every'], 2)  # that many steps in 600 points
        self.assertEqual(len(doc['history']), steps // 2 + 1)
        whole = json.loads(self.server.hearth('--json', 'job', 'longer'))['history']
        self.assertEqual(doc['history'][:-1], whole[::2])
        self.assertEqual(doc['history'][-1], whole[-1])

    def test_engine_is_busy(self):
        known = {name: self.server.view(name) for name in ('stats', 'latency', 'jobs', 'devices', 'shares')}
        bench = self.server.background('bench', 'digits', '--batch', '16', '--seconds', '300')
        busy, end = {}, time.monotonic() + 200
        while busy.keys() != known.keys():  # all are answered while the bench goes on
            for name, before in known.items():
                answer = self.server.get('/v2/hearth/' + name)
                self.assertEqual(type(answer['data']), type(before))
                if answer['state'] == 'busy' and answer['age_ms'] > 1000:
                    busy[name] = answer
            self.assertIsNone(bench.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        bench.terminate()
        bench.wait()
        self.assertIn('ledger', self.server.view('stats'))

    def test_polling_is_cheap(self):
        c = http.client.HTTPConnection('127.0.0.1', self.server.port, timeout=300)
        polls, pause = 8, 0.22  # not out of what was just answered

        def poll():
            for name in ('stats', 'latency', 'jobs', 'timeline', 'jobs/1'):
                c.request('GET', '/v2/hearth/' + name)
                c.getresponse().read()
        poll()
        idle, end = 1e9, time.monotonic() + 60
        while idle > 20e6 and time.monotonic() < end:  # an idle engine looks for better algorithms for a while
            before = self.server.cpu_ns()
            time.sleep(1)
            idle = self.server.cpu_ns() - before
        before = self.server.cpu_ns()
        for _ in range(polls):
            time.sleep(pause)
            poll()
        each = (self.server.cpu_ns() - before) / polls
        print(f'# a poll costs hearthd {each / 1e6:.2f} ms of processor time')
        self.assertLess(each, 20e6)  # 1 % of two processors, once a second
        c.close()


@unittest.skipUnless(CHROMIUM, NO_CHROMIUM)
class Page(PageCase):
    @classmethod
    def setUpClass(cls):
        cls.server = filled('page')
        cls.addClassCleanup(cls.server.stop)
        super().setUpClass()

    def test_1_memory(self):
        tab = self.open()
        tab.wait("document.querySelectorAll('#memory-table tbody tr').length > 3")
        stats = self.server.view('stats')
        ledger = stats['ledger']
        parts = tab.wait("(() => { const p = [...document.querySelectorAll('.bar')][0].children; return [...p].map(d => "
                         "[d.dataset.key, Number(d.dataset.bytes), d.getBoundingClientRect().width]); })()")
        got = {key: size for key, size, _ in parts}
        self.assertEqual(sum(got.values()), ledger['budget_bytes'])
        self.assertEqual(got['free'], ledger['free_bytes'])
        self.assertEqual(got['shared'], ledger['shared_weight_bytes'])
        self.assertEqual(got['arena'], ledger['compute_arena_bytes'])
        for m in stats['models']:
            self.assertEqual(got.get(f'model {m["name"]}:{m["version"]}', 0), m['resident_private_bytes'])
        whole = sum(width for _, _, width in parts)
        for key, size, width in parts:  # to scale
            self.assertAlmostEqual(width / whole, size / ledger['budget_bytes'], delta=0.003, msg=key)
        table = {r[0]: r[2] for r in self.rows(tab, 'memory-table')}
        self.assertEqual(sorted(int(v.replace(',', '')) for v in table.values()), sorted(got.values()))
        self.fine(tab)

    def test_2_models(self):
        tab = self.open()
        tab.wait("document.querySelectorAll('#models-table tbody tr').length >= 3")
        rows = {r[0]: r for r in self.rows(tab, 'models-table')}
        self.assertLessEqual({'digits', 'parity', SCRIPT}, set(rows))
        tab.run("document.getElementById('models-count').click()")
        tab.wait("document.querySelectorAll('#rest-table tbody tr').length > 0")
        self.assertIn(['new', '1', 'in the store'], [r[:3] for r in self.rows(tab, 'rest-table')])
        self.assertEqual(rows['digits'][1:3], ['1', 'loaded'])
        self.assertEqual((rows['digits'][5], rows['digits'][6]), ('2', '0'))
        self.assertEqual(rows['digits'][8:11], ['–'] * 3)  # of two requests there are no percentiles
        self.assertEqual(tab.run("document.getElementById('models-note').textContent"), 'p50, p90 and p99 need 30 requests.')
        self.fine(tab)

    def test_2_tenants(self):
        rules = os.path.join(FOLDER, 'tenant-rules')
        with open(rules, 'w', encoding='ascii') as f:
            f.write(f'uid:{os.getuid()} weight=3 memory=128MiB waiting=64 jobs=2\n')
        server = Server('tenants', '--tenant-file', rules)
        server.hearth('import', 'digits', DATA + '/digits.onnx')
        server.hearth('import', 'new', DATA + '/untrained.onnx')
        tab = self.open(server)
        tab.wait("document.querySelectorAll('#tenants-table tbody tr').length >= 1 || "
                 "document.getElementById('tenants-note').textContent.startsWith('Nobody has asked')")
        me = f'uid:{os.getuid()}'
        row = f"[...document.querySelectorAll('#tenants-table tbody tr')].find(r => r.dataset.key === '{me}')"
        infer(server, 'digits')
        tab.wait(f"{row} && {row}.cells[6].textContent !== '0 ns'")
        infer(server, 'digits')
        tab.wait(f"{row}.cells[7].textContent === '100.0 %'")
        rows = {r[0]: r for r in self.rows(tab, 'tenants-table')}
        stats = {t['name']: t for t in server.view('stats')['tenants']}
        self.assertRegex(rows[me][1], r'^[0-9.]+ (B|KiB|MiB) of 128 MiB$')
        self.assertEqual(tab.run(f"{row}.cells[1].title"), f"{stats[me]['memory_bytes']:,} of {128 << 20:,}")
        self.assertEqual(rows[me][2:6], ['0 of 64', '0 of 2', '0', '3'])
        job = server.background(*server.train('longer', '--epochs', '4000'))
        tab.wait(f"{row}.cells[3].textContent === '1 of 2'")
        server.hearth('cancel', 'longer')
        job.wait()
        self.pictures(tab, 'tenants')
        self.fine(tab, server)
        self.assertEqual(server.stop(), 0)

    def test_2_shares(self):
        """Bars to scale, a row for each tenant, and jobs that wait with their reason; of another tenant's only that it waits."""
        rules = os.path.join(FOLDER, 'share-rules')
        with open(rules, 'w', encoding='ascii') as f:
            f.write('alice weight=3\nbob weight=1\n')
        tokens = {who: token(who, 'job,model') for who in ('alice', 'bob')}
        server = Server('shares', '--tenant-file', rules, '--auth-tokens-file', FOLDER + '/tokens')
        server.hearth('import', 'new', DATA + '/untrained.onnx')
        for who, name, *more in (('alice', 'work'), ('bob', 'toil'), ('alice', 'next', '--after', 'work')):
            server.hearth(*server.train(name, '--epochs', '100000', '--detach', *more), token=tokens[who])
        tab = self.open(server, 'lost')
        self.login(tab, tokens['alice'])
        rows = "[...document.querySelectorAll('#shares-table tbody tr')]"
        tab.wait(f"{rows}.length === 2 && {rows}.every(r => r.cells[3].textContent !== '')")
        shares = {r[0]: r for r in self.rows(tab, 'shares-table')}
        self.assertEqual([(shares[who][2], shares[who][5], shares[who][6], shares[who][7]) for who in ('alice', 'bob')],
                         [('3', '75.0 %', '1', '1'), ('1', '25.0 %', '1', '0')])
        self.assertRegex(shares['alice'][4], r'^[0-9.]+ %$')
        self.assertTrue(tab.run("document.querySelector('#shares-table th.device').checkVisibility()") is False)  # there is one
        tab.wait("document.querySelectorAll('.share .bar > div').length >= 2")
        for label in tab.run("[...document.querySelectorAll('.share .bar')].map(b => b.getAttribute('aria-label'))"):
            self.assertRegex(label, r'^(device|host|threads|link).*: ')
        waiting = self.rows(tab, 'waiting-table')
        self.assertEqual([(r[0], r[2]) for r in waiting], [('alice', 'next')])
        self.assertIn('work', waiting[0][6])  # the job that it follows
        self.pictures(tab, 'shares')
        tab.run("sessionStorage.clear()")
        self.login(tab, tokens['bob'])
        tab.wait("document.querySelector('#waiting-table tbody tr').cells[2].textContent === 'another\u2019s job'")
        self.assertEqual([(r[0], r[6]) for r in self.rows(tab, 'waiting-table')], [('alice', 'waits for another job')])
        self.assertNotIn('next', tab.run("document.querySelector('#h-shares').parentElement.textContent"))
        complaints = [c for c in tab.complaints() if '401' not in json.dumps(c)]  # it was asked for a token
        self.assertEqual(complaints, [])
        for job in ('next', 'work'):
            server.hearth('cancel', job, token=tokens['alice'])
        server.hearth('cancel', 'toil', token=tokens['bob'])
        tab.wait("document.querySelectorAll('#waiting-table tbody tr').length === 0")
        self.assertEqual(server.stop(), 0)

    def test_3_job(self):
        tab = self.open()
        job = self.server.background(*self.server.train(IMAGE, '--epochs', '4'))
        tab.wait("document.querySelector('.job') !== null")
        self.assertEqual(job.wait(), 0)
        tab.wait("document.querySelector('.job .word').textContent === 'finished'")
        tab.wait(f"document.querySelector('.job').dataset.points === '{STEPS}'")
        self.assertEqual(tab.run("document.querySelector('.job h3').textContent"), IMAGE)
        self.assertEqual(tab.run("document.querySelectorAll('.job svg path.line').length"), 2)  # trained on, held out
        points = tab.run("[...document.querySelectorAll('.job svg path.line')].map(p => p.getAttribute('d').split('L').length)")
        self.assertEqual(points, [STEPS, EVALUATIONS])
        tab.wait("document.querySelectorAll('#timeline-picture rect').length > 10")
        line = self.server.view('timeline')
        tab.wait(f"document.querySelectorAll('#timeline-picture rect').length === {len(line['bars'])}")
        self.assertIn(IMAGE, tab.run("document.getElementById('timeline-note').textContent"))
        for _ in range(30):
            infer(self.server, 'digits')
        tab.wait("document.querySelectorAll('#latency-chart circle.f-latency').length >= 1")
        self.pictures(tab, 'job')
        self.fine(tab)

    def test_3_last_losses(self):
        """The page asks again for a job that ended after it was last described."""
        tab = self.open()
        tab.wait("typeof jobs === 'object'")
        row = {'id': 1 << 40, 'job': 'a', 'ended_ns': 5}
        for doc, wanted in (None, True), ({**row, 'ended_ns': None}, True), (row, False):
            self.assertEqual(tab.run(f"(() => {{ const j = new Jobs(), doc = {json.dumps(doc)};"
                                     f" if (doc) j.docs.set(String(doc.id), doc);"
                                     f" return j.wanted([{json.dumps(row)}]); }})()"), [str(row['id'])] if wanted else [])

    def test_4_ended_jobs(self):
        self.server.hearth(*self.server.train('first', '--epochs', '4'))
        self.server.hearth(*self.server.train('second', '--epochs', '2'))
        tab = self.open()
        tab.wait("document.querySelectorAll('#jobs-table tbody tr').length >= 2")
        self.assertEqual(tab.run("document.querySelector('.job h3').textContent"), 'second')
        tab.run("[...document.querySelectorAll('#jobs-table tbody tr')].find(r => r.cells[0].textContent === 'first')"
                ".querySelector('button').click()")
        tab.wait("[...document.querySelectorAll('.job h3')].some(h => h.textContent === 'first') && "
                 f"[...document.querySelectorAll('.job')].some(j => j.dataset.points === '{STEPS}')")
        tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        self.pictures(tab, 'jobs')
        self.fine(tab)

    def test_3_latencies(self):
        """The distribution is drawn as the server counted it, with its percentiles at their places."""
        for _ in range(30):
            infer(self.server, 'digits')
        tab = self.open()
        for width, dark in ((1200, False), (390, True)):
            tab.look(width, 900, dark)
            tab.drawn()
            latency = self.server.view('latency')
            good = latency['requests'] - latency['failures']
            bars = tab.wait("(() => { const b = [...document.querySelectorAll('#histogram-chart rect')].map(r => [r.dataset.n, r.getAttribute('x'), "
                            f"r.getAttribute('width'), r.getAttribute('height')].map(Number)); return b.reduce((s, r) => s + r[0], 0) === {good} ? b : null; }})()")
            most = max(bars, key=lambda b: b[0])
            for n, _, _, height in bars:  # to scale
                self.assertAlmostEqual(height / most[3], n / most[0], delta=0.02)
            for (_, x, w, _), (_, after, _, _) in zip(bars, bars[1:]):
                self.assertLessEqual(x + w, after + 0.2)
            at = tab.run("[...document.querySelectorAll('#histogram-chart path.line')].map(p => Number(p.getAttribute('d').match(/M([0-9.]+)/)[1]))")
            self.assertEqual(len(at), 3)
            self.assertEqual(at, sorted(at))
            for share, x in zip((0.5, 0.9, 0.99), at):  # the count on its left is that share, but for a bar
                left = [b[0] for b in bars if b[1] + b[2] < x - 1]
                upto = [b[0] for b in bars if b[1] <= x + 1]
                self.assertLessEqual(sum(left), share * good + 1, (share, bars, at))
                self.assertGreaterEqual(sum(upto), share * good - 1, (share, bars, at))
            said = tab.run("document.querySelector('#histogram-chart svg').getAttribute('aria-label')")
            self.assertRegex(said, r'p50 [0-9.]+ (ns|µs|ms|s), p90 [0-9.]+ (ns|µs|ms|s), p99 [0-9.]+ (ns|µs|ms|s)$')
            marks = tab.run("[...document.querySelectorAll('#histogram-chart .mark')].map(t => { const r = t.getBBox(); return [r.x, r.y, r.x + r.width, r.y + r.height]; })")
            inside = tab.run("document.querySelector('#histogram-chart svg').clientWidth")
            for i, (x, y, right, bottom) in enumerate(marks):
                self.assertTrue(0 <= x and right <= inside, marks)
                self.assertTrue(all(not (x < r and a < right and y < b - 1 and c < bottom - 1) for a, c, r, b in marks[:i]), marks)
        tab.run("document.querySelector('#histogram-chart svg').focus()")
        for kind in ('keyDown', 'keyUp'):
            tab.call('Input.dispatchKeyEvent', type=kind, key='End', code='End', windowsVirtualKeyCode=35)
        tab.wait("/ to .*: [0-9]+ requests, .*; 0 took longer/.test(document.querySelector('#histogram-chart .readout').textContent)")
        tab.look(1200, 900, False)
        tab.run("document.getElementById('h-requests').scrollIntoView()")
        self.pictures(tab, 'latencies')
        self.fine(tab)

    def test_5_looks(self):
        for dark in (False, True):
            tab = self.open(dark=dark)
            tab.wait("document.querySelectorAll('#models-table tbody tr').length >= 3")
            self.assertEqual(tab.run(WEAK), [])
            paper = tab.run('getComputedStyle(document.body).backgroundColor')
            self.assertEqual(int(paper[4:].split(',')[0]) < 128, dark)
            self.fine(tab)
        tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        for width in (320, 390, 768, 1600):
            tab.look(width)
            tab.drawn()
            self.assertLessEqual(tab.run('document.documentElement.scrollWidth'), width)

    def test_6_for_everybody(self):
        tab = self.open()
        tab.wait("document.querySelector('#rate-chart svg') !== null")
        self.assertEqual(tab.run("[...document.querySelectorAll('table')].filter(t => !t.caption).length"), 0)
        self.assertEqual(tab.run("[...document.querySelectorAll('th')].filter(t => !t.scope).length"), 0)
        tab.wait("[...document.querySelectorAll('main [role=img]')].filter(p => p.checkVisibility()).every(p => p.getAttribute('aria-label'))")
        self.assertEqual(tab.run("[...document.querySelectorAll('section')].every(s => "
                                 "document.getElementById(s.getAttribute('aria-labelledby')))"), True)
        self.assertEqual(tab.run("document.getElementById('state').getAttribute('role')"), 'status')
        infer(self.server, 'digits')
        tab.wait("document.querySelectorAll('#rate-chart svg path, #rate-chart svg circle').length > 4")
        tab.run("document.querySelector('#rate-chart svg').focus()")
        for kind in ('keyDown', 'keyUp'):
            tab.call('Input.dispatchKeyEvent', type=kind, key='End', code='End', windowsVirtualKeyCode=35)
        tab.wait("/^(just now|[0-9]+ s ago|[0-9]+ min ago): (all |no requests)/.test(document.querySelector('#rate-chart .readout').textContent)")
        self.fine(tab)

    def test_7_empty_and_lost(self):
        server = Server('empty')
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        tab = self.open(server)
        tab.wait("document.getElementById('models-note').textContent.startsWith('There is no model yet')")
        tab.wait("document.getElementById('jobs-note').textContent.startsWith('No job has been trained')")
        tab.wait("document.body.innerText.includes('Nothing is on the device yet.')")
        tab.wait("document.getElementById('timeline-note').textContent.startsWith('No step has been measured')")
        tab.picture(f'{BUILD}/page-empty.png')
        self.fine(tab, server)
        server.hearth('import', 'digits', DATA + '/digits.onnx')
        server.hearth('unload', 'digits')  # an import has looked at it
        tab.wait("document.getElementById('models-note').textContent.startsWith('No model is loaded')")
        server.stop(signal.SIGKILL)
        tab.wait(f"{STATE} === 'lost' && document.getElementById('status').textContent.includes('trying again')")
        tab.picture(f'{BUILD}/page-lost.png')
        server.start()
        tab.wait(f"{STATE} === 'live'")
        self.assertEqual(server.stop(), 0)

    def test_8_busy(self):
        tab = self.open()
        bench = self.server.background('bench', 'digits', '--batch', '16', '--seconds', '300')
        tab.wait(f"{STATE} === 'busy' && /busy.*old/.test(document.getElementById('status').textContent)")
        bench.terminate()
        bench.wait()
        tab.wait(f"{STATE} === 'live'")
        self.fine(tab)

    def test_9_engine_dies(self):
        server = Server('dying', '--engine-process', 'child', '--engine-restart-backoff-ms', '3000')
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        server.hearth('import', 'digits', DATA + '/digits.onnx')
        tab = self.open(server)
        pid, end = server.process.pid, time.monotonic() + 200
        while True:
            said, state = tab.run(f"[document.getElementById('status').textContent, {STATE}]")
            if 'restarting' in said:
                break
            for child in tap.children(pid):
                os.kill(child, signal.SIGKILL)
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        self.assertEqual(state, 'busy')
        tab.picture(f'{BUILD}/page-restarting.png')
        tab.wait(f"{STATE} === 'live'")
        infer(server, 'digits')
        tab.wait("[...document.querySelectorAll('#models-table tbody tr')].some(r => r.cells[0].textContent === 'digits' && r.cells[5].textContent === '1')")
        self.fine(tab, server)
        self.assertEqual(server.stop(), 0)

    def test_9_token(self):
        reader = token('reader', 'infer')
        server = Server('token', '--auth-tokens-file', FOLDER + '/tokens', '--http-prefix', '/base')
        tab = browser.Tab(self.browser)
        self.addCleanup(tab.close)
        tab.go(f'http://127.0.0.1:{server.port}/base/')
        self.login(tab, reader)
        self.assertTrue(tab.run("document.getElementById('login').hidden"))
        self.assertEqual(server.stop(), 0)


if __name__ == '__main__':
    sys.exit(main(Answers, Page))
