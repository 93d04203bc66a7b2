#!/usr/bin/env python3
"""Recipes under packaging/: versions, options and names are those of the build; what the machine can parse, parses.

    packaging.py ROOT VERSION ABI_VERSION [VERBENA_KV]"""

import pathlib
import re
import shutil
import sys
import tempfile

from report import Report, run

# Options that Meson has itself, or whose names a recipe fills in.
BUILT_IN = {'default_library', 'b_ndebug', 'unity', 'unity_size'}


def options_of(text):
    return set(re.findall(r'-D(\w+)=', text)) - BUILT_IN


def unknown_options(text, options):
    return sorted(options_of(text) - options)


def parses(source, path):
    try:
        compile(source, str(path), 'exec')
    except SyntaxError as error:
        return str(error)
    return ''


def check_versions(report, packaging, version, abi_version):
    changelog = (packaging / 'debian' / 'changelog').read_text()
    report.check(changelog.startswith(f'verbena ({version})'), f'debian/changelog is not of version {version}')
    report.check(f'version("{version}"' in (packaging / 'spack' / 'package.py').read_text(), f'Spack lacks {version}')
    recipes = list((packaging / 'easybuild').glob('*.eb'))
    report.check([recipe for recipe in recipes if recipe.name.startswith(f'verbena-{version}-')
                  and f"version = '{version}'" in recipe.read_text()], f'EasyBuild lacks {version}')
    control = (packaging / 'debian' / 'control').read_text()
    report.check(f'Package: libverbena{abi_version}\n' in control, f'debian/control has no libverbena{abi_version}')
    report.check((packaging / 'debian' / f'libverbena{abi_version}.install').exists(), 'its .install file is missing')
    symbols = (packaging.parent / 'src' / 'libverbena.map').read_text()
    report.check(f'VERBENA_{abi_version} {{' in symbols, f'src/libverbena.map has no VERBENA_{abi_version}')


def check_unit(report, packaging, program):
    """systemd reads it without a warning, with the program of this build and none of the manuals."""
    unit = (packaging / 'systemd' / 'verbena-kv.service').read_text()
    user = re.search(r'^User=(.*)$', unit, re.MULTILINE)[1]
    made = (packaging / 'systemd' / 'verbena.conf').read_text()
    report.check(re.search(rf'^u {user} ', made, re.MULTILINE), f'verbena.conf makes no user {user}')
    if not shutil.which('systemd-analyze') or program is None:
        print('packaging: the unit is not verified: it needs systemd-analyze, and programs')
        return
    here = re.sub(r'^ExecStart=\S+', f'ExecStart={program}', unit, flags=re.MULTILINE)
    here = re.sub(r'^Documentation=.*\n', '', here, flags=re.MULTILINE)
    with tempfile.TemporaryDirectory(prefix='verbena-unit-') as directory:
        path = pathlib.Path(directory) / 'verbena-kv.service'
        for text, is_right in ((here, True), (here.replace('RestrictRealtime=', 'RestrictUnreal='), False)):
            path.write_text(text)
            said = run(['systemd-analyze', 'verify', path], timeout_s=60)
            # Units of the machine may be wrong, too.
            wrong = [line for line in said.stdout.splitlines() if 'verbena' in line]
            report.check(bool(wrong) != is_right, f'systemd says of the unit: {said.stdout}' if is_right
                         else 'self-test: systemd does not find a setting that is none')


def main():
    root, version, abi_version, *program = sys.argv[1:]
    packaging = pathlib.Path(root) / 'packaging'
    report = Report('packaging')
    options = set(re.findall(r"^option\('(\w+)'", (packaging.parent / 'meson_options.txt').read_text(), re.MULTILINE))
    report.check(unknown_options('-Dverbs=x -Dno_such=y', options) == ['no_such'], 'self-test: misses an option')
    report.check(parses('def', 'planted'), 'self-test: misses what does not parse')
    for path in [*packaging.glob('spack/*.py'), *packaging.glob('easybuild/*.eb')]:
        report.check(not parses(path.read_text(), path), f'{path.name}: {parses(path.read_text(), path)}')
    for path in [packaging / 'debian' / 'rules', *packaging.glob('spack/*.py'), *packaging.glob('easybuild/*.eb')]:
        unknown = unknown_options(path.read_text(), options)
        report.check(not unknown, f'{path.name} sets options that meson_options.txt has not: {unknown}')
    check_versions(report, packaging, version, abi_version)
    check_unit(report, packaging, pathlib.Path(program[0]).resolve() if program else None)
    report.end()


main()
