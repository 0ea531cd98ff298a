#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What hearthd's page shows of given figures: a stand-in serves the page as hearthd sends it, with figures of the test's own. Of each
width and scheme a picture stays as BUILD_DIR/page-look-*.png. Speaks TAP.
usage: tests/page/looks_test.py BUILD_DIR [PART OF A TEST'S NAME], from the root."""
import itertools
import json
import math
import re
import sys

sys.dont_write_bytecode = True
from page_rig import (  # noqa: E402
    BUILD, STATE, WEAK, WIDTHS, PageCase, Server, StandIn, everything, job, latency, loaded, losses, main, nothing, page_of, slot, stats)

LONG = 'x' * 200
HOSTILE = ('<img src=x onerror="window.hacked=3">\'&amp;</script><script>window.hacked=4</script>' + 'y' * 200)[:200]
# What each colour stands for: the names of the lines, bars and rows that have it.
MEANINGS = {
    'requests': {'all'}, 'failed': {'failed'}, 'latency': {'p50', 'p90', 'p99', 'longest'}, 'loss': {'training'}, 'held-out': {'held out', 'other'},
    'compute': {'compute'}, 'recomputed': {'recomputed'}, 'to-device': {'host to device'}, 'to-host': {'device to host'},
    'weights': {'weights'}, 'shared': {'weights'}, 'kept': {'weights'}, 'job': {'job'}, 'arena': {'arena'}, 'workspace': {'workspaces'},
    'padding': {'alignment'}, 'free': {'free'}}
SHADES = ('requests', 'failed', 'latency', 'loss', 'held-out', 'tenant', 'weights', 'job', 'arena', 'workspace', 'padding', 'free', 'compute',
          'recomputed', 'to-device', 'to-host')
CHARTS = {'rate-chart': ('requests per second', 'minutes before now'), 'latency-chart': ('latency, logarithmic', 'minutes before now'),
          'histogram-chart': ('share of the requests', 'latency, logarithmic'), 'jobs': ('loss, logarithmic', 'step'),
          'timeline-picture': ('time in the step',)}


def lab(color):
    """CIE L*a*b* (D65) of '#rrggbb'."""
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in (int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)))
    x, y, z = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047, 0.2126 * r + 0.7152 * g + 0.0722 * b, (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


class Looks(PageCase):
    @classmethod
    def setUpClass(cls):
        server = Server('looks')
        cls.page = page_of(server)
        assert server.stop() == 0
        super().setUpClass()

    def show(self, views, state='live', **look):
        """A tab with these views."""
        self.server = StandIn(self.page, views)
        self.addCleanup(self.server.stop)
        return self.open(state=state, **look)

    def again(self, tab):
        """Until everything was asked again, and shown."""
        tab.run("refreshAll(); window.turnBefore = turn")
        tab.wait('turn > turnBefore + 1')
        tab.drawn()

    # ---- functions

    def test_functions(self):
        tab = self.show(nothing())
        none = [None, None]
        for script, want in (
                ('percentiles({requests: 29, failures: 0, p50_ns: 1, p90_ns: 2, p99_ns: 3})', None),
                ('percentiles({requests: 30, failures: 0, p50_ns: 1, p90_ns: 2, p99_ns: 3})', {'p50': 1, 'p90': 2, 'p99': 3}),
                ('percentiles({requests: 31, failures: 2, p50_ns: 1, p90_ns: 2, p99_ns: 3})', None),  # of those that failed there is no time
                ('percentiles({requests: 0, failures: 0, p50_ns: 0, p90_ns: 0, p99_ns: 0})', None),
                ('placeSlots([{seconds: 5}, {seconds: 5}, {seconds: 2}]).map(s => s.x)', [-9.5, -4.5, -1]),
                ('placeSlots([])', []),
                ('traffic([{x: 1, requests: 0, v: 0}, {x: 2, requests: 3, v: 0}], s => s.v)', [[1, None], [2, 0]]),
                ('pieces([])', []),
                ('pieces([[0, null]])', []),
                ('pieces([[0, 1], [1, 0], [2, null], [3, null], [4, 5], [5, null]])', [[[0, 1], [1, 0]], [[4, 5]]]),
                ('inWords("all", [[0, 4], [1, null], [2, 1], [3, 2]], String)', 'all last 2, least 1, most 4'),
                ('inWords("all", [[0, null]], String)', 'all nothing'),
                ('ticks(0, 9.3, 4)', [0, 5]), ('ticks(0, 100, 5)', [0, 20, 40, 60, 80, 100]), ('ticks(-5, 0, 6)', [-5, -4, -3, -2, -1, 0]),
                ('[axisEnd(9.3, 4), axisEnd(10, 4), axisEnd(0, 4), axisEnd(0.013, 4)]', [10, 10, 0.5, 0.015]),
                ('logTicks(8, 130)', [10, 20, 50, 100]),
                ('logTicks(1, 1e9).length', 10),
                ('jobActions({ended_ns: null, resumable: false})', {'pause': True, 'resume': False, 'cancel': True}),  # at work, or waits
                ('jobActions({ended_ns: null, resumable: true})', {'pause': False, 'resume': True, 'cancel': True}),  # paused
                ('jobActions({ended_ns: 5, resumable: true})', {'pause': False, 'resume': True, 'cancel': False}),  # failed, with a checkpoint
                ('jobActions({ended_ns: 5, resumable: false})', {'pause': False, 'resume': False, 'cancel': False}),
                ('[modelAction({unloaded: false}, true, true), modelAction({unloaded: false}, true, false)]', ['unload', 'unload']),
                ('[modelAction({unloaded: false}, false, true), modelAction({unloaded: true}, true, true)]', ['load', 'load']),
                ('[modelAction({unloaded: false}, false, false), modelAction({unloaded: true}, false, false)]', none)):
            with self.subTest(script):
                self.assertEqual(tab.run(script), want)

    # ---- figures

    def test_gaps(self):
        """Two lines and a dot in place of one line with zeros."""
        series = [slot(20), slot(40), slot(), slot(), slot(60), slot(), slot(10), slot(31), slot(33)]
        views = {**nothing(), 'latency': latency(series)}
        tab = self.show(views, width=1200)
        tab.wait("document.querySelector('#rate-chart svg path.line') !== null")
        lines = tab.run("[...document.querySelectorAll('#rate-chart path.line')].map(p => p.getAttribute('d').split('L').length)")
        self.assertEqual(lines, [2, 3])
        self.assertEqual(tab.run("document.querySelectorAll('#rate-chart circle').length"), 1)
        bottom = tab.run("Math.max(...[...document.querySelectorAll('#rate-chart path.line')].flatMap(p => "
                         "p.getAttribute('d').match(/[0-9.]+(?=L|$)/g).map(Number)))")
        axis = tab.run("Number(document.querySelector('#rate-chart .axis').getAttribute('d').match(/ ([0-9.]+)H/)[1])")
        self.assertLess(bottom, axis - 5)  # no value is drawn at zero
        # a percentile is drawn where there were 30 requests; the longest wherever there were some
        self.assertEqual(tab.run("[...document.querySelectorAll('#latency-chart path.line')].map(p => p.getAttribute('d').split('L').length)"), [2, 2, 2])
        self.assertEqual(tab.run("document.querySelectorAll('#latency-chart circle').length"), 6 + 3 * 2)
        tab.run("document.querySelector('#rate-chart svg').focus()")
        for _ in range(4):
            self.key(tab, 'ArrowLeft', 37)
        self.assertRegex(tab.run("document.querySelector('#rate-chart .readout').textContent"), ': all 12$')
        self.key(tab, 'ArrowLeft', 37)
        self.assertRegex(tab.run("document.querySelector('#rate-chart .readout').textContent"), ': no requests$')
        self.fine(tab)

    def test_percentiles(self):
        """From 30 requests on; of fewer their number, and why."""
        models = [loaded('few', requests=29), loaded('many', requests=30), loaded('none')]
        stored = [{'name': m['name'], 'version': 1, 'bytes': 1 << 20, 'unloaded': False} for m in models]
        views = {**nothing(), 'stats': stats(models), 'models': stored,
                 'latency': latency([slot(29)], [('few', 1, slot(29)), ('many', 1, slot(30)), ('none', 1, slot())])}
        tab = self.show(views)
        tab.wait("document.querySelectorAll('#models-table tbody tr').length === 3")
        rows = {r[0]: r for r in self.rows(tab, 'models-table')}
        self.assertEqual([rows['few'][5], *rows['few'][8:11]], ['29', '–', '–', '–'])
        self.assertEqual([rows['many'][5], *rows['many'][8:11]], ['30', '2.00 ms', '4.00 ms', '10.0 ms'])
        self.assertEqual(rows['none'][7:11], ['', '', '', ''])
        said = "document.getElementById('requests-note').textContent"
        self.assertIn('p50, p90 and p99 need 30', tab.run("document.getElementById('models-note').textContent"))
        self.assertEqual(tab.run(said), 'Last five minutes: 29 requests, 0 failed, longest 12.0 ms. p50, p90 and p99 need 30 requests.')
        self.assertEqual(tab.run("document.querySelectorAll('#histogram-chart .mark').length"), 0)
        self.server.views['latency'] = latency([slot(30)], [('few', 1, slot(30))])
        self.again(tab)
        self.assertEqual(tab.run(said), 'Last five minutes: 30 requests, 0 failed; p50 2.00 ms, p90 4.00 ms, p99 10.0 ms, longest 12.0 ms.')
        self.assertEqual(tab.run("[...document.querySelectorAll('#histogram-chart .mark')].map(t => t.textContent)"),
                         ['p50 2.00 ms', 'p90 4.00 ms', 'p99 10.0 ms'])
        self.assertEqual(tab.run("document.getElementById('models-note').textContent"), '')
        self.fine(tab)

    def test_reason(self):
        """Why a job failed is text in sight, and so is why one waits."""
        reason = 'the disk is full: 12 MiB are needed and 3 MiB are left ' + LONG
        tab = self.show(everything(reason=reason))
        tab.wait("document.querySelectorAll('#jobs-table tbody tr').length === 2")
        for width in WIDTHS:
            tab.look(width)
            tab.drawn()
            cell = "[...document.querySelectorAll('#jobs-table tbody tr')].find(r => r.cells[0].textContent === 'digits-broke').cells[7]"
            self.assertEqual(tab.run(f'{cell}.textContent'), reason)
            self.assertTrue(tab.run(f'{cell}.checkVisibility()'))
            self.assertTrue(tab.run(f'(() => {{ const b = {cell}.getBoundingClientRect(); return b.width > 90 && b.left >= 0 && b.right <= innerWidth; }})()'))
        card = "[...document.querySelectorAll('.job')].find(j => j.querySelector('h3').textContent === 'digits-waits')"
        self.assertEqual(tab.run(card + ".querySelector('.why').textContent"), reason)
        self.press(tab, 'Show the losses of job digits-broke')
        tab.wait("[...document.querySelectorAll('.job .why.bad')].some(p => p.textContent.startsWith('the disk is full'))")
        self.fine(tab)

    # ---- models

    def many(self, n, n_loaded):
        models = [loaded(f'm{i:04}') for i in range(n_loaded)]
        store = [{'name': f'm{i:04}', 'version': 1, 'bytes': 1 << 20, 'unloaded': False} for i in range(n)]
        return {**nothing(), 'stats': stats(models), 'models': store, 'latency': latency([slot(40)], [(m['name'], 1, slot(40)) for m in models[:20]])}

    def test_many_models(self):
        tab = self.show(self.many(2000, 3))
        tab.wait("document.querySelectorAll('#models-table tbody tr').length === 3")
        self.assertEqual(tab.run("document.getElementById('models-count').textContent"), '1,997 not loaded')
        self.assertEqual(tab.run("document.querySelectorAll('#rest-table tbody tr').length"), 0)  # nobody looks
        self.assertFalse(tab.run("document.getElementById('models-rest').open"))
        self.assertEqual([r[0] for r in self.rows(tab, 'models-table')], ['m0000', 'm0001', 'm0002'])
        tab.run("document.getElementById('models-count').click()")
        tab.wait("document.querySelectorAll('#rest-table tbody tr').length === 1997")
        tab.run("window.row = document.querySelector('#rest-table tbody tr')")
        self.again(tab)
        self.assertTrue(tab.run("row === document.querySelector('#rest-table tbody tr')"))  # what did not change stays
        for width in WIDTHS:
            tab.look(width)
            tab.drawn()
            self.assertLessEqual(tab.run('document.documentElement.scrollWidth'), width)
        tab.run("document.getElementById('models-count').click()")
        tab.wait("document.querySelectorAll('#rest-table tbody tr').length === 0")
        self.server.views = self.many(2000, 2000)
        tab.wait("document.querySelectorAll('#models-table tbody tr').length === 2000")
        self.assertFalse(tab.run("document.getElementById('models-rest').checkVisibility()"))
        self.fine(tab)

    def test_no_models(self):
        tab = self.show(nothing())
        tab.wait("document.getElementById('models-note').textContent.startsWith('There is no model yet')")
        self.assertEqual(tab.run("[...document.querySelectorAll('table')].filter(t => t.checkVisibility()).map(t => t.id)"), ['memory-table'])
        self.assertFalse(tab.run("document.getElementById('models-rest').checkVisibility()"))
        self.assertEqual(self.buttons(tab), [])
        self.fine(tab)

    # ---- looks

    def full(self, name, **look):
        """Everything there is, called after `name`, and unfolded."""
        tab = self.show(everything(name), **look)
        tab.wait("document.querySelectorAll('#jobs-table tbody tr').length === 2 && document.querySelectorAll('.job').length === 3")
        tab.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        tab.wait("document.querySelectorAll('#rest-table tbody tr').length === 1")
        return tab

    def test_widths(self):
        """No page is wider than its window, whatever things are called, and nothing is cut off; all texts can be read, also of a page whose
        server has gone. The pictures are for people."""
        for name in ('digits', LONG, HOSTILE):
            tab = self.full(name)
            for width, dark in itertools.product((*WIDTHS, 1000), (False, True)):
                with self.subTest(f'{name[:10]} {width} {"dark" if dark else "light"}'):
                    tab.look(width, 900, dark)
                    tab.drawn()
                    self.assertLessEqual(tab.run('document.documentElement.scrollWidth'), width)
                    out = tab.run("[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && !e.closest('.away, .skip, .bar') && !(innerWidth <= 960 && e.closest('thead'))).filter(e => "
                                  "{ const b = e.getBoundingClientRect(); return b.right > innerWidth + 0.5 || b.left < -0.5; }).map(e => e.outerHTML.slice(0, 100))")
                    self.assertEqual(out, [])
                    self.assertEqual(tab.run(WEAK), [])
                    paper = tab.run('getComputedStyle(document.body).backgroundColor')
                    self.assertEqual(int(paper[4:].split(',')[0]) < 128, dark)
                    if name == 'digits' and width in WIDTHS:
                        tab.picture(f'{BUILD}/page-look-{width}{"-dark" if dark else ""}.png')
            shown = tab.run("[...document.querySelectorAll('#models-table th.name, .job h3, #tenants-table th.name')].map(e => e.textContent)")
            self.assertLessEqual({name, name + '-2', name + '-job', name + '-tenant'}, set(shown))
            self.fine(tab)
        self.server.stop()
        tab.wait(f"{STATE} === 'lost'")
        self.assertEqual(tab.run(WEAK), [])

    def test_colours(self):
        """One colour has one meaning, on the whole page and in both schemes."""
        tab = self.full('digits')
        for dark in (False, True):
            tab.look(1200, 900, dark)
            tab.drawn()
            shades = {s: tab.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{s}').trim()") for s in SHADES}
            near = [(a, b) for a, b in itertools.combinations(SHADES, 2) if math.dist(lab(shades[a]), lab(shades[b])) < 15]
            self.assertEqual(near, [])
            used = tab.run("[...document.querySelectorAll('.swatch')].map(s => [s.className.match(/k-([a-z-]+)/)[1], s.parentElement.textContent])")
            meant = {}
            for look, text in used:
                for word in ('weights', 'job', 'arena', 'workspaces', 'alignment', 'free'):  # rows of the memory
                    text = word if word in text.lower() else text
                meant.setdefault(look, set()).add(text)
            self.assertEqual(meant, MEANINGS)
        drawn = tab.run("[...new Set([...document.querySelectorAll('svg [class], .bar > div')].flatMap(e => "
                        "e.getAttribute('class').match(/(?<![a-z])[ksf]-[a-z-]+/g) || []).map(c => c.slice(2)))]")
        self.assertEqual(set(drawn) - set(MEANINGS), {'tenant'})
        self.assertEqual(tab.run("[...document.querySelectorAll('.bar > .k-tenant')].every(d => d.closest('#shares-picture'))"), True)
        self.assertEqual(tab.run("document.querySelectorAll('svg [fill]:not([fill=currentColor]), svg [stroke]').length"), 0)

    def test_axes(self):
        """Axes have names and units, and round marks that do not lie on each other."""
        tab = self.full('digits')
        for width in WIDTHS:
            tab.look(width)
            tab.drawn()
            for host, titles in CHARTS.items():
                with self.subTest(f'{host} {width}'):
                    chart = f"document.querySelector('#{host} svg')"
                    got = tab.run(f"[...{chart}.querySelectorAll('.title')].map(t => t.textContent)")
                    self.assertEqual(sorted(got), sorted(titles))
                    marks = tab.run(f"[...{chart}.querySelectorAll('.tick')].map(t => t.textContent)")
                    self.assertGreaterEqual(len(marks), 3)
                    for mark in marks:
                        number = re.match(r'[0-9.,]+|now', mark).group().replace(',', '')
                        self.assertLessEqual(len(number.replace('.', '').strip('0')) if number != 'now' else 0, 2, mark)
                    boxes = tab.run(f"[...{chart}.querySelectorAll('.tick, .title')].map(t => {{ const b = t.getBBox(); "
                                    "return [b.x, b.y, b.x + b.width, b.y + b.height]; })")
                    inside = tab.run(f'[{chart}.clientWidth, {chart}.clientHeight]')
                    for i, (x, y, right, bottom) in enumerate(boxes):
                        self.assertTrue(-1 <= x and right <= inside[0] + 1 and -1 <= y and bottom <= inside[1] + 1, (boxes[i], inside))
                        self.assertTrue(all(right <= a or r <= x or bottom <= b or c <= y for a, b, r, c in boxes[:i]), (marks, boxes[i]))
        self.assertEqual(tab.run("[...document.querySelectorAll('#rate-chart .tick')].map(t => t.textContent).slice(-6)"), ['5', '4', '3', '2', '1', 'now'])

    # ---- for everybody

    def test_keyboard(self):
        """Whatever a pointer reaches, Tab does, with a mark around it; Enter presses; Escape says no."""
        tab = self.full('digits', width=1200)
        tab.run("window.seen = []")
        for _ in range(200):
            self.key(tab, 'Tab', 9)
            if tab.run("""(() => { const e = document.activeElement; if (e === document.body || seen.includes(e)) { return true; } seen.push(e);
                    const look = getComputedStyle(e); e.marked = look.outlineStyle !== 'none' && parseFloat(look.outlineWidth) >= 2; return false; })()"""):
                break
        self.assertEqual(tab.run("seen.filter(e => !e.marked).map(e => e.outerHTML.slice(0, 80))"), [])
        missed = tab.run("[...document.querySelectorAll('button, summary, a, [tabindex=\"0\"]')].filter(e => e.checkVisibility() && !seen.includes(e))"
                         ".map(e => e.outerHTML.slice(0, 80))")
        self.assertEqual(missed, [])
        self.assertGreater(tab.run('seen.length'), 20)
        button = "[...document.querySelectorAll('button')].find(b => b.getAttribute('aria-label') === 'cancel job digits-job')"
        tab.run(f'{button}.focus()')
        self.key(tab, 'Enter', 13)
        tab.wait("document.getElementById('confirm').open")
        self.assertEqual(tab.run("document.activeElement.id"), 'confirm-no')
        self.key(tab, 'Escape', 27)
        tab.wait("!document.getElementById('confirm').open")
        self.assertTrue(tab.run(f'document.activeElement === {button}'))
        self.assertEqual(self.server.posts, [])
        self.key(tab, 'Enter', 13)
        tab.wait("document.getElementById('confirm').open")
        self.key(tab, 'Tab', 9)
        self.assertEqual(tab.run("document.activeElement.id"), 'confirm-yes')
        self.key(tab, 'Enter', 13)
        tab.wait("document.getElementById('said').textContent === 'The job digits-job is canceled.'")
        self.assertEqual([path for path, _ in self.server.posts], ['/v2/hearth/jobs/1/cancel'])
        self.fine(tab)

    def test_focus_stays(self):
        """A button that goes with what it did leaves the keyboard at what was said."""
        tab = self.full('digits')
        self.press(tab, 'load model digits-stored')
        tab.wait("document.getElementById('said').textContent === 'The model digits-stored is loaded.'")
        self.server.views['models'] = self.server.views['models'][:2]
        tab.run("refreshAll()")
        tab.wait("document.activeElement.id === 'saying-end'")
        self.key(tab, 'Enter', 13)
        tab.wait("document.getElementById('said').textContent === '' && document.activeElement.id === 'main'")

    def test_focus_of_rows(self):
        """The keyboard stays at its button wherever its row goes, and never comes to another one's."""
        rows = {name: job(i, name, 'failed', 'no memory', resumable=True) for i, name in enumerate(('first', 'a', 'b', 'c'), 1)}
        tab = self.show({**nothing(), 'jobs': [rows[n] for n in ('first', 'a', 'b')],
                         **{f'jobs/{r["id"]}': losses(r) for r in rows.values()}})
        table, focused = "document.getElementById('jobs-table')", "document.activeElement.getAttribute('aria-label')"
        tab.wait(f"{table}.tBodies[0].rows.length === 3")

        def shown(*names):
            self.server.views['jobs'] = [rows[n] for n in ('first', *names)]
            tab.wait(f"[...{table}.tBodies[0].rows].map(r => r.cells[0].textContent).join() === {json.dumps(','.join(('first', *names)))}")
            tab.drawn()
        tab.run(f"[...{table}.querySelectorAll('button')].find(b => b.getAttribute('aria-label') === 'resume job b').focus()")
        self.assertEqual(tab.run(focused), 'resume job b')
        for names in (('c', 'a', 'b'), ('b',), ('a', 'b'), ('b', 'a'), ('b', 'c')):
            shown(*names)
            self.assertEqual(tab.run(focused), 'resume job b', names)
        shown('c', 'a')
        self.assertEqual(tab.run('document.activeElement === document.body'), True)
        tab.run(f"[...{table}.querySelectorAll('button')].find(b => b.getAttribute('aria-label') === 'resume job a').focus()")
        rows['a'] = {**rows['a'], 'resumable': False}
        self.server.views['jobs'] = [rows[n] for n in ('first', 'c', 'a')]
        tab.wait(f"![...{table}.querySelectorAll('button')].some(b => b.getAttribute('aria-label') === 'resume job a')")
        self.assertEqual(tab.run('document.activeElement === document.body'), True)
        self.press(tab, 'Show the losses of job a')
        tab.wait(f"{focused} === 'Hide the losses of job a'")  # it does the same
        self.fine(tab)

    def test_names(self):
        """All that is in sight has a name for who does not see it, and nobody is interrupted."""
        tab = self.full('digits')
        tab.call('Accessibility.enable')
        nodes = tab.call('Accessibility.getFullAXTree')['nodes']
        roles = {}
        for n in nodes:
            role = n.get('role', {}).get('value')
            if not n.get('ignored') and role in ('button', 'link', 'image', 'img', 'table', 'region', 'progressbar', 'dialog', 'columnheader'):
                roles.setdefault(role, []).append(n.get('name', {}).get('value', ''))
        self.assertLessEqual({'button', 'link', 'table', 'region', 'progressbar', 'columnheader'}, set(roles))
        self.assertEqual({role: names.count('') for role, names in roles.items() if '' in names}, {})
        pictures = tab.run("[...document.querySelectorAll('main [role=img]')].filter(p => p.checkVisibility()).map(p => p.getAttribute('aria-label'))")
        self.assertGreaterEqual(len(pictures), 12)
        for text in pictures:  # figures, not only what they are of
            self.assertRegex(text or '', r'[0-9]|not used')
        self.assertEqual(tab.run("[...document.querySelectorAll('[aria-live]')].filter(e => e.getAttribute('aria-live') !== 'polite').length"), 0)
        self.assertEqual(tab.run("document.querySelectorAll('[role=alert], [role=alertdialog]').length"), 0)
        self.assertEqual(tab.run("[...document.querySelectorAll('[role=status]')].map(e => e.id)"), ['state', 'said'])
        self.assertEqual(tab.run("[...document.querySelectorAll('[role=status]')].filter(e => !e.checkVisibility()).length"), 0)  # there before it speaks

    def test_nothing_moves(self):
        tab = self.full('digits')
        for motion in ('no-preference', 'reduce'):
            tab.look(1200, 900, False, motion)
            moving = tab.run("[...document.querySelectorAll('*')].filter(e => { const s = getComputedStyle(e); return s.animationName !== 'none' || "
                             "s.transitionDuration.split(',').some(t => parseFloat(t) > 0) || s.scrollBehavior !== 'auto'; }).length")
            self.assertEqual((moving, tab.run('document.getAnimations().length')), (0, 0))

    # ---- a server that comes and goes

    def test_restart(self):
        """The page says that its server is gone, and when it is there again asks everything anew."""
        tab = self.show(everything())
        tab.wait("document.getElementById('version').textContent === 'stand-in'")
        tab.wait("document.querySelectorAll('#models-table button').length === 2")
        self.server.stop()
        tab.wait(f"{STATE} === 'lost' && document.getElementById('state').textContent === 'the connection is lost'")
        self.assertRegex(tab.run("document.getElementById('age').textContent"), r'^: trying again in [0-9]+ s$')
        self.press(tab, 'pause job digits-job')
        tab.wait("document.getElementById('said').textContent === 'pause job digits-job: the server did not answer'")
        self.server.version, self.server.roles, self.server.views = 'another', ['infer'], nothing()
        self.server.start()
        tab.wait(f"{STATE} === 'live' && document.getElementById('version').textContent === 'another'")
        tab.wait("document.getElementById('models-note').textContent.startsWith('There is no model yet')")
        self.assertEqual(self.buttons(tab), [])
        self.assertEqual(self.server.posts, [])

    def test_cannot_be_drawn(self):
        """An answer that the page cannot draw is said to be that, also where a token is asked for, and the page goes on asking."""
        tab = self.show(everything())
        state = "document.getElementById('state').textContent"
        good, self.server.views['latency'] = self.server.views['latency'], {'series': 5}
        tab.wait(f"{state}.startsWith('the page cannot draw what the server says: ')")
        self.assertEqual(tab.run("document.getElementById('status').dataset.state"), 'lost')
        self.server.refuses = True
        tab.wait(f"{state} === 'a token is needed'")
        self.server.refuses, self.server.views['latency'] = False, good
        tab.wait(f"{STATE} === 'live'")
        self.assertTrue(tab.run("document.getElementById('login').hidden"))

    def test_one_at_a_time(self):
        """Who presses twice asks once, and is told what the server says."""
        tab = self.full('digits')
        self.server.held.clear()
        self.press(tab, 'pause job digits-job')
        self.press(tab, 'pause job digits-job')
        self.assertEqual(tab.run("document.getElementById('said').textContent"), 'pause job digits-job: asked')
        self.server.answers['/v2/hearth/jobs/1/pause'] = (409, {'error': 'job <b>1</b> has ended already'})
        self.server.held.set()
        tab.wait("document.getElementById('said').textContent === 'pause job digits-job: job <b>1</b> has ended already'")
        self.assertEqual([path for path, _ in self.server.posts], ['/v2/hearth/jobs/1/pause'])
        self.assertEqual(tab.run("document.getElementById('saying').dataset.said"), 'bad')

    def test_jobs_of_all_states(self):
        """Each has the buttons that make sense, for who has the role; a loss that is no number is a gap."""
        jobs = [job(1, 'a'), job(2, 'b', 'paused'), job(3, 'c', 'failed', 'no memory', resumable=True), job(4, 'd', 'finished')]
        doc = losses(jobs[0])
        doc['history'][20] = [None, 3.5]
        del doc['held_out'][1]['loss']  # of an evaluation hearthd leaves it out
        views = {**nothing(), 'jobs': jobs, 'jobs/1': doc, 'jobs/2': losses(jobs[1])}
        tab = self.show(views)
        tab.wait("document.querySelectorAll('.job').length === 2")
        shows = ['Show the losses of job c', 'Show the losses of job d']
        self.assertEqual(set(self.buttons(tab)), {'pause job a', 'cancel job a', 'resume job b', 'cancel job b', 'resume job c', *shows})
        card = "[...document.querySelectorAll('.job')].find(j => j.querySelector('h3').textContent === 'a')"
        self.assertEqual(tab.run(card + ".querySelectorAll('.s-loss').length"), 2)
        self.assertEqual(tab.run(card + ".querySelectorAll('path.s-held-out').length"), 2)  # of the first set two are left beyond the gap
        self.assertEqual(tab.run(card + ".querySelectorAll('circle.f-held-out').length"), 7)
        self.assertNotIn('NaN', tab.run(card + '.outerHTML'))
        self.server.roles = ['infer', 'model']
        self.again(tab)
        self.assertEqual(set(self.buttons(tab)), set(shows))
        self.fine(tab)


if __name__ == '__main__':
    sys.exit(main(Looks))
