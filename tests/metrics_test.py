#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/metrics: what Prometheus' text format demands, and that the numbers are those of what was done. Speaks TAP.

usage: tests/metrics_test.py BUILD_DIR, from the root. prometheus_client (make deps-clients) reads it, too, where it is installed.
"""
import base64
import http.client
import json
import os
import re
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import tap  # noqa: E402

tap.use_python('prometheus_client', tap.clients_folder() + '/bin/python')
from onnx_small import identity  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
DIGITS = os.path.join(HERE, 'data', 'digits')
NAME = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
VALUE = re.compile(r'NaN|[+-]Inf|-?[0-9]+(\.[0-9]+)?$')  # no exponent: not every reader takes one
SUFFIXES = {'histogram': ('_bucket', '_sum', '_count'), 'summary': ('', '_sum', '_count')}


def labels_of(text):
    out, at = {}, 0
    while at < len(text):
        m = LABEL.match(text, at)
        assert m and m.group(1) not in out, text
        out[m.group(1)] = m.group(2)
        at = m.end()
    return out


def parse(text):
    """{family: (type, {(name, labels): value})}; raises AssertionError where the format is broken."""
    families, now, help_of = {}, None, set()
    assert text.endswith('\n') and '\n\n' not in text and '\r' not in text
    for line in text[:-1].split('\n'):
        if line.startswith('# '):
            kind, name, rest = line[2:].split(' ', 2)
            assert NAME.fullmatch(name), line
            if kind == 'HELP':
                assert name not in help_of and name not in families, f'{name}: not in one place'
                help_of.add(name)
            else:
                assert kind == 'TYPE' and rest in ('counter', 'gauge', 'histogram', 'summary') and name not in families, line
                families[name] = (rest, {})
            now = name
            continue
        m = re.fullmatch(r'([^{ ]+)(?:\{(.*)\})? (\S+)', line)
        assert m and NAME.fullmatch(m.group(1)) and VALUE.match(m.group(3)), line
        kind, samples = families[now]
        assert m.group(1) in [now + s for s in SUFFIXES.get(kind, ('',))], f'{line}: among the lines of {now}'
        key = m.group(1), tuple(sorted(labels_of(m.group(2) or '').items()))
        assert key not in samples, f'{line}: twice'
        samples[key] = float(m.group(3))
    for name, (kind, samples) in families.items():
        if kind == 'histogram':
            check_histogram(name, samples)
        if kind == 'counter':
            assert all(v >= 0 for v in samples.values()), name
    return families


def check_histogram(name, samples):
    rows = {}
    for (sample, labels), v in samples.items():
        if sample == name + '_bucket':
            le = dict(labels)['le']
            rows.setdefault(tuple(p for p in labels if p[0] != 'le'), []).append((float(le.replace('+Inf', 'inf')), v))
    for labels, buckets in rows.items():
        assert buckets == sorted(buckets) and buckets[-1][0] == float('inf'), name
        assert [v for _, v in buckets] == sorted(v for _, v in buckets), f'{name}: counts go back'
        assert buckets[-1][1] == samples[name + '_count', labels], f'{name}: +Inf is not the count'
        assert (name + '_sum', labels) in samples


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = tap.Daemon(BUILD, '--set', 'metrics.summaries=true')
        for name in ('ident', 'a "b" \\c'):
            cls.ask('POST', f'/v2/repository/models/{http_quote(name)}/load', {'parameters': {
                'config': '{}', 'file:1/model.onnx': base64.b64encode(identity('FP32', ('n', 3))).decode()}})

    @classmethod
    def tearDownClass(cls):
        cls.daemon.stop()

    @classmethod
    def ask(cls, verb, path, body=None, port=None):
        c = http.client.HTTPConnection('127.0.0.1', port or cls.daemon.http, timeout=300)
        c.request(verb, path, json.dumps(body) if body is not None else None)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        cls.status, cls.headers = r.status, r.headers
        return text

    def infer(self, rows, status=200, **more):
        self.ask('POST', '/v2/models/ident/infer', {**more, 'inputs': [
            {'name': 'INPUT0', 'shape': [rows, 3], 'datatype': 'FP32', 'data': [1.5] * (3 * rows if status == 200 else 1)}]})
        self.assertEqual(self.status, status)

    def scrape(self):
        text = self.ask('GET', '/metrics', port=self.daemon.metrics)
        self.assertEqual((self.status, self.headers['Content-Type']), (200, 'text/plain; charset=utf-8'))
        return text

    def model(self, families, name, **labels):
        kind = next(f for f in families if name == f or name.startswith(f + '_'))
        return families[kind][1][name, tuple(sorted({'model': 'ident', 'version': '1', **labels}.items()))]

    def test_format(self):
        self.infer(1)
        families = parse(self.scrape())
        self.assertIn(('nv_inference_count', (('model', 'a \\"b\\" \\\\c'), ('version', '1'))), families['nv_inference_count'][1])
        for name in ('nv_cpu_utilization', 'nv_cpu_memory_total_bytes', 'nv_model_load_duration_secs',
                     'nv_inference_pending_request_count', 'hearth_ledger_free_bytes', 'hearth_store_bytes_written_total'):
            self.assertIn(name, families)
        self.assertFalse([f for f in families if f.startswith('nv_gpu')])

    def test_counts(self):
        self.infer(1)
        before = parse(self.scrape())
        for _ in range(3):
            self.infer(2)
        self.infer(1, 400)
        after = parse(self.scrape())

        def grown(name, **labels):
            return self.model(after, name, **labels) - self.model(before, name, **labels)
        self.assertEqual(grown('nv_inference_request_success'), 3)
        self.assertEqual(grown('nv_inference_count'), 6)
        self.assertEqual(grown('nv_inference_exec_count'), 3)
        self.assertEqual(grown('nv_inference_first_response_histogram_ms_count'), 3)
        self.assertGreater(grown('nv_inference_first_response_histogram_ms_sum'), 0)
        self.assertEqual(grown('nv_inference_request_summary_us_count'), 3)
        self.assertGreater(grown('nv_inference_request_duration_us'), 0)
        for f, (kind, samples) in before.items():
            if kind == 'counter':
                for key, v in samples.items():
                    self.assertGreaterEqual(after[f][1][key], v, key)

    def test_failures(self):
        self.infer(1)
        before = parse(self.scrape())
        self.ask('POST', '/v2/models/ident/infer', {'inputs': [
            {'name': 'INPUT0', 'shape': [1, 4], 'datatype': 'FP32', 'data': [1, 2, 3, 4]}]})
        self.assertEqual(self.status, 400)
        after = parse(self.scrape())
        grown = {r: self.model(after, 'nv_inference_request_failure', reason=r) -
                 self.model(before, 'nv_inference_request_failure', reason=r) for r in ('REJECTED', 'CANCELED', 'BACKEND', 'OTHER')}
        self.assertEqual(grown, {'REJECTED': 0, 'CANCELED': 0, 'BACKEND': 0, 'OTHER': 1})

    def test_quantiles(self):
        for _ in range(20):
            self.infer(1)
        families = parse(self.scrape())
        q = [self.model(families, 'nv_inference_request_summary_us', quantile=x) for x in ('0.5', '0.9', '0.95', '0.99', '0.999')]
        self.assertEqual(q, sorted(q))
        self.assertGreater(q[0], 0)

    def hearth(self, *words):
        return subprocess.run([BUILD + '/hearth', '--server', f'ipc://{self.daemon.folder}/sock', *words], check=True, capture_output=True,
                              text=True).stdout

    def test_shares(self):
        """Of tenants with jobs: weights, shares, what runs and waits; and of no job its name."""
        self.hearth('import', 'new', DIGITS + '/untrained.onnx')
        train = ('train', 'new', '--data', DIGITS + '/train.safetensors', '--loss', 'softmax-xent', '--batch', '64', '--epochs', '100000', '--detach')
        self.hearth(*train, '--save-as', 'a-job')
        self.hearth(*train, '--save-as', 'another-job', '--after', 'a-job')
        me = f'uid:{os.getuid()}'

        def of(families, name, **labels):
            return families['hearth_tenant_' + name][1].get((
                'hearth_tenant_' + name, tuple(sorted({'device': 'cpu:0', 'tenant': me, **labels}.items()))))
        families = parse(self.scrape())
        self.assertEqual([of(families, name) for name in ('weight', 'entitlement', 'jobs_running')], [1, 1, 1])
        self.assertEqual([of(families, 'jobs_waiting', **{'for': what}) for what in ('job', 'memory', 'retry', 'share', 'tenant', 'turn')], [1, 0, 0, 0, 0, 0])
        end = time.monotonic() + 200
        while not of(families, 'share', resource='device_time'):
            self.assertLess(time.monotonic(), end)
            families = parse(self.scrape())
        parts = {dict(labels)['resource']: v for (_, labels), v in families['hearth_tenant_share'][1].items() if dict(labels)['tenant'] == me}
        self.assertLessEqual({'device_time', 'device_memory'}, set(parts))
        for (_, labels), v in families['hearth_tenant_dominant_share'][1].items():
            if dict(labels)['tenant'] == me:
                self.assertEqual((v, parts[dict(labels)['resource']]), (max(parts.values()),) * 2)
        text = ''.join(line for line in self.scrape().splitlines() if line.startswith('hearth_tenant_'))
        self.assertNotIn('a-job', text)
        for job in ('another-job', 'a-job'):
            self.hearth('cancel', job)
        self.assertIn(of(parse(self.scrape()), 'jobs_running'), (None, 0))

    def test_machine(self):
        self.scrape()
        families = parse(self.scrape())
        use, = families['nv_cpu_utilization'][1].values()
        total, = families['nv_cpu_memory_total_bytes'][1].values()
        used, = families['nv_cpu_memory_used_bytes'][1].values()
        self.assertTrue(0 <= use <= 1)
        with open('/proc/meminfo', encoding='utf-8') as f:
            self.assertEqual(total, 1024 * int(f.readline().split()[1]))
        self.assertTrue(0 < used < total)

    def test_prometheus_client(self):
        try:
            from prometheus_client.parser import text_string_to_metric_families
        except ImportError:
            self.skipTest('prometheus_client is not installed (make deps-clients)')
        self.infer(1)
        text = self.scrape()
        def plain(name):  # it calls every counter ..._total
            return name[:-6] if name.endswith('_total') else name
        theirs = {(plain(s.name), tuple(sorted(s.labels.items()))): s.value for f in text_string_to_metric_families(text) for s in f.samples}
        ours = {(plain(name), tuple((k, unescape(v)) for k, v in labels)): v for _, samples in parse(text).values()
                for (name, labels), v in samples.items()}
        self.assertEqual(set(theirs), set(ours))
        for key, v in ours.items():
            self.assertTrue(theirs[key] == v or v != v, key)

    def test_parser_is_strict(self):
        good = '# HELP a b\n# TYPE a counter\na{x="1"} 2\n'
        parse(good)
        for bad in (good[:-1], good + 'a{x="1"} 3\n', good + 'b 1\n', good + good, good.replace('2', '2e3'), good.replace('"1"', '1'),
                    good.replace('2', '-2'), good.replace('x=', '1x='), good.replace('counter', 'count'),
                    '# HELP h b\n# TYPE h histogram\nh_bucket{le="1"} 3\nh_bucket{le="+Inf"} 2\nh_sum 1\nh_count 2\n'):
            with self.assertRaises((AssertionError, KeyError), msg=bad):
                parse(bad)


def http_quote(name):
    return ''.join(c if c.isalnum() else '%%%02x' % ord(c) for c in name)


def unescape(text):
    return re.sub(r'\\(.)', lambda m: '\n' if m.group(1) == 'n' else m.group(1), text)


if __name__ == '__main__':
    os.chdir(os.path.dirname(HERE))
    sys.exit(tap.run((Metrics,)))
