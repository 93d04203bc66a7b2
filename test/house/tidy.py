#!/usr/bin/env python3
"""Style that no compiler and no formatter sees: line length, waits, error handling, notes to self."""

import pathlib
import re
import sys

from report import Report

# As .clang-format has it; this one also looks at comments that cannot be wrapped, scripts and build files.
MAX_COLUMNS = 120

CODE = ('.hpp', '.cpp', '.h', '.c')
TEXT = CODE + ('.py', '.sh', '.build', '.f90')
DATA_PATH = ('src/nic/', 'src/engine/', 'src/channel/', 'src/session/', 'src/kv/')

# (what, pattern, directories it is forbidden in, why). Comments are not exempt for the first: a note is a debt.
RULES = [
    ('note', r'\b(TO' r'DO|FIX' r'ME|XX' r'X|HA' r'CK)\b', ('',), 'write an issue, or do it'),
    ('sleep', r'\b(sleep_for|sleep_until|usleep|nanosleep)\s*\(|(?<![\w.>])(::)?sleep\s*\(\s*\d', ('src/',),
     'wait for the event, with a deadline'),
    ('catch-all', r'catch\s*\(\s*\.\.\.\s*\)', ('src/', 'include/'), 'catch what can be thrown'),
    ('std::function', r'std::(move_only_)?function\b', DATA_PATH, 'allocates and hides the callee on a data path'),
    ('output', r'std::(cout|cerr)\b|#include\s*<iostream>', ('src/', 'include/'),
     'a library does not print; programs use fmt or stdio'),
    ('using namespace', r'^\s*using namespace (?!std::(chrono_)?literals)', ('include/',), 'it reaches every consumer'),
    ('NULL', r'\bNULL\b', ('src/', 'include/', 'test/'), 'nullptr'),
    ('fmt', r'#include\s*<fmt/format\.h>', ('src/', 'test/', 'bench/'),
     '<fmt/core.h> has format, format_to, format_to_n and print, and does not compile the formatter in every file'),
    ('option name', r'\badd_(option|flag|subcommand)\(\s*"[^"]*\s', ('src/', 'test/', 'bench/'),
     'CLI11 2.4 refuses a name with a space when the program starts; put the form into the description'),
    ('volatile', r'\bvolatile\b(?!\s*\()', ('include/',), 'an atomic says what is ordered'),
]
# One file has it for all; C11 has no nullptr.
EXEMPT = {('fmt', 'src/base/format.cpp'), ('NULL', 'include/verbena/mpi.h'), ('NULL', 'test/mesh/launched_c.c')}
COMPILED = [(what, re.compile(pattern), where, why) for what, pattern, where, why in RULES]
COMMENT = re.compile(r'//.*$|^\s*\*.*$')


def violations(name, text):
    """Failures of one file; `name` is its path from the root."""
    found = []
    code = name.endswith(CODE)
    for number, line in enumerate(text.splitlines(), 1):
        where = f'{name}:{number}'
        if len(line) > MAX_COLUMNS:
            found.append(f'{where}: {len(line)} columns, {MAX_COLUMNS} at most')
        if line != line.rstrip():
            found.append(f'{where}: space at the end of the line')
        if code and '\t' in line:
            found.append(f'{where}: a tab')
        for what, pattern, directories, why in COMPILED:
            if what != 'note' and not code:
                continue
            if not name.startswith(directories) or (what, name) in EXEMPT:
                continue
            if pattern.search(line if what == 'note' else COMMENT.sub('', line)):
                found.append(f'{where}: {what}: {why}')
    if text and not text.endswith('\n'):
        found.append(f'{name}: no newline at the end')
    if name.endswith('.hpp') and '#pragma once' not in text:
        found.append(f'{name}: no #pragma once')
    return found


def self_test(report):
    for name, line in [('src/kv/a.cpp', '// TO' 'DO later'), ('src/kv/a.cpp', 'std::this_thread::sleep_for(1ms);'),
                       ('src/host/a.cpp', '} catch (...) {'), ('src/engine/a.cpp', 'std::function<void()> f;'),
                       ('src/kv/a.cpp', 'x' * 121), ('src/kv/a.cpp', 'int a; '), ('src/kv/a.cpp', 'return NULL;'),
                       ('src/kv/a.cpp', '#include <fmt/format.h>')]:
        report.check(len(violations(name, line + '\n')) == 1, f'self-test: does not find {line} in {name}')
    for name, line in [('src/kv/a.cpp', '// sleep_for(1s) is never used'),
                       ('test/a.cpp', 'std::function<void()> f;'),
                       ('src/kv/a.cpp', 'x' * 120), ('src/kv/a.cpp', 'policy.sleep(1);')]:
        report.check(not violations(name, line + '\n'), f'self-test: refuses {line} in {name}')


def main():
    root = pathlib.Path(sys.argv[1])
    report = Report('tidy')
    self_test(report)
    for directory in ['include', 'src', 'test', 'demo', 'examples', 'bench', 'scripts']:
        for path in sorted((root / directory).rglob('*')):
            if path.suffix in TEXT and path.is_file():
                found = violations(path.relative_to(root).as_posix(), path.read_text())
                report.check(not found, '\n  '.join(found))
    report.end()


main()
