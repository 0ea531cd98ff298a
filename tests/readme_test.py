#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""README's first session, typed as it is printed, in a folder and at a port of its own. Speaks TAP. usage: tests/readme_test.py BUILD_DIR,
from the root."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import tap

BUILD = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


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


class Readme(unittest.TestCase):
    def test_first_session(self):
        with open(ROOT + '/README.md', encoding='utf-8') as f:
            text = f.read().split('## A first session\n')[1].split('### Training')[0].split('is a page of what happens')[0]
        commands = session(text)
        self.assertGreater(len(commands), 6)
        folder, port = tempfile.mkdtemp(prefix='hearth-readme-'), str(tap.free_port())
        self.addCleanup(shutil.rmtree, folder, True)
        script = ['set -e', 'trap \'kill $server; wait $server\' EXIT']
        for n, (command, _) in enumerate(commands):
            command = command.replace('/tmp/hs', folder).replace('8010', port).replace('$PWD/build', BUILD)
            if command.startswith('hearthd '):  # what follows is typed once it says that it is ready
                command = f'mkfifo {folder}/said; {command[:-1]} >{folder}/said & server=$!; head -n 1 {folder}/said'
            script.append(f'{{ {command}\n}} >{folder}/{n}' if '&' not in command or 'server=' in command else command)
            if 'server=' in command:
                script[-1] = f'{command} >{folder}/{n}'
        run = subprocess.run(['bash', '-c', '\n'.join(script)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr)
        for n, (command, printed) in enumerate(commands):
            with open(f'{folder}/{n}', encoding='utf-8') as f:
                said = f.read()
            for line in filter(None, printed):
                line = line.replace('/tmp/hs', folder).replace('8010', port)
                if not line.startswith('  top'):  # logits are the processor's to the last digit
                    self.assertIn(line.split(',"data"')[0], said, command)


if __name__ == '__main__':
    sys.exit(tap.run((Readme,)))
