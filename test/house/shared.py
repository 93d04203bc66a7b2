#!/usr/bin/env python3
"""The shared library: its soname, the names that leave it, and programs in C, C++ and Fortran that are linked with it.

    shared.py check ROOT LIBRARY ABI_VERSION   names are those of packaging/abi/symbols.txt
    shared.py write ROOT LIBRARY               stores them there: docs/abi.md says when"""

import os
import pathlib
import re
import shutil
import sys
import tempfile

from report import Report, run

# Classes that the public headers declare and only the library defines: nobody can name them, and they may change.
PRIVATE = re.compile(r'verbena::(rdma::Memory::Owner|rdma::(Node|Listener)::Impl|rdma::Connection::Client'
                     r'|SlabManager::State|kv::PollingClient'
                     r'|typed::detail::(LinkState|MeshLaneState|QueuePairState|StartedOperations|Region))::')
LINE = re.compile(r'^[0-9a-f]+ (?P<kind>\w) (?P<name>[^@\s]+)@@(?P<version>\S+)$', re.MULTILINE)


def symbols(library):
    """(kind, name, version) of each name that leaves the library, mangled."""
    listing = run(['nm', '-D', '--defined-only', '--with-symbol-versions', library]).stdout
    # The version itself is a name, too.
    return [match.groups() for match in LINE.finditer(listing) if match['kind'] != 'A']


def stable(found):
    """Names that programs use. Weak ones are left out: inline functions and tables of classes are in programs, too."""
    names = sorted({name for kind, name, _ in found if kind not in 'WV'})
    plain = run(['c++filt', *names]).stdout.splitlines()
    return [name for name, readable in zip(names, plain, strict=True) if not PRIVATE.match(readable)]


def virtual_functions(headers):
    """Declarations of virtual functions, by header, in the order that tables of functions have."""
    found = []
    for name, text in headers:
        plain = re.sub(r'//[^\n]*', '', text)
        found += [f'{name}: {" ".join(each.split())}' for each in re.findall(r'\bvirtual ([^;{]*)[;{]', plain)]
    return found


def public_headers(root):
    include = root / 'include' / 'verbena'
    return [(str(path.relative_to(include)), path.read_text()) for path in sorted(include.rglob('*.hpp'))]


def differences(stored, found):
    gone, new = sorted(set(stored) - set(found)), sorted(set(found) - set(stored))
    said = []
    if gone:
        said.append('names are gone, so programs that use them would not start: keep them, or raise abi_version in '
                    f'meson.build (docs/abi.md): {gone}')
    if new:
        said.append(f'names are new: store them with `test/house/shared.py write ROOT LIBRARY`: {new}')
    return said


def declared_calls(root):
    """Names of the C calls that the headers declare, as the library has them."""
    names = set()
    for header in (root / 'include' / 'verbena').rglob('*.h'):
        text = re.sub(r'/\*.*?\*/', '', header.read_text(), flags=re.DOTALL)
        renamed = dict(re.findall(r'^#define (\w+) (verbena_\w+)$', text, re.MULTILINE))
        for name in re.findall(r'^(?!typedef|static|#)\w[\w *]*?\b(\w+)\([^;{]*\);', text, re.MULTILINE):
            names.add(renamed.get(name, name))
    return names


def check_names(report, root, found, abi_version):
    report.check(len(found) > 300, f'only {len(found)} names leave the library')
    for _, name, version in found:
        report.check(version == f'VERBENA_{abi_version}', f'{name} has the version {version}')
    exported = {name for _, name, _ in found}
    calls = declared_calls(root)
    report.check(len(calls) > 150, f'only {len(calls)} calls are found in the headers')
    for name in sorted(calls - exported):
        report.check(False, f'{name} is declared by a public header, and does not leave the library')
    foreign = [name for name in exported if not re.match(r'verbena_|_Z(T[VIS])?N[KRO]*7verbena', name)]
    report.check(not foreign, f'names of others leave the library: {foreign}')
    stored = (root / 'packaging' / 'abi' / 'symbols.txt').read_text().split()
    for difference in differences(stored, stable(found)):
        report.check(False, difference)
    tables = (root / 'packaging' / 'abi' / 'virtual.txt').read_text().splitlines()
    changed = [each for each in virtual_functions(public_headers(root)) if each not in tables]
    report.check(virtual_functions(public_headers(root)) == tables,
                 'virtual functions are not those of packaging/abi/virtual.txt, in its order, so programs would call '
                 f'others: raise abi_version in meson.build (docs/abi.md), and `write`: {changed}')


def check_programs(report, root, library):
    """Programs against a directory that holds the shared library, and no archive."""
    with tempfile.TemporaryDirectory(prefix='verbena-shared-') as directory:
        work = pathlib.Path(directory)
        soname = re.search(r'SONAME.*\[(.*)\]', run(['readelf', '-d', library]).stdout)[1]
        shutil.copy(library, work / soname)
        (work / 'libverbena.so').symlink_to(soname)
        flags = ['-I', root / 'include', '-L', work, '-lverbena']
        fortran = [root / 'include' / 'verbena' / 'verbena.f90', root / 'test' / 'consumers' / 'calls.f90', '-J', work]
        for compiler, arguments in (('cc', ['-std=c11', root / 'examples' / 'hello.c']),
                                    ('c++', ['-std=c++23', root / 'test' / 'house' / 'consumer' / 'basics.cpp']),
                                    ('gfortran', ['-ffree-line-length-none', *fortran])):
            if not shutil.which(compiler):
                print(f'shared: no {compiler}')
                continue
            program = work / f'{compiler}.out'
            built = run([compiler, *arguments, '-o', program, *flags])
            if report.check(built.returncode == 0, f'{compiler} does not link with it:\n{built.stdout}'):
                ran = run([program], timeout_s=60, env={**os.environ, 'LD_LIBRARY_PATH': str(work)})
                report.check(ran.returncode == 0, f'a program of {compiler} ended with {ran.returncode}:\n{ran.stdout}')
        # Names of C++ headers are in templates and inline functions: each example links.
        for source in sorted((root / 'examples').glob('*.cpp')):
            if re.search(r'mesh_(mpi|pmix)\.hpp', source.read_text()):
                continue  # It needs one more library.
            built = run(['c++', '-std=c++23', '-O0', source, '-o', work / 'example', *flags])
            report.check(built.returncode == 0, f'{source.name} does not link with it:\n{built.stdout}')


def self_test(report):
    report.check(any('gone' in each for each in differences(['a', 'b'], ['a'])), 'self-test: misses a name that went')
    report.check(any('new' in each for each in differences(['a'], ['a', 'b'])), 'self-test: misses a new name')
    report.check(virtual_functions([('a.hpp', 'virtual int f(int a,\n  int b) = 0;  // virtual g();\nint h();')])
                 == ['a.hpp: int f(int a, int b) = 0'], 'self-test: reads virtual functions wrongly')
    report.check(not differences(['a'], ['a']), 'self-test: finds a difference in the same names')


def main():
    what, root, library, *rest = sys.argv[1:]
    root = pathlib.Path(root).resolve()
    stored = root / 'packaging' / 'abi' / 'symbols.txt'
    if what == 'write':
        stored.write_text('\n'.join(stable(symbols(library))) + '\n')
        stored.with_name('virtual.txt').write_text('\n'.join(virtual_functions(public_headers(root))) + '\n')
        return
    report = Report('shared')
    self_test(report)
    dynamic = run(['readelf', '-d', library]).stdout
    report.check(f'[libverbena.so.{rest[0]}]' in dynamic, f'the soname is not libverbena.so.{rest[0]}')
    report.check('NODELETE' in dynamic, 'dlclose would remove code that threads run')
    check_names(report, root, symbols(library), rest[0])
    check_programs(report, root, library)
    report.end()


if __name__ == '__main__':
    main()
