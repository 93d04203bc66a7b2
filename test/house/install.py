#!/usr/bin/env python3
"""Installs the devel files into a staging directory and builds programs against them with nothing but pkg-config.

Also configures Verbena as a subproject: the parent gets the dependency, and none of our tests or programs."""

import json
import os
import pathlib
import re
import shlex
import sys
import tempfile

from report import Report, run

# Of the archive: a room each, what a simulation has of its own, and what tests replace.
PARTS = ['base', 'host', 'nic', 'link', 'engine', 'channel', 'session', 'node', 'mesh', 'kv', 'api', 'api_c', 'api_cxx',
         'api_coro', 'machine', 'apart']


def build_and_run(report, compiler, source, flags, work):
    program = work / f'{source.stem}-{pathlib.Path(compiler).name}'
    # The consumer's own warnings as errors: an installed header that warns breaks somebody's build.
    built = run([compiler, '-std=c++23', '-Wall', '-Wextra', '-Werror', source, '-o', program, *flags], cwd=work)
    if report.check(built.returncode == 0, f'{source.name} does not build with {compiler}:\n{built.stdout}'):
        ran = run([program], cwd=work, timeout_s=120)
        report.check(ran.returncode == 0,
                     f'{source.name} built with {compiler} ended with {ran.returncode}:\n{ran.stdout}')
        print(ran.stdout, end='')


def links_alone(compiler, flags, work):
    source = work / 'empty.cpp'
    source.write_text('int main() {}\n')
    return run([compiler, source, '-o', work / 'empty', *flags]).returncode == 0


def check_pc(report, pc, needed, root, build):
    text = pc.read_text()
    for place in (root, build):
        report.check(str(place) not in text, f'{pc.name} names {place}')
    for line in text.splitlines():
        if line.startswith(('Cflags:', 'Libs:')):
            leaks = [w for w in shlex.split(line)[1:] if not w.startswith(('-I', '-L', '-l', '-pthread'))]
            report.check(not leaks, f'{pc.name} forces flags on consumers: {leaks}')
    requires = next((line for line in text.splitlines() if line.startswith('Requires:')), '')
    for package in needed:
        report.check(package in requires, f'{pc.name} does not require {package}: a static link would fail')


def check_subproject(report, meson, root, work):
    parent = work / 'parent'
    (parent / 'subprojects').mkdir(parents=True)
    (parent / 'subprojects' / 'verbena').symlink_to(root)
    (parent / 'main.cpp').write_text('int main() {}\n')
    (parent / 'meson.build').write_text(
        "project('parent', 'cpp', meson_version: '>=1.0')\n"
        "executable('main', 'main.cpp', dependencies: dependency('verbena', fallback: 'verbena'))\n")
    # The PKG_CONFIG_PATH of a developer could hold an installed Verbena, which would be taken instead.
    environment = {k: v for k, v in os.environ.items() if not k.startswith('PKG_CONFIG')}
    setup = run([meson, 'setup', '--force-fallback-for=verbena', parent / 'build', parent], env=environment)
    if not report.check(setup.returncode == 0, f'as a subproject it does not configure:\n{setup.stdout}'):
        return
    targets = json.loads((parent / 'build' / 'meson-info' / 'intro-targets.json').read_text())
    names = sorted(t['name'] for t in targets)
    report.check(names == sorted(['main', 'verbena', *(f'verbena_{part}' for part in PARTS)]),
                 f'as a subproject it builds more than the archive: {names}')


def main():
    root, build, meson = (pathlib.Path(a) for a in sys.argv[1:4])
    compilers = [c for c in sys.argv[4:] if c]
    here = pathlib.Path(__file__).resolve().parent
    report = Report('install')
    with tempfile.TemporaryDirectory(prefix='verbena-install-') as directory:
        work = pathlib.Path(directory)
        stage = work / 'stage'
        installed = run([meson, 'install', '--no-rebuild', '--tags', 'devel', '-C', build],
                        env={**os.environ, 'DESTDIR': str(stage)})
        if not report.check(installed.returncode == 0, f'meson install failed:\n{installed.stdout}'):
            report.end()
        files = sorted(p for p in stage.rglob('*') if p.is_file())
        pcs = [p for p in files if p.name == 'verbena.pc']
        if not report.check(len(pcs) == 1, f'not one verbena.pc among {files}'):
            report.end()
        targets = json.loads((build / 'meson-info' / 'intro-targets.json').read_text())
        has_pmix = any(target['name'] == 'verbena-pmix' for target in targets)
        expected = {p.name for p in (root / 'include' / 'verbena').rglob('*') if p.is_file()}
        expected |= {'libverbena.a', 'verbena.pc', 'verbena-static.pc', 'verbenaConfig.cmake',
                     'verbenaConfigVersion.cmake'}
        if has_pmix:
            expected |= {'libverbena-pmix.a', 'verbena-pmix.pc'}
        else:
            expected -= {'mesh_pmix.hpp'}
        report.check({p.name for p in files} == expected,
                     f'installs {sorted(p.name for p in files)}, not {sorted(expected)}')
        check_pc(report, pcs[0], ['hwloc', 'numa', 'fmt', 'libxxhash'], root, build)
        if has_pmix:
            check_pc(report, pcs[0].with_name('verbena-pmix.pc'), ['verbena', 'pmix'], root, build)

        archive = next(p for p in files if p.name == 'libverbena.a')
        defined = run(['nm', '-C', '--defined-only', archive]).stdout
        prefix = next(line.split('=', 1)[1] for line in pcs[0].read_text().splitlines() if line.startswith('prefix='))
        environment = {**os.environ, 'PKG_CONFIG_PATH': str(pcs[0].parent)}
        # Plain is the way: the archive is static, its system libraries are shared. --static adds their private
        # libraries, whose development files a machine may lack, such as the libudev of hwloc on Debian.
        for mode in [[], ['--static']]:
            asked = run(['pkg-config', *mode, f'--define-variable=prefix={stage}{prefix}', '--cflags', '--libs',
                         'verbena'], env=environment)
            if not report.check(asked.returncode == 0, f'pkg-config {mode} failed:\n{asked.stdout}'):
                continue
            flags = shlex.split(asked.stdout)
            if mode and not links_alone(compilers[0], [f for f in flags if f != '-lverbena'], work):
                print('install: pkg-config --static is not tried: this machine lacks libraries that it names')
                continue
            for compiler in compilers:
                for source in sorted((here / 'consumer').glob('*.cpp')):
                    needs = re.search(r'^// needs: (.+)$', source.read_text(), re.MULTILINE)
                    if needs and needs.group(1) not in defined:
                        print(f'install: {source.name} is not tried: the archive has no {needs.group(1)} yet')
                        continue
                    build_and_run(report, compiler, source, flags, work)
        check_subproject(report, meson, root, work)
    report.end()


main()
