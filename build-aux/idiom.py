#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Habits that C allows and this project does not. usage: build-aux/idiom.py [FILE..], from the root; without files
all of git's. Prints each violation; exit 1 if there is any.

- A chain of errors: `err = err == HTH_OK ? f() : err`, and the like after `return`. HTH_TRY, in a helper where something
  is held, or HTH_GOTO into the cleanup say the same in the order in which it happens.
- A ladder of errors: `if (err == HTH_OK) { err = f(); }`, three times of one variable in one function. Say the same with
  the same macros.
- Two `?:` in one statement; in tests, which compose cases, in one argument. In a list in braces each element may have one.
- Lines of more than 100 columns: clang-format leaves comments and some tables as they are.
"""
import re
import subprocess
import sys

HIDDEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
PLACE = r'\*?[A-Za-z_][\w.\[\]]*(?:->[\w.\[\]]+)*'  # err, *err, job->err
CHAINS = (
    re.compile(r'(' + PLACE + r') == HTH_OK(?: && [^?;]*)? \?.* : \1\)*$'),
    re.compile(r'(' + PLACE + r') != HTH_OK(?: \|\| [^?;]*)? \? \1 :'),
)
RUNG = re.compile(r'\bif \((' + PLACE + r') == HTH_OK(?: &&|\))')
FUNCTION = re.compile(r'^\{.*?^\}', re.M | re.S)
RUNGS = 3
COLUMNS = 100
MADE = re.compile(r'^tests/data/')  # printed by programs
TEST = re.compile(r'_test\.[ch]$|^tests/|^docs/')
LIST = re.compile(r'[=,(]$|(?:[=(,?:]|\breturn) ?\([\w *\[\]]+\)$')  # before the brace that opens a list


def hide(match):
    """Comments become blanks and texts zeros, line by line: both may hold any character."""
    fill = ' ' if match.group()[0] == '/' else '0'
    return ''.join(c if c == '\n' else fill for c in match.group())


def end_lines(match):
    """A macro may be a table of calls without semicolons: each of its lines is a statement."""
    return match.group().replace('\\\n', ';\n') + ';'


def statements(text):
    """(offset, text) of each statement, and of each element of a list in braces."""
    lists, depth, begin = [False], [0], 0  # of each open brace: is it a list, how many parentheses are open in it
    for at, c in enumerate(text):
        if c == '{':
            lists.append(lists[-1] or LIST.search(' '.join(text[max(0, at - 90):at].split())) is not None)
            depth.append(0)
        elif c == '}' and len(lists) > 1:
            lists.pop()
            depth.pop()
        elif c in '()':
            depth[-1] += 1 if c == '(' else -1
        if c in ';{}' or c == ',' and lists[-1] and depth[-1] == 0:
            yield begin, text[begin:at]
            begin = at + 1


def ladders(text):
    """The offset of the rung that is one too many, in each function that has one."""
    for function in FUNCTION.finditer(text):
        seen = {}
        for rung in RUNG.finditer(text, function.start(), function.end()):
            seen[rung[1]] = seen.get(rung[1], 0) + 1
            if seen[rung[1]] == RUNGS:
                yield rung.start()


def faults(path):
    with open(path, encoding='utf-8') as f:
        text = f.read()
    for number, line in enumerate(text.split('\n'), 1):
        if len(line) > COLUMNS and not MADE.search(path):
            yield f'{path}:{number}: {len(line)} columns'
    if path.endswith('.cu'):
        return
    text = HIDDEN.sub(hide, text)
    for at in ladders(text):
        yield f'{path}:{text.count(chr(10), 0, at) + 1}: a ladder of errors: use HTH_TRY or HTH_GOTO'
    text = re.sub(r'^\s*#(?:.*\\\n)*.*$', end_lines, text, flags=re.M)
    text = re.sub(r'^[A-Z]\w+\(.*\)$', r'\g<0>;', text, flags=re.M)  # a call of a macro that makes a function
    for begin, statement in statements(text):
        line = text.count('\n', 0, begin + len(statement) - len(statement.lstrip())) + 1
        if any(chain.search(' '.join(statement.split())) for chain in CHAINS):
            yield f'{path}:{line}: a chain of errors: use HTH_TRY or HTH_GOTO'
        elif max(part.count('?') for part in (statement.split(',') if TEST.search(path) else [statement])) > 1:
            yield f'{path}:{line}: two ?: in one statement'


def main():
    files = sys.argv[1:] or subprocess.run(['git', 'ls-files', '*.c', '*.h', '*.cu'], check=True, text=True,
                                           capture_output=True).stdout.split()
    found = [fault for path in files for fault in faults(path)]
    print(''.join(fault + '\n' for fault in found), end='')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
