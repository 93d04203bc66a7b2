#!/usr/bin/env python3
"""Instructions, indirect calls, locked instructions and cache lines of each operation and each of its sides, against
budgets.json: docs/benchmarks/budgets.md. The counts are of one thread and the same in every run.

usage: budgets.py PROGRAM COMPILER FLAGS                     checks
       budgets.py PROGRAM COMPILER FLAGS --write [--why TEXT]
                           stores what differs, here and in the page; figures that have grown need a reason
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'test' / 'house'))

import callgrind  # noqa: E402
from report import Report, run, skip  # noqa: E402

TABLE = ROOT / 'test' / 'budget' / 'budgets.json'
PAGE = ROOT / 'docs' / 'benchmarks' / 'budgets.md'
MARKS = ('<!-- written by test/budget/budgets.py -->\n', '<!-- end -->\n')
OPERATIONS = 2048
OPERATIONS_OF_LINES = 64
TIMEOUT_S = 240
TOLERANCE = 0.03
# Of a figure that is small, what a poll more in a hundred operations adds.
SLACK = {'instructions': 0.5, 'indirect_calls': 0.05, 'locked': 0.05, 'lines_read': 0.1, 'lines_written': 0.1}
WORDS = {'instructions': 'instructions', 'indirect_calls': 'indirect calls', 'locked': 'locked instructions',
         'lines_read': 'cache lines only read', 'lines_written': 'cache lines written'}
EMPTY = 'nothing'  # The operation whose cost is of the meter.
# glibc chooses its copies by the processor: those that every x86-64 has.
COPIES = 'glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-ERMS,-FSRM,-BMI2,-MOVBE,-RTM,-LZCNT'
COUNTED = re.compile(r'^(client|server) operations (\d+) brackets (\d+)(?: read (\d+) written (\d+))?$', re.MULTILINE)


class Failed(Exception):
    pass


# --- measuring

def run_program(command):
    done = run(command, TIMEOUT_S, env={**os.environ, 'GLIBC_TUNABLES': COPIES})
    if done.returncode != 0:
        raise Failed(f'{" ".join(map(str, command))} ended with {done.returncode}:\n{done.stdout}')
    return done.stdout


@functools.cache
def code_of(name):
    return callgrind.Code.of(name)


def count_instructions(program, operation):
    """By side: operations, brackets, instructions, locked ones and indirect calls, in all."""
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory) / 'out'
        text = run_program(['valgrind', '--tool=callgrind', '--collect-atstart=no', '--dump-instr=yes',
                            '--compress-strings=no', '--compress-pos=no', f'--callgrind-out-file={out}',
                            program, operation, 'instructions', OPERATIONS])
        profiles = [callgrind.Profile(path.read_text()) for path in sorted(out.parent.glob('out.*'))]
    profiles = {profile.side: profile for profile in profiles}
    counts = {}
    for side, operations, brackets, *_ in COUNTED.findall(text):
        locked, indirect = profiles[side].count(code_of)
        counts[side] = {'operations': int(operations), 'brackets': int(brackets), 'locked': locked,
                        'instructions': profiles[side].instructions, 'indirect_calls': indirect}
    return counts


def count_lines(program, operation):
    text = run_program([program, operation, 'lines', OPERATIONS_OF_LINES])
    return {side: {'lines_read': int(read) / int(operations), 'lines_written': int(written) / int(operations)}
            for side, operations, _, read, written in COUNTED.findall(text)}


def measure_one(program, operation):
    return count_instructions(program, operation), count_lines(program, operation)


def measure(program):
    """By operation and side: each figure of one operation."""
    operations = run_program([program, 'list']).split()
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        found = dict(zip(operations, pool.map(lambda name: measure_one(program, name), operations)))
    empty = found.pop(EMPTY)[0]
    figures = {}
    for name, (counts, lines) in found.items():
        figures[name] = {side: figures_of(count, empty[side], lines[side]) for side, count in counts.items()}
    return figures


def figures_of(count, empty, lines):
    meter = empty['instructions'] / empty['brackets'] * count['brackets']
    each = {'instructions': count['instructions'] - meter, 'locked': count['locked'],
            'indirect_calls': count['indirect_calls']}
    each = {name: value / count['operations'] for name, value in each.items()}
    return {name: round({**each, **lines}[name], 1 if name == 'instructions' else 2) for name in SLACK}


# --- judging

def is_apart(name, before, now):
    return abs(now - before) > max(TOLERANCE * before, SLACK[name])


def judge(stored, figures, write):
    """What is wrong with the figures, a sentence each. `write` is the command that stores them."""
    wrong = []
    for operation in sorted(stored.keys() | figures.keys()):
        sides, found = stored.get(operation, {}), figures.get(operation, {})
        for side in sorted(sides.keys() | found.keys()):
            if side not in sides or side not in found:
                what = 'is not in the table' if side in found else 'is not measured'
                wrong.append(f'{operation}, {side}: {what}; store the operations as they are: {write}')
                continue
            for name in SLACK:
                before, now = sides[side][name], found[side][name]
                if not is_apart(name, before, now):
                    continue
                change = f'{(now - before) / before:+.1%}' if before else 'from none'
                what = f'{operation}, {side}: {WORDS[name]} per operation were {before:g} and are {now:g} ({change})'
                if now > before:
                    wrong.append(f'{what}: take them out again; or store them with the reason, and say it in the '
                                 f'commit: {write} --why TEXT')
                else:
                    wrong.append(f'{what}: well done; store them, so that they stay: {write}')
    return wrong


def merged(stored, figures, why):
    """The table with the new figures where they are apart. ValueError: one has grown, and nobody says why."""
    table = {}
    for operation, sides in figures.items():
        table[operation] = {}
        for side, found in sides.items():
            row = dict(stored.get(operation, {}).get(side, {}))
            differing = [name for name in SLACK if name not in row or is_apart(name, row[name], found[name])]
            grown = [name for name in differing if name in row and found[name] > row[name]]
            if grown and not why:
                raise ValueError(f'{operation}, {side}: {WORDS[grown[0]]} have grown from {row[grown[0]]:g} to '
                                 f'{found[grown[0]]:g}: say why, with --why TEXT')
            row.update({name: found[name] for name in differing})
            if differing and why:
                row['why'] = why
            table[operation][side] = row
    return table


def check_judge(report):
    """Finds what is planted."""
    row = {'instructions': 200.0, 'indirect_calls': 1.0, 'locked': 0.0, 'lines_read': 1.0, 'lines_written': 1.0}
    stored = {'read': {'client': row}}

    def judged(**change):
        return judge(stored, {'read': {'client': {**row, **change}}}, 'WRITE')

    report.check(judged() == [], 'the same figures')
    report.check(judged(instructions=205.0) == [] and judged(instructions=195.0) == [], 'less than 3 % apart')
    for change, words in [({'instructions': 207.0}, ['read, client', '200', '207', '+3.5%', 'WRITE --why']),
                          ({'instructions': 193.0}, ['read, client', '200', '193', '-3.5%', 'WRITE']),
                          ({'locked': 1.0}, ['locked', '0', '1', 'from none', '--why']),
                          ({'lines_written': 1.5}, ['written', '--why']),
                          ({'indirect_calls': 1.1}, ['indirect', '--why'])]:
        found = judged(**change)
        report.check(len(found) == 1 and all(word in found[0] for word in words), f'planted {change}: {found}')
    report.check(len(judge(stored, {}, 'WRITE')) == 1, 'an operation that is not measured')
    report.check(len(judge({}, stored, 'WRITE')) == 1, 'an operation that is not in the table')
    grown = {'read': {'client': {**row, 'instructions': 300.0}}}
    try:
        merged(stored, grown, '')
        report.check(False, 'a grown figure is stored without a reason')
    except ValueError:
        report.check(True, '')
    report.check(merged(stored, grown, 'checks more')['read']['client'] ==
                 {**row, 'instructions': 300.0, 'why': 'checks more'}, 'a grown figure with its reason')
    near = {'read': {'client': {**row, 'instructions': 201.0}}}
    report.check(merged(stored, near, '') == stored, 'what is not apart stays')


# --- the table and its page

def built_by(program, compiler, flags):
    def first_line(command):
        return run(command).stdout.splitlines()[0].strip()

    # GCC prints the name that it was called by: g++, c++, x86_64-linux-gnu-g++-12.
    version = re.sub(r'^[\w+.-]+ \(', 'GCC (', first_line([compiler, '--version']))
    return {'compiler': version, 'flags': flags,
            'valgrind': first_line(['valgrind', '--version']), 'libc': ' '.join(platform.libc_ver()),
            'machine': platform.machine(), 'clock': first_line([program, 'clock'])}


def page_table(table):
    heads = ['operation', 'side', 'instructions', 'indirect calls', 'locked', 'lines read', 'ideal', 'lines written',
             'ideal']
    better = ['*better*', '', 'lower', 'lower', 'lower', 'lower', '', 'lower', '']
    lines = ['| ' + ' | '.join(heads) + ' |', '|---' * len(heads) + '|', '| ' + ' | '.join(better) + ' |']
    for operation, sides in table['operations'].items():
        for side, row in sides.items():
            ideal = table['ideal'].get(operation, {}).get(side, {})
            figures = [f'{row["instructions"]:.0f}', f'{row["indirect_calls"]:.2f}', f'{row["locked"]:.2f}',
                       f'{row["lines_read"]:.2f}', str(ideal.get('read', '')), f'{row["lines_written"]:.2f}',
                       str(ideal.get('written', ''))]
            lines.append(f'| `{operation}` | {side} | ' + ' | '.join(figures) + ' |')
    built = table['built']
    return ('\n'.join(lines) + f'\n\n{built["compiler"]}, {built["flags"]}; {built["valgrind"]}, {built["libc"]}, '
            f'{built["machine"]}.\n')


def parts_of_page():
    """The page before, in and behind the table."""
    before, rest = PAGE.read_text().split(MARKS[0])
    written, after = rest.split(MARKS[1])
    return before, written, after


def load():
    return json.loads(TABLE.read_text())


def store(table):
    TABLE.write_text(json.dumps(table, indent=1) + '\n')
    before, _, after = parts_of_page()
    PAGE.write_text(before + MARKS[0] + page_table(table) + MARKS[1] + after)


def check_page(report, table):
    report.check(parts_of_page()[1] == page_table(table),
                 f'{PAGE.name} has another table than {TABLE.name}: write both with --write')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('program', help='test/budget/budget of a build; empty if there is none')
    parser.add_argument('compiler')
    parser.add_argument('flags', help='the flags that count, in words')
    parser.add_argument('--write', action='store_true')
    parser.add_argument('--why', default='', metavar='TEXT')
    options = parser.parse_args()

    report = Report('budgets')
    callgrind.check(report)
    check_judge(report)
    table = load()
    if not options.write:
        check_page(report, table)
    if report.failures:
        report.end()
    for needed in ('valgrind', 'objdump'):
        if shutil.which(needed) is None:
            skip(report.name, f'{needed} is missing')
    if not options.program:
        skip(report.name, 'the program is not built: valgrind/callgrind.h was missing (Debian: valgrind; Fedora: '
             'valgrind-devel)')
    options.program = pathlib.Path(options.program).resolve()
    built = built_by(options.program, options.compiler, options.flags)
    differing = [f'{name} is `{built[name]}`, not `{table["built"].get(name)}`' for name in built
                 if built[name] != table['built'].get(name)]
    if differing and not options.write:
        skip(report.name, 'the budgets are of another build: ' + '; '.join(differing))
    try:
        figures = measure(options.program)
    except (Failed, subprocess.TimeoutExpired) as failure:
        report.check(False, str(failure))
        report.end()
    if options.write:
        # Another compiler's figures are not judged by this one's.
        stored = {} if differing else table['operations']
        try:
            store({**table, 'built': built, 'operations': merged(stored, figures, options.why)})
        except ValueError as refused:
            sys.exit(f'budgets: nothing is stored: {refused}')
        return
    write = f'python3 test/budget/budgets.py {options.program} {options.compiler} "{options.flags}" --write'
    for sentence in judge(table['operations'], figures, write):
        report.check(False, sentence)
    report.checks += sum(len(sides) for sides in figures.values()) * len(SLACK)
    report.end()


main()
