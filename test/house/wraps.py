#!/usr/bin/env python3
"""`--wrap-mode=forcefallback` takes every wrap: a copy of the tree in which each stands for the system's package.

usage: wraps.py ROOT MESON"""

import json
import pathlib
import re
import sys
import tempfile

from report import Report, copy_tree, run

# What stands for each: its variable, and the library of the system.
STAND_INS = {'fmt': ('fmt_dep', "cpp.find_library('fmt')"), 'xxhash': ('xxhash_dep', "cpp.find_library('xxhash')"),
             'gtest': ('gtest_main_dep', "[cpp.find_library('gtest_main'), cpp.find_library('gtest')]"),
             'cli11': ('CLI11_dep', '[]')}


def main():
    root, meson = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    report = Report('wraps')
    wraps = sorted(path.stem for path in (root / 'subprojects').glob('*.wrap'))
    report.check(wraps == sorted(STAND_INS), f'there are wraps for {wraps}, and stand-ins for {sorted(STAND_INS)}')
    with tempfile.TemporaryDirectory() as scratch:
        tree = pathlib.Path(scratch) / 'tree'
        copy_tree(root, tree)
        for name, (variable, dependency) in STAND_INS.items():
            text = (tree / 'subprojects' / f'{name}.wrap').read_text(encoding='utf-8')
            directory = tree / 'subprojects' / re.search(r'^directory *= *(.*)$', text, re.MULTILINE)[1]
            directory.mkdir()
            names = {variable, *re.findall(r'= (\w+)$', text.partition('[provide]')[2], re.MULTILINE)}
            lines = [f'{each} = declare_dependency(dependencies: {dependency})' for each in sorted(names)]
            (directory / 'meson.build').write_text(
                '\n'.join([f"project('{name}', 'cpp', version: '99.0')", "cpp = meson.get_compiler('cpp')", *lines])
                + '\n', encoding='utf-8')
        build = pathlib.Path(scratch) / 'build'
        done = run([meson, 'setup', '--wrap-mode=forcefallback', '-Dtests=enabled', '-Dprograms=enabled', build, tree])
        if report.check(done.returncode == 0, f'it does not configure:\n{done.stdout[-3000:]}'):
            told = json.loads(run([meson, 'introspect', '--projectinfo', build]).stdout)
            taken = sorted(each['name'] for each in told['subprojects'])
            report.check(taken == wraps, f'of the wraps {wraps} it takes {taken}')
    report.end()


main()
