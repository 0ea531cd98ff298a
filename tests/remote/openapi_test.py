#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/openapi.json is valid OpenAPI, is what hearthd serves, and says what it answers. That it names every route, and no other, is
server/http/remote/openapi_test. Speaks TAP. usage: tests/remote/openapi_test.py BUILD_DIR, from the root."""
import http.client
import json
import os
import re
import sys
import unittest

sys.path.insert(0, 'tests')
import tap  # noqa: E402

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
if not tap.use_python('openapi_spec_validator', tap.clients_folder() + '/bin/python'):
    print('1..0 # SKIP openapi-spec-validator is not installed (make deps-clients)')
    sys.exit(0)
import jsonschema  # noqa: E402
import openapi_spec_validator  # noqa: E402

with open('docs/openapi.json', encoding='utf-8') as f:
    TEXT = f.read()
DOC = json.loads(TEXT)


class OpenApi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = tap.Daemon(BUILD)
        cls.addClassCleanup(cls.d.stop)

    def ask(self, method, path, body=None):
        c = http.client.HTTPConnection(self.d.address, timeout=120)
        self.addCleanup(c.close)
        c.request(method, path, body)
        r = c.getresponse()
        return r.status, r.getheader('Content-Type'), r.read()

    def test_valid(self):
        openapi_spec_validator.validate(DOC)
        broken = json.loads(TEXT)
        broken['paths']['/v2']['get']['responses'] = 7
        with self.assertRaises(Exception):
            openapi_spec_validator.validate(broken)

    def test_served(self):
        self.assertEqual(self.ask('GET', '/v2/hearth/openapi.json'), (200, 'application/json', TEXT.encode()))

    def test_version(self):
        with open('client/hearth.h', encoding='utf-8') as f:
            version = re.search(r'define HEARTH_VERSION\s+"(.*?)"', f.read())[1]
        self.assertEqual(DOC['info']['version'], version)

    def schema(self, part):
        """A part of the document with references that jsonschema finds; null where it may be."""
        def plain(v):
            if isinstance(v, list):
                return [plain(x) for x in v]
            if not isinstance(v, dict):
                return v
            v = {k: plain(x) for k, x in v.items()}
            if v.pop('nullable', False) and 'type' in v:
                v['type'] = [v['type'], 'null']
            return v
        return {**plain(part), 'components': plain(DOC['components'])}

    def test_answers(self):
        """What is asked without a name and a token is answered with a status and a body that the document has."""
        n = 0
        for path, item in DOC['paths'].items():
            for method in {'get', 'post'} & set(item):
                if '{' in path or path == '/':
                    continue
                status, kind, body = self.ask(method.upper(), path, '{}' if method == 'post' else None)
                with self.subTest(path=path, method=method, status=status):
                    self.assertIn(str(status), item[method]['responses'], body)
                    answer = item[method]['responses'][str(status)]
                    if '$ref' in answer:
                        answer = DOC['components']['responses'][answer['$ref'].split('/')[-1]]
                    if body:
                        jsonschema.validate(json.loads(body), self.schema(answer['content'][kind]['schema']))
                n += 1
        self.assertGreater(n, 20)


if __name__ == '__main__':
    sys.exit(tap.run([OpenApi]))
