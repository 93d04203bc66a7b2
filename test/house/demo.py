#!/usr/bin/env python3
"""Each pair of demo/ is whole: a C file that compiles without a warning, a C++ file that is a program or must not
compile (nocompile.py sees to those), and a row of the README. The C files are not run: they need a device, and are
wrong."""

import pathlib
import re
import sys

from report import Report, run

FLAGS = ['-std=c11', '-O2', '-Wall', '-Wextra', '-Werror', '-c', '-o', '/dev/null']
NAME = re.compile(r'^\d\d_\w+$')


def problems(name, c_text, cpp_text, readme, programs):
    """What is wrong with one pair; a text is None where the file is missing."""
    if c_text is None or cpp_text is None:
        return [f'{name}: one of the two files is missing']
    found = []
    if not NAME.match(name):
        found.append(f'{name}: is not named NN_name')
    if 'BUG' not in c_text or '#include <infiniband/verbs.h>' not in c_text:
        found.append(f'{name}.c: does not use verbs, or does not say where the BUG is')
    if ('int main()' in cpp_text) == ('#ifdef WRONG' in cpp_text):
        found.append(f'{name}.cpp: is neither a program nor what must not compile, or is both')
    if 'int main()' in cpp_text and f"'{name}'" not in programs:
        found.append(f'{name}.cpp: is a program that demo/meson.build does not run')
    if f'| `{name}` |' not in readme:
        found.append(f'{name}: has no row in demo/README.md')
    return found


def self_test(report):
    c_text = '#include <infiniband/verbs.h>\n/* BUG */'
    rows = '| `01_a` |'
    report.check(not problems('01_a', c_text, '#ifdef WRONG', rows, ''), 'self-test: refuses what is right')
    for wrong in [('01_a', None, '#ifdef WRONG', rows, ''), ('01_a', c_text, None, rows, ''),
                  ('a', c_text, '#ifdef WRONG', '| `a` |', ''), ('01_a', '/* BUG */', '#ifdef WRONG', rows, ''),
                  ('01_a', c_text, '', rows, ''), ('01_a', c_text, 'int main() {}', rows, "'02_a'"),
                  ('01_a', c_text, '#ifdef WRONG', '', '')]:
        report.check(len(problems(*wrong)) == 1, f'self-test: does not see what is wrong with {wrong}')


def main():
    root = pathlib.Path(sys.argv[1])
    compilers = sys.argv[2:]
    report = Report('demo')
    self_test(report)
    demo = root / 'demo'
    texts = {path.name: path.read_text() for path in demo.iterdir() if path.is_file()}
    names = sorted({pathlib.Path(name).stem for name in texts if name.endswith(('.c', '.cpp'))})
    report.check(len(names) >= 8, f'only {len(names)} pairs in {demo}')
    for name in names:
        for problem in problems(name, texts.get(f'{name}.c'), texts.get(f'{name}.cpp'), texts['README.md'],
                                texts['meson.build']):
            report.check(False, problem)
        for compiler in compilers:
            made = run([compiler, *FLAGS, demo / f'{name}.c'])
            report.check(made.returncode == 0, f'{name}.c does not compile with {compiler}:\n{made.stdout}')
    report.end()


main()
