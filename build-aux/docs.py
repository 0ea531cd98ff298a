#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The check of the documentation: its length, its lines, its links, and the files and functions that it names; and of the files
that comments in C name. usage: build-aux/docs.py, from the root. Prints each violation; exit 1 if there is any."""
import fnmatch
import glob
import os
import re
import subprocess
import sys

WORDS = 47500  # all pages but the changelog, which grows with each version
COLUMNS = 100
PARAGRAPH = 110  # words
SUFFIXES = 'c|h|cu|py|sh|mk|md|js|css|html|proto|map|in|txt|bin|yml|conf'
# What pages name that a build, a run or a user makes, and placeholders.
MADE = re.compile(r'^(build/|/|~|\.\.?/)|^(plan|trace|curve|cert|key|ca|here|program|model|t)\.|NAME|\bX[._]')
FOREIGN = 'expf.c MathFunctionsImpl.h tgmath.h'.split()
PLACEHOLDER = re.compile('MODULE|NAME')


def paragraphs(text):
    """(line number, lines) of each paragraph or list item of prose: no headings, tables, code or pictures."""
    block, start, fence = [], 0, False
    for number, line in enumerate(text.split('\n') + [''], 1):
        fence ^= line.startswith('```')
        prose = not (fence or line.startswith(('```', '|', '#', '[![', '![', '    ')) or not line.strip())
        item = re.match(r'\s*([-*]|\d+\.) ', line)
        if block and (not prose or item):
            yield start, block
            block = []
        if prose:
            start = start if block else number
            block.append(line)


def torn(text):
    """Lines that begin a table without its head: a blank line tears a table apart."""
    lines = text.split('\n')
    for k, line in enumerate(lines[1:-1], 1):
        if line.startswith('|') and not lines[k - 1].startswith('|') and not lines[k + 1].startswith('|--'):
            yield k + 1


def wide_code(text):
    """Lines of code that are too wide, but for what a program printed in a session."""
    fence = session = False
    for number, line in enumerate(text.split('\n'), 1):
        fence ^= line.startswith('```')
        session = (session or line.startswith('$ ')) and fence
        code = line.startswith('    ') or fence and (not session or line.startswith('$ '))
        if code and len(line) > COLUMNS:
            yield number


def anchors(text):
    """What a link to a page can name after its #."""
    heads = re.findall(r'^#+ (.*)$', re.sub(r'^```.*?^```', '', text, flags=re.M | re.S), re.M)
    return {re.sub(r'[^\w\- ]', '', head.lower()).replace(' ', '-') for head in heads}


def links(page, text):
    for link in re.findall(r'\]\(([^)\s]+)\)', re.sub(r'`[^`\n]*`', '', text)):
        if '://' in link:
            continue
        path, _, anchor = link.partition('#')
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(target):
            yield f'{page}: link to {link}, which is not there'
        elif anchor and anchor not in anchors(read(target)):
            yield f'{page}: link to {link}: no such heading'


def files(page, text, tracked, names):
    """Files of the tree that are named in `code` and are not there; a name alone may be in any folder."""
    for code in re.findall(r'`([^`\n]+)`', text):
        for word in re.findall(r'[\w./*{},-]+', code):
            if not re.fullmatch(rf'[\w./*{{}},-]*\w[}}*]?\.({SUFFIXES})', word) or MADE.search(word):
                continue
            for name in expand(word):
                anywhere = fnmatch.filter(tracked, name) + fnmatch.filter(tracked, '*/' + name)
                if not (anywhere if '/' in name else fnmatch.filter(names, name)):
                    yield f'{page}: names {name}, which is not there'


def functions(page, text, known):
    """Names of ours in `code` that no source has; hth_pool_ stands for all that begin so."""
    for word in set(re.findall(r'\bhth_\w+', ' '.join(re.findall(r'`([^`\n]+)`', text)))):
        if word not in known and not PLACEHOLDER.search(word) and not (word.endswith('_') and any(k.startswith(word) for k in known)):
            yield f'{page}: names {word}, which is not there'


def comments(path, names):
    """Files that a comment in C names and that are neither of the tree nor of others."""
    for number, line in enumerate(read(path).split('\n'), 1):
        for name in re.findall(r'\b\w+\.(?:c|h|cu)\b', ''.join(re.findall(r'//.*', line))):
            if name not in names and not re.search(rf'[/<]{name}|NAME|[`>.]{name}', line) and name not in FOREIGN:
                yield f'{path}:{number}: names {name}, which is not there'


def expand(word):
    braces = re.search(r'\{([^{}]*)\}', word)
    if not braces:
        return [word]
    return [name for part in braces[1].split(',') for name in expand(word[:braces.start()] + part + word[braces.end():])]


def read(page):
    with open(page, encoding='utf-8') as f:
        return f.read()


def main():
    tracked = subprocess.run(['git', 'ls-files'], capture_output=True, text=True, check=True).stdout.split('\n')
    names = {os.path.basename(path) for path in tracked}
    pages = ['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md'] + sorted(glob.glob('docs/**/*.md', recursive=True))
    known = set(re.findall(r'\bhth_\w+', ''.join(read(path) for path in tracked if path.endswith(('.c', '.h', '.cu')))))
    bad, words = [], 0
    for page in pages:
        text = read(page)
        words += len(text.split()) if page != 'CHANGELOG.md' else 0
        for number, block in paragraphs(text):
            bad += [f'{page}:{number + k}: {len(line)} columns' for k, line in enumerate(block)
                    if len(line) > COLUMNS and not re.search(r'\]\([^)]*$|://', line)]
            length = len(' '.join(block).split())
            if length > PARAGRAPH and not text.startswith('<!-- Printed by'):
                bad.append(f'{page}:{number}: a paragraph of {length} words; {PARAGRAPH} are too many to read at once')
        bad += [f'{page}:{number}: code of more than {COLUMNS} columns' for number in wide_code(text)]
        bad += [f'{page}:{number}: a table without a head' for number in torn(text)]
        bad += list(links(page, text)) + list(files(page, text, tracked, names)) + list(functions(page, text, known))
    for path in tracked:
        bad += list(comments(path, names)) if path.endswith(('.c', '.h', '.cu')) else []
    if words > WORDS:
        bad.append(f'the documentation has {words} words, its limit is {WORDS}')
    print('\n'.join(bad), end='\n' if bad else '')
    return bool(bad)


if __name__ == '__main__':
    sys.exit(main())
