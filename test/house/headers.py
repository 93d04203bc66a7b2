#!/usr/bin/env python3
"""Each header compiles alone, first in its file: public ones as a consumer compiles them, C API headers as C11 too. A
private one that a source of src/ includes first is left out: the build has compiled it so. Those for MPI are
compiled where there is an MPI. The sources that the command line names compile alone, too: users build them one by one,
and the tests several as one, which hides that an #include is missing.

usage: headers.py ROOT SOURCE... -- COMPILER..."""

import concurrent.futures
import pathlib
import re
import shlex
import shutil
import sys

from report import Report, run

WARNINGS = ['-Wall', '-Wextra', '-Wpedantic', '-Wconversion', '-Wshadow', '-Wold-style-cast', '-Werror']


def mpi_options():
    """Where MPI's headers are, as system headers, for theirs warn; None: there is no MPI."""
    wrapper = shutil.which('mpicxx')
    shown = run([wrapper, '-show']) if wrapper else None
    if not shown or shown.returncode != 0:
        return None
    # The compiler finds an MPI of the system's own directories by itself.
    return [word.replace('-I', '-isystem', 1) for word in shlex.split(shown.stdout) if word.startswith('-I')]


def first_include(source):
    found = re.search(r'^#include ["<](.*)[">]$', source.read_text(), re.MULTILINE)
    return found[1] if found else ''


def main():
    root = pathlib.Path(sys.argv[1])
    at = sys.argv.index('--')
    sources, compilers = sys.argv[2:at], [c for c in sys.argv[at + 1:] if c]
    report = Report('headers')

    public = root / 'include'
    installed = (public / 'meson.build').read_text()
    jobs = []
    needs_mpi = dict.fromkeys(('verbena/mesh_mpi.hpp', 'verbena/mpi.h'), mpi_options())
    for path in sorted((public / 'verbena').rglob('*.h*')):
        name = path.relative_to(public).as_posix()
        report.check(f"'{name}'" in installed, f'{name} is not installed: list it in include/meson.build')
        options = needs_mpi.get(name, [])
        if options is None:
            print(f'headers: {name} is not compiled: there is no mpicxx (libopenmpi-dev)')
            continue
        for compiler in compilers:
            jobs.append((name, [compiler, '-std=c++23', *WARNINGS, '-I', public, *options]))
        if path.suffix == '.h':
            c_warnings = [w for w in WARNINGS if w != '-Wold-style-cast']
            jobs.append((name, ['cc', '-x', 'c', '-std=c11', *c_warnings, '-I', public, *options]))
    # Private ones need what the project gives its own objects; one compiler tells whether an include is missing: the
    # last, which is Clang where there is one, and takes half the time.
    own = [compilers[-1], '-std=c++23', '-D_GNU_SOURCE', '-w', '-I', public, '-I', root / 'src']
    compiled = {first_include(source) for source in (root / 'src').rglob('*.cpp')}
    for path in sorted((root / 'src').rglob('*.hpp')):
        name = path.relative_to(root / 'src').as_posix()
        report.check('#pragma once\n' in path.read_text(), f'{name} has no #pragma once')
        if name in compiled:
            continue
        jobs.append((name, own))

    def compile_alone(job):
        name, command = job
        language = ['-x', 'c++'] if '-x' not in command else []
        # Twice: a header without a guard does not compile the second time.
        text = f'#include <{name}>\n#include <{name}>\n'
        return name, command[0], run(['sh', '-c', 'printf %s "$0" | "$@"', text, *command, *language,
                                      '-fsyntax-only', '-'])

    def compile_source(source):
        return pathlib.Path(source).name, own[0], run([*own, '-fsyntax-only', source])

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for name, compiler, result in (*pool.map(compile_alone, jobs), *pool.map(compile_source, sources)):
            report.check(result.returncode == 0, f'{name} does not compile alone with {compiler}:\n{result.stdout}')
    report.end()


main()
