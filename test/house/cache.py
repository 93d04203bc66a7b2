#!/usr/bin/env python3
"""Objects of one clone are found again by another, in a folder of another length: in each configuration of
scripts/run_tests.py, for objects of each kind.

usage: cache.py ROOT"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from report import Report, copy_tree, run, skip

sys.path.insert(0, str(pathlib.Path(sys.argv[1]) / 'scripts'))
import configurations  # noqa: E402

LEAST = 0.95
# Of a source alone, of several as one, of a generated source, of a source in C, and of a test that starts a program.
KINDS = [r'src/libverbena_base\.a\.p/.*(base_hash|base-unity0)\.cpp\.o$', r'test_engine\.p/.*\.o$',
         r'libsimulated_node\.a\.p/.*unity0.*\.o$', r'test_c_kv_c11\.p/.*\.c\.o$', r'test_programs_units\.p/.*\.o$',
         r'test_protocols\.p/.*\.o$']


def objects_of(build):
    """One object of each kind that this configuration has."""
    told = subprocess.run(['ninja', '-C', build, '-t', 'targets', 'all'], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    names = [line.partition(':')[0] for line in told.stdout.splitlines()]
    found = [next((name for name in names if re.search(kind, name)), None) for kind in KINDS]
    return [name for name in found if name]


def compile_in(tree, name, options, environment, report):
    """Configures, compiles the objects, and returns how many were asked for and how many the cache had."""
    build = tree / 'build-test' / name
    log = tree.parent / f'{name}.log'
    environment = {**environment, 'CCACHE_BASEDIR': str(tree), 'CCACHE_STATSLOG': str(log)}
    configured = run(['meson', 'setup', build, tree, *options], 600, env=environment)
    if not report.check(configured.returncode == 0, f'{name}: {configured.stdout[-2000:]}'):
        return 0, 0
    wanted = objects_of(build)
    log.unlink(missing_ok=True)
    compiled = run(['ninja', '-C', build, *wanted], 1200, env=environment)
    report.check(compiled.returncode == 0, f'{name}: {compiled.stdout[-2000:]}')
    return configurations.cached_in(log)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which('ccache'):
        skip('cache', 'ccache is not there')
    report = Report('cache')
    clang = shutil.which('clang++-19')
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch).resolve()
        usual = {key: value for key, value in os.environ.items()
                 if not key.startswith('CCACHE_') and key not in ('CC', 'CXX')}
        for name, options in configurations.CONFIGURATIONS.items():
            if name != 'plain' and not clang:
                continue
            if name == 'address':
                options = [*options, configurations.FUZZING]
            compilers = ('cc', 'c++') if name == 'plain' else ('clang-19', 'clang++-19')
            environment = {**usual, 'CC': f'ccache {compilers[0]}', 'CXX': f'ccache {compilers[1]}',
                           'CCACHE_DIR': str(scratch / 'cache'), 'CCACHE_NOHASHDIR': '1'}
            for place in ('one', 'another/and/longer'):
                tree = scratch / name / place / 'tree'
                copy_tree(root, tree)
                asked, hits = compile_in(tree, name, options, environment, report)
                if place == 'one':
                    report.check(asked >= 3 and hits == 0, f'{name}: {asked} objects, and {hits} were there before')
                else:
                    report.check(asked >= 3 and hits >= LEAST * asked,
                                 f'{name}: the second clone found {hits} of {asked} objects')
    report.end()


main()
