#!/usr/bin/env python3
"""Each program that scripts, tests and pages start comes with a package that scripts/packages.sh names, with one that
such a package depends on, or with every Debian. A recommendation is not enough: nobody installs those here.

usage: commands.py ROOT"""

import functools
import pathlib
import re
import shutil
import subprocess
import sys

from report import Report, skip

SETS = ('core', 'build', 'demo', 'test', 'lint', 'bench', 'mpi', 'pmix', 'ucx', 'libfabric', 'redis', 'matplotlib',
        'aarch64', 'softroce', 'fresh')
# Where a word of a shell is a command.
COMMAND = re.compile(r'(?:^|[|;&!(]|\b(?:if|then|do|else|while|until|exec|env|sudo|nice|time)\b'
                     r'|\btimeout (?:-\S+ \d* ?)*\d+)\s*(?:[A-Z_]+=\S* )*([a-z][\w+.-]*)(?=[\s)|;]|$)', re.MULTILINE)
# Lists that Python starts, and what scripts and builds look for.
STARTED_LIST = re.compile(r"[\[(=]\s*f?'([a-z][\w+.-]*)(?: -|', )")
NAMED = [re.compile(r"\bwhich\(\s*'([a-z][\w+.-]*)'"), re.compile(r"\bcommand -v ([a-z][\w+.-]*)"),
         re.compile(r"\bfind_program\(\s*'([a-z][\w+.-]*)'")]
SHELL_OF_PAGES = re.compile(r'^```sh\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# What a program starts by itself.
STARTS = {'cmake': ('make',), 'meson': ('ninja',), 'help2man': ('perl',)}
# Programs that are used where they are there, and of which another takes the place.
NOT_STARTED = {'dnf', 'rpm', 'sudo', 'spack', 'eb', 'podman', 'ucx_info', 'perf', 'clang++', 'systemd-analyze'}
# These say what they need, or run in a machine of their own.
NOT_CHECKED = {'fresh-machine.sh', 'packages-debian.sh', 'machine.sh'}
COMMENT = re.compile(r'(?:^|\s)#.*$', re.MULTILINE)


def commands_in(path):
    """Names that may be programs. Words that are none are found nowhere, and left out later."""
    text = path.read_text(encoding='utf-8', errors='replace')
    if path.suffix == '.md':
        return {name for block in SHELL_OF_PAGES.findall(text) for name in COMMAND.findall(COMMENT.sub('', block))}
    text = COMMENT.sub('', text)
    found = {name for pattern in NAMED for name in pattern.findall(text)}
    if path.suffix == '.py':
        found.update(STARTED_LIST.findall(text))
    return found | (set(COMMAND.findall(text)) if path.suffix == '.sh' else set())


def files_of(root):
    for top, pattern in [('scripts', '*'), ('test', '*'), ('packaging', '*.sh'), ('docs', '*.md'), ('examples', '*.md'),
                         ('.', 'README.md'), ('bench', '*.sh'), ('src', 'meson.build'), ('.', 'meson.build')]:
        walk = (root / top).glob if top == '.' else (root / top).rglob
        yield from (path for path in walk(pattern) if path.name not in NOT_CHECKED and
                    (path.suffix in ('.sh', '.py', '.md') or path.name == 'meson.build'))


def field(package, name):
    told = subprocess.run(['dpkg-query', '-W', '-f', '${' + name + '}', package], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, timeout=60)
    return told.stdout


def listed(*arguments):
    return subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, check=False, timeout=120).stdout.split('\n')


def all_packages():
    """(depends, essential) of each installed package; what a package provides has the same."""
    found = {}
    for line in listed('dpkg-query', '-W', '-f', '${Package}\t${Depends}, ${Pre-Depends}\t${Essential}\t${Provides}\n'):
        if line.count('\t') != 3:
            continue
        package, depends, essential, provides = line.split('\t')
        names = set(re.findall(r'(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)', depends))
        found[package] = (names, essential == 'yes')
        for name in re.findall(r'(?:^|,)\s*([a-z0-9][a-z0-9+.-]*)', provides):
            found.setdefault(name, ({package}, False))
    return found


def closure(wanted, packages):
    """The packages of `wanted` and all that they depend on."""
    done, rest = set(), list(wanted)
    while rest:
        package = rest.pop()
        if package not in done and package in packages:
            done.add(package)
            rest += packages[package][0]
    return done


@functools.cache
def owner_of(program):
    """The package that brings a program; nothing where the machine has it from elsewhere, or not at all."""
    path = shutil.which(program, path='/usr/bin:/bin:/usr/sbin:/sbin')
    if not path:
        return ''
    for place in (path, str(pathlib.Path(path).resolve()), path.removeprefix('/usr'), '/usr' + path):
        for line in listed('dpkg-query', '-S', place):
            if line and not line.startswith('diversion'):
                return line.partition(':')[0].split(',')[0]
    return ''


def named_sets(root):
    script = f'source {root}/scripts/packages.sh; for set in {" ".join(SETS)}; do verbena_packages_apt "$set"; done'
    return set(' '.join(listed('bash', '-c', script)).split())


def missing(names, root):
    """Programs of `names` whose package no set brings."""
    packages = all_packages()
    essential = {name for name, (_, is_essential) in packages.items() if is_essential}
    brought = closure(named_sets(root) | essential | {'apt', 'dpkg'}, packages)
    return {name: owner_of(name) for name in names if owner_of(name) and owner_of(name) not in brought}


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    if not shutil.which('dpkg-query'):
        skip('commands', 'the packages of this machine are not those of Debian')
    report = Report('commands')
    started = {}
    for path in files_of(root):
        for name in commands_in(path) - NOT_STARTED:
            for program in (name, *STARTS.get(name, ())):
                started.setdefault(program, path.relative_to(root))
    known = {name for name in started if owner_of(name)}
    report.check(known >= {'cmake', 'make', 'meson', 'ninja', 'patch', 'valgrind'},
                 f'self-test: it finds no more programs than {sorted(known)}')
    report.check(not missing({'dpkg-deb', 'no-such-program'}, root), 'self-test: what every Debian has is missing')
    planted = closure({'core'}, {'core': ({'needed'}, False), 'needed': (set(), False), 'other': (set(), False)})
    report.check(planted == {'core', 'needed'}, f'self-test: a package brings {planted}')
    for name, package in sorted(missing(known, root).items()):
        report.check(False, f'{started[name]} starts {name}, and no set of scripts/packages.sh brings {package}')
    report.end()


main()
