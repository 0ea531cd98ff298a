#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the page changes, at a real server: who sees which buttons, what they do, and that nobody else's page can do it. Speaks TAP.
usage: tests/page/acts_test.py BUILD_DIR [PART OF A TEST'S NAME], from the root."""
import http.server
import json
import os
import signal
import sys
import threading

sys.dont_write_bytecode = True
from page_rig import DATA, FOLDER, STATE, PageCase, Server, main, token  # noqa: E402
import browser  # noqa: E402
import tap  # noqa: E402

SAID = "document.getElementById('said').textContent"
ROLES = {'reader': 'infer', 'keeper': 'model', 'ann': 'job,model', 'boss': 'admin'}


class Foreign(http.server.BaseHTTPRequestHandler):
    """A page of another origin, with no policy."""

    def do_GET(self):
        self.send_response(200)
        self.send_header('Content-Type', 'text/html')
        self.end_headers()
        self.wfile.write(b'<!doctype html><title>foreign</title><form method="post"></form>')

    def log_message(self, *args):
        pass


class Acts(PageCase):
    @classmethod
    def setUpClass(cls):
        cls.tokens = {who: token(who, roles) for who, roles in ROLES.items()}
        cls.server = Server('acts', '--auth-tokens-file', FOLDER + '/tokens')
        cls.addClassCleanup(cls.server.stop)
        cls.server.hearth('import', 'new', DATA + '/untrained.onnx')
        cls.bare = Server('bare')
        cls.addClassCleanup(cls.bare.stop)
        cls.bare.hearth('import', 'digits', DATA + '/digits.onnx')
        assert cls.bare.request('/v2/repository/models/digits/load', 'POST')[0].status == 200
        foreign = http.server.ThreadingHTTPServer(('127.0.0.1', tap.free_port()), Foreign)
        foreign.daemon_threads = True
        threading.Thread(target=foreign.serve_forever, kwargs={'poll_interval': 0.05}, daemon=True).start()
        cls.addClassCleanup(foreign.server_close)
        cls.addClassCleanup(foreign.shutdown)
        cls.elsewhere = f'http://127.0.0.1:{foreign.server_port}/'
        super().setUpClass()

    def work(self):
        """A job of ann's at work, until the test ends; each has another name."""
        self.name = self.id().rsplit('.', maxsplit=1)[-1]
        self.server.hearth(*self.server.train(self.name, '--epochs', '1000000', '--detach'), token=self.tokens['ann'])
        self.addCleanup(self.end)
        self.until('running')

    def end(self):
        if self.job()['ended_ns'] is None:
            self.server.hearth('cancel', self.name, token=self.tokens['ann'])

    def job(self):
        return json.loads(self.server.hearth('--json', 'job', self.name, token=self.tokens['ann']))

    def until(self, state):
        while True:
            row = self.job()
            if row['state'] == state and (state != 'running' or row['step']):
                return row
            self.assertIsNone(self.server.process.poll())

    def unloaded(self, name='digits'):
        return self.bare.models()[name]['unloaded']

    def as_who(self, who):
        tab = self.open(state='lost')
        self.login(tab, self.tokens[who])
        tab.wait("document.querySelectorAll('#models-table tbody tr').length === 1")
        return tab

    def card(self, tab, state):
        tab.wait(f"[...document.querySelectorAll('.job')].some(j => j.querySelector('h3').textContent === '{self.name}' && "
                 f"j.querySelector('.word').textContent === '{state}')")

    def answer(self, tab, button):
        tab.wait("document.getElementById('confirm').open")
        tab.run(f"document.getElementById('{button}').click()")
        tab.wait("!document.getElementById('confirm').open")

    # ---- who sees what

    def test_roles(self):
        """Buttons for who may press them; of jobs those that are one's own, or, for an administrator, all."""
        self.work()
        models, jobs = {'unload model new'}, {f'pause job {self.name}', f'cancel job {self.name}'}
        for who, roles, want in (('reader', ['infer'], set()), ('keeper', ['model'], models), ('ann', ['model', 'job'], models | jobs),
                                 ('boss', ['infer', 'model', 'job', 'admin'], models | jobs)):
            with self.subTest(who):
                self.assertEqual(self.server.get('/v2/hearth/roles', Authorization='Bearer ' + self.tokens[who]), {'roles': roles})
                tab = self.as_who(who)
                if who in ('ann', 'boss'):
                    self.card(tab, 'running')
                self.assertEqual({b for b in self.buttons(tab) if 'model' in b or self.name in b}, want)
                tab.run("sessionStorage.clear()")
        self.assertEqual(self.server.request('/v2/hearth/roles')[0].status, 401)
        self.assertEqual(self.bare.get('/v2/hearth/roles'), {'roles': ['infer', 'model', 'admin']})  # a program of this machine

    def test_role_lost(self):
        """A token that has lost its role: the server says so, and the buttons go."""
        self.work()
        tab = self.as_who('ann')
        self.card(tab, 'running')
        with open(FOLDER + '/tokens', encoding='ascii') as f:
            before = f.read()

        def write(text):
            with open(FOLDER + '/tokens.new', 'w', encoding='ascii', opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
                f.write(text)
            os.rename(FOLDER + '/tokens.new', FOLDER + '/tokens')
            self.server.process.send_signal(signal.SIGHUP)
        write(before.replace('job,model', 'infer').replace('model,job', 'infer'))
        while 'job' in self.server.get('/v2/hearth/roles', Authorization='Bearer ' + self.tokens['ann'])['roles']:
            pass
        tab.run(f"act('pause', 'job', '{self.name}', 'v2/hearth/jobs/{self.job()['id']}/pause')")  # what the button did that may be gone by now
        tab.wait(f"{SAID} === \"pause job {self.name}: the token of 'ann' lacks the role 'job'\"")
        tab.wait("[...document.querySelectorAll('main button')].filter(b => b.checkVisibility() && !b.textContent.match(/losses|hide/)).length === 0")
        self.assertEqual(self.job()['state'], 'running')
        write(before)
        while 'job' not in self.server.get('/v2/hearth/roles', Authorization='Bearer ' + self.tokens['ann'])['roles']:
            pass

    # ---- what they do

    def test_job(self):
        """Paused, resumed, canceled after a question, and resumed from what the cancel left."""
        self.work()
        tab = self.as_who('ann')
        self.card(tab, 'running')
        self.press(tab, f'pause job {self.name}')
        self.card(tab, 'paused')
        self.assertEqual(tab.run(SAID), f'The job {self.name} is paused.')
        self.assertEqual(self.job()['state'], 'paused')
        self.press(tab, f'resume job {self.name}')
        self.card(tab, 'running')
        self.until('running')
        self.press(tab, f'cancel job {self.name}')
        self.answer(tab, 'confirm-no')
        self.assertEqual(self.until('running')['state'], 'running')
        self.press(tab, f'cancel job {self.name}')
        self.answer(tab, 'confirm-yes')
        tab.wait(f"[...document.querySelectorAll('#jobs-table tbody tr')].some(r => r.cells[0].textContent === '{self.name}' && "
                 "r.cells[2].textContent === 'canceled' && /was canceled after step/.test(r.cells[7].textContent))")
        self.assertEqual(self.job()['state'], 'canceled')
        self.press(tab, f'resume job {self.name}')
        self.card(tab, 'running')
        self.fine_but_401(tab)

    def fine_but_401(self, tab):
        self.assertEqual([c for c in tab.complaints() if '401' not in json.dumps(c)], [])  # it was asked for a token
        self.assertFalse(tab.run('window.hacked || false'))

    def test_model(self):
        """Unloaded after a question, and loaded; a program of this machine may, where there are no tokens."""
        tab = self.open(self.bare)
        self.press(tab, 'unload model digits')
        self.answer(tab, 'confirm-no')
        self.press(tab, 'unload model digits')
        self.assertFalse(self.unloaded())
        self.answer(tab, 'confirm-yes')
        tab.wait(f"{SAID} === 'The model digits is unloaded.'")
        self.assertTrue(self.unloaded())
        tab.wait("document.querySelectorAll('#models-table tbody tr').length === 0 && document.getElementById('models-count').textContent === '1 not loaded'")
        tab.run("document.getElementById('models-count').click()")
        self.press(tab, 'load model digits')
        tab.wait(f"{SAID} === 'The model digits is loaded.'")
        self.assertFalse(self.unloaded())
        tab.wait("document.querySelectorAll('#models-table tbody tr').length === 1")
        self.fine(tab, self.bare)

    def test_two_thousand(self):
        """As many models in a real store, of which one is loaded."""
        server = Server('crowd')
        self.addCleanup(server.stop)
        server.hearth('import', 'digits', DATA + '/digits.onnx')
        manifest = self.ask(server, 'GET', '/v2/hearth/models/digits/manifest')
        body = {'tensors': [{k: t[k] for k in ('name', 'id', 'datatype', 'shape')} for t in manifest['tensors']], 'graph': manifest['graph'], 'no_wait': True}
        for i in range(1999):
            self.ask(server, 'POST', f'/v2/hearth/models/m{i:04}', body)
        tab = self.open(server)
        count = "Number(document.getElementById('models-count').textContent.replace(/[^0-9]/g, ''))"
        rows = "document.querySelectorAll('#{}-table tbody tr').length"
        tab.wait(f"{rows.format('models')} + {count} === 2000")
        tab.run("document.getElementById('models-count').click()")
        tab.wait(f"{rows.format('models')} + {rows.format('rest')} === 2000")
        self.press(tab, 'load model m1998')
        tab.wait(f"{SAID} === 'The model m1998 is loaded.'")
        tab.wait("[...document.querySelectorAll('#models-table tbody tr')].some(r => r.cells[0].textContent === 'm1998')")
        self.fine(tab, server)

    def ask(self, server, method, path, body=None):
        answer, text = server.request(path, method, body=None if body is None else json.dumps(body))
        self.assertIn(answer.status, (200, 201), text)
        return json.loads(text)

    # ---- who else

    def test_get_changes_nothing(self):
        self.work()
        for method in ('GET', 'HEAD', 'PUT', 'DELETE'):
            for what in (f'jobs/{self.name}/pause', f'jobs/{self.name}/cancel', f'jobs/{self.name}/resume'):
                answer, _ = self.server.request('/v2/hearth/' + what, method, {'Authorization': 'Bearer ' + self.tokens['ann']})
                self.assertEqual((answer.status, answer.getheader('Allow')), (405, 'POST'))
            for what in ('load', 'unload'):
                answer, _ = self.bare.request('/v2/repository/models/digits/' + what, method)
                self.assertEqual((answer.status, answer.getheader('Allow')), (405, 'POST'))
        self.assertEqual(self.job()['state'], 'running')
        self.assertFalse(self.unloaded())

    def test_other_origin(self):
        """A page of another origin changes nothing: without tokens by its Origin, with them for want of one, which no browser adds by itself."""
        self.work()
        tab = browser.Tab(self.browser)
        self.addCleanup(tab.close)
        tab.go(self.elsewhere)
        unload = f'http://127.0.0.1:{self.bare.port}/v2/repository/models/digits/unload'
        cancel = f'http://127.0.0.1:{self.server.port}/v2/hearth/jobs/{self.name}/cancel'
        for path in (unload, cancel):
            self.assertEqual(tab.run(f"fetch('{path}', {{method: 'POST', mode: 'no-cors'}}).then(r => r.type)"), 'opaque')  # it was sent
            self.assertEqual(tab.run(f"fetch('{path}', {{method: 'POST'}}).then(() => 'read', () => 'refused')"), 'refused')
        mine = f"{{Authorization: 'Bearer {self.tokens['ann']}'}}"  # even with a token: the server allows no other origin to send one
        self.assertEqual(tab.run(f"fetch('{cancel}', {{method: 'POST', headers: {mine}}}).then(() => 'read', () => 'refused')"), 'refused')
        tab.run(f"document.forms[0].action = '{unload}'; document.forms[0].submit()")
        tab.wait("document.body.innerText.includes('pages of other origins are refused')")
        self.assertFalse(self.unloaded())
        self.assertEqual(self.until('running')['state'], 'running')

    def test_policy(self):
        """The page runs its own script and no other, has no handler in its markup, and cannot be framed."""
        answer, body = self.bare.request('/')
        policy = dict(p.split(' ', 1) for p in answer.getheader('Content-Security-Policy').split('; '))
        self.assertEqual(policy['default-src'], "'none'")
        for part in ('script-src', 'style-src'):
            self.assertRegex(policy[part], r"^'sha256-[A-Za-z0-9+/]{43}='$")
        self.assertEqual((policy['frame-ancestors'], policy['form-action'], policy['base-uri'], policy['connect-src']), ("'none'",) * 3 + ("'self'",))
        tab = self.open(self.bare)
        attributes = tab.run("[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(a => a.startsWith('on'))")
        self.assertEqual(attributes, [])
        self.assertNotIn(b'javascript:', body)
        self.fine(tab, self.bare)
        tab.run("window.violations = 0; document.addEventListener('securitypolicyviolation', () => { violations++; })")
        tab.run("document.body.append(Object.assign(document.createElement('button'), {id: 'bad'}))")
        tab.run("try { document.getElementById('bad').setAttribute('onclick', 'window.hacked = 5'); } catch (e) { } document.getElementById('bad').click()")
        tab.wait('violations > 0')
        self.assertFalse(tab.run('window.hacked || false'))


if __name__ == '__main__':
    sys.exit(main(Acts))
