#!/usr/bin/env python3
"""Programs that mpirun starts, four processes each.

    launched.py PROGRAM MODE            all four say that they are done, and end with 0; mode `alone` has no launcher
    launched.py PROGRAM words TREE      examples/mesh_words.cpp counts the words of TREE as this file does
    launched.py PROGRAM hosts TREE      the same without a launcher: each process has the list of all
    launched.py missing REASON          there is no program"""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'house'))
from report import Report, free_ports, run, skip  # noqa: E402

PROCESSES = 4
# A launcher that started this test is none of the program's.
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(('PMIX_', 'OMPI_', 'PMI_'))}


def mpirun(name, arguments, options=()):
    """Runs a program to its end in all processes."""
    if not shutil.which('mpirun'):
        skip(name, 'mpirun is not there (openmpi-bin)')
    # Open MPI asks for these of root, as who runs in a container is.
    environment = ENVIRONMENT | {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
    return run(['mpirun', *options, '-np', str(PROCESSES), '--oversubscribe', *arguments],
               env=environment)


def plant(tree, at):
    """A copy of a tree, with what no text has."""
    shutil.copytree(tree, at)
    (at / 'long').write_bytes(b'Ab' * 1000 + b'\n' + b'c' * 255 + b'\n' + b'D' * 256)
    (at / 'empty').touch()
    (at / 'bytes').write_bytes(bytes(range(256)) * 20)
    (at / 'link').symlink_to('long')
    (at / 'below').symlink_to('.')


def count_words(tree):
    """How often each word occurs below a directory."""
    counts = collections.Counter()
    for directory, _, names in os.walk(tree):
        for path in (pathlib.Path(directory) / name for name in names):
            if not path.is_symlink():
                counts.update(word.decode() for word in re.findall(b'[a-z]{1,255}', path.read_bytes().lower()))
    return counts


def run_by_hosts(report, arguments):
    """Runs a program in all processes, each with its id and the list. Returns what the first printed."""
    hosts = [f'127.0.0.{number}:{port}' for number, port in enumerate(free_ports(PROCESSES), 1)]
    with contextlib.ExitStack() as started:
        processes = [started.enter_context(subprocess.Popen(
            [*arguments, str(process), *hosts], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            env=ENVIRONMENT)) for process in range(PROCESSES)]
        said = [process.communicate()[0] for process in processes]
    for number, process in enumerate(processes):
        report.check(process.returncode == 0, f'process {number} ended with {process.returncode}')
        report.check(number == 0 or said[number] == '', f'process {number} printed {said[number]}')
    return said[0]


def check_words(report, program, mode, tree):
    with tempfile.TemporaryDirectory(prefix='verbena-words-') as directory:
        planted = pathlib.Path(directory) / 'tree'
        plant(tree, planted)
        counts = count_words(planted)
        report.check(len(counts) > 1000, f'{tree} has only {len(counts)} words')
        # A few of each process, and all of them.
        for top in (7, len(counts)):
            arguments = [program, str(top), str(planted)]
            if mode == 'hosts':
                said = run_by_hosts(report, arguments)
            else:
                ran = mpirun(report.name, arguments)
                report.check(ran.returncode == 0, f'ended with {ran.returncode}')
                said = ran.stdout
            lines = [f'{count:8} {word}'
                     for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:top]]
            lines.append(f'{sum(counts.values())} words, {len(counts)} different ones')
            print('\n'.join([*lines[:3], '...', lines[-1]]))
            is_same = '\n'.join(lines) + '\n' in said
            report.check(is_same, f'{top} words are not as here: {[*set(said.splitlines()) ^ set(lines)][:10]}')


def check_alone(report, program):
    ran = run([program, 'alone'], env=ENVIRONMENT)
    print(ran.stdout, end='')
    report.check(ran.returncode == 0, f'ended with {ran.returncode}')
    report.check('there is no PMIx server' in ran.stdout, 'does not say what is missing')


def check_launched(report, program, mode):
    options = []
    if mode == 'killed' and shutil.which('mpirun'):
        # Else the launcher ends all when one dies.
        options = ['--enable-recovery']
        if '(Open MPI) 4.' not in run(['mpirun', '--version']).stdout:
            skip(report.name, 'this mpirun is not of Open MPI 4, whose jobs may outlive a process')
    ran = mpirun(report.name, [program, mode], options)
    print(ran.stdout, end='')
    report.check(ran.returncode == 0, f'ended with {ran.returncode}')
    for process in range(PROCESSES):
        said = len(re.findall(rf'^process {process} of {PROCESSES} (?:joined|saw it)$', ran.stdout, re.MULTILINE))
        wanted = 2 if mode == 'twice' else 0 if (mode, process) == ('killed', 1) else 1
        report.check(said == wanted, f'process {process} was done {said} times, not {wanted}')


def main():
    program, mode, *tree = sys.argv[1:]
    if program == 'missing':
        skip('launched', mode)
    report = Report(f'{pathlib.Path(program).name} {mode}')
    if tree:
        check_words(report, program, mode, tree[0])
    elif mode == 'alone':
        check_alone(report, program)
    else:
        check_launched(report, program, mode)
    report.end()


main()
