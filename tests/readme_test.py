#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""README's first session, what docs/training.md continues it with, and those of docs/http.md and docs/embed.md, typed as printed, in a
folder and at a port of its own; and that the pages' links lead somewhere. Speaks TAP. usage: tests/readme_test.py BUILD_DIR, from the root."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tap

tap.need_numpy()

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(page):
    with open(os.path.join(ROOT, page), encoding='utf-8') as f:
        return f.read()


def session(text):
    """(command, what it prints) of the blocks of a section, in order; a command goes on while a line ends in a backslash or in a quote
    that is open."""
    found = []
    for language, block in re.findall(r'^```(\w*)\n(.*?)^```', text, re.M | re.S):
        for line in block.split('\n') if language == '' else ():
            if line.startswith('$ '):
                found.append([line[2:], []])
            elif found and (found[-1][0].endswith('\\') or found[-1][0].count("'") % 2):
                found[-1][0] += '\n' + line
            elif found:
                found[-1][1].append(line)
    return found


def anchors(text):
    """What links to a page can name behind its #."""
    heads = re.findall(r'^#+ (.*)$', re.sub(r'^```.*?^```', '', text, flags=re.M | re.S), re.M)
    return {re.sub(r'[^\w\- ]', '', head.lower()).replace(' ', '-') for head in heads}


class Readme(unittest.TestCase):
    def type(self, commands, folder, port):
        """What each of the commands says, typed in a folder and at a port of this test's own instead of the printed ones."""
        own, own_port = tempfile.mkdtemp(prefix='hearth-readme-'), str(tap.free_port())
        self.addCleanup(shutil.rmtree, own, True)
        script = ['set -e', 'trap \'[ -z "$server" ] || { kill $server; wait $server; }\' EXIT']
        for n, (command, _) in enumerate(commands):
            command = command.replace(folder, own).replace(port, own_port).replace('$PWD/build', BUILD).replace('python3 -c', sys.executable + ' -c')
            if command.startswith('hearthd '):  # what follows is typed once it says that it is ready
                self.assertTrue(command.endswith(' &'), command)
                command = f'mkfifo {own}/said; {command[:-1]} >{own}/said & server=$!; head -n 1 {own}/said'
            script.append(f'{{ {command}\n}} >{own}/{n}' if 'server=' not in command else f'{command} >{own}/{n}')
        run = subprocess.run(['bash', '-c', '\n'.join(script)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr)
        said = []
        for n, (command, printed) in enumerate(commands):
            with open(f'{own}/{n}', encoding='utf-8') as f:
                said.append(f.read())
            for line in filter(None, printed):
                line = line.replace(folder, own).replace(port, own_port)
                if not line.startswith('  top'):  # logits are the processor's to the last digit
                    self.assertIn(line.split(',"data"')[0], said[-1], command)
        return said

    def test_first_session(self):
        commands = session(read('README.md').split('## A first session\n')[1].split('\n## ')[0])
        self.assertGreater(len(commands), 6)
        more = session(read('docs/training.md').split('\n## ')[0])
        self.assertEqual(len(more), 3)  # import, train, infer
        said = self.type(commands + more, '/tmp/hs', '8010')[-1]
        accuracy = re.search(r'^accuracy ([\d.]+) %', said, re.M)
        self.assertGreater(float(accuracy[1]), 90, said)

    def test_http_session(self):
        commands = session(read('docs/http.md').split('## Content and jobs\n')[1].split('\n## ')[0])
        self.assertGreater(len(commands), 15)
        self.type(commands, '/tmp/hh', '8020')

    def test_embed_session(self):
        commands = session(read('docs/embed.md'))
        self.assertEqual(len(commands), 6)
        self.type(commands, '/tmp/he', '8030')

    def test_size(self):
        lines = read('README.md').split('\n')[:-1]
        self.assertLessEqual(len(lines), 120)
        self.assertLessEqual(max(map(len, lines)), 100)

    def test_links(self):
        pages = ['README.md', 'CONTRIBUTING.md'] + [os.path.relpath(p, ROOT) for p in glob.glob(ROOT + '/docs/**/*.md', recursive=True)]
        self.assertGreater(len(pages), 25)
        linked = set()
        for page in pages:
            for link in re.findall(r'\]\(([^)\s]+)\)', re.sub(r'`[^`]*`', '', read(page))):
                if '://' in link:
                    continue
                path, _, anchor = link.partition('#')
                target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
                self.assertTrue(os.path.exists(os.path.join(ROOT, target)), f'{page}: {link}')
                if anchor:
                    self.assertIn(anchor, anchors(read(target)), f'{page}: {link}')
                if page == 'README.md':
                    linked.add(target)
        self.assertEqual({p for p in pages if p != 'README.md'} - linked, set())  # its index has every page


if __name__ == '__main__':
    sys.exit(tap.run((Readme,)))
