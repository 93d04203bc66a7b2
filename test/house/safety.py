#!/usr/bin/env python3
"""docs/safety.md and SECURITY.md name the tests of their promises: each exists, as a test or as a file that must not
compile."""

import pathlib
import re
import sys

from report import Report

DEFINED = re.compile(r'^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)', re.MULTILINE)
NAMED = re.compile(r'`(\w+\.\w+)`')
SECTIONS = {'docs/safety.md': '## Defects of SafeVerbs, and the tests here',
            'SECURITY.md': '## What others can cost a process, and the tests'}


def rows(section):
    """The rows of a section's table, as the first column and the tests that the last one names."""
    cells = [line.strip().strip('|').split('|') for line in section.split('\n## ')[0].splitlines()
             if line.startswith('| ')]
    return [(row[0].strip(), NAMED.findall(row[-1])) for row in cells[1:]]


def problems(section, known):
    found = [f'{promise}: no test is named' for promise, names in rows(section) if not names]
    return found + [f'{promise}: there is no test {name}' for promise, names in rows(section) for name in names
                    if name not in known]


def self_test(report):
    table = '\n| defect | tests |\n|---|---|\n| one | `Suite.Test` and `file.cpp` |\n'
    known = {'Suite.Test', 'file.cpp'}
    report.check(len(rows(table)) == 1 and not problems(table, known), 'self-test: refuses what is right')
    for wrong in ['| one | `Suite.Other` |\n', '| one | nothing |\n']:
        report.check(len(problems(table + wrong, known)) == 1, f'self-test: does not see {wrong}')


def main():
    root = pathlib.Path(sys.argv[1])
    report = Report('safety')
    self_test(report)
    known = {path.name for path in (root / 'test' / 'house' / 'nocompile').glob('*.cpp')}
    for path in (root / 'test').rglob('*_test.cpp'):
        known |= {f'{suite}.{name}' for suite, name in DEFINED.findall(path.read_text())}
    for page, title in SECTIONS.items():
        section = (root / page).read_text().partition(title + '\n')[2]
        report.check(len(rows(section)) >= 10, f'{page}: the table is not found')
        for problem in problems(section, known):
            report.check(False, f'{page}: {problem}')
    report.end()


main()
