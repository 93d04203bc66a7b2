#!/usr/bin/env python3
"""docs/safety.md names the tests of its promises: each of them exists, as a test or as a file that must not compile."""

import pathlib
import re
import sys

from report import Report

DEFINED = re.compile(r'^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)', re.MULTILINE)
NAMED = re.compile(r'`(\w+\.\w+)`')
SECTION = '## Defects of SafeVerbs, and the tests here'


def rows(text):
    """The rows of the table, as defect and names of its tests."""
    lines = text.split(SECTION, 1)[1].splitlines() if SECTION in text else []
    cells = [line.strip().strip('|').split('|') for line in lines if line.startswith('| ')]
    return [(row[0].strip(), NAMED.findall(row[1])) for row in cells[1:] if len(row) == 2]


def problems(text, known):
    found = [f'{defect}: no test is named' for defect, names in rows(text) if not names]
    return found + [f'{defect}: there is no test {name}' for defect, names in rows(text) for name in names
                    if name not in known]


def self_test(report):
    table = SECTION + '\n| defect | tests |\n|---|---|\n| one | `Suite.Test` and `file.cpp` |\n'
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
    text = (root / 'docs' / 'safety.md').read_text()
    report.check(len(rows(text)) >= 10, 'the table of defects is not found')
    for problem in problems(text, known):
        report.check(False, problem)
    report.end()


main()
