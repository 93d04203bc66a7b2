#!/usr/bin/env python3
"""The types behind the names that leave the shared library are those that packaging/abi stores: abidiff compares.

    abi.py check ROOT LIBRARY ARCHIVE   the library is asked for its names, the archive for the sources that define them
    abi.py write ROOT LIBRARY ARCHIVE   stores this tree's: docs/abi.md says when

The sources that define names are compiled once more, with debug information and without optimization. What they use of
others is left open: nobody runs it."""

import lzma
import os
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

from report import Report, run, skip
from shared import stable, symbols

# The compiler of the stored types: another one's standard library has other members.
MAJOR = 12
# Sources of these many are compiled as one.
TOGETHER = 6
PACKAGES = ['libibverbs', 'librdmacm', 'numa', 'hwloc', 'fmt', 'libxxhash', 'libsodium']
FLAGS = ['-std=c++23', '-O0', '-g', '-fPIC', '-fvisibility=hidden', '-D_GNU_SOURCE', '-w']
# Attributes that name a type by its id.
REFERENCES = ('type-id', 'naming-typedef-id', 'def-of-decl-id')
# abidiff's exit code, in bits.
CHANGED, BREAKING = 4, 8


def sources(root, names, archive):
    """Sources that define one of `names`, in the archive's order. Its members are named by the path."""
    by_member = {str(path.relative_to(root / 'src')).replace('/', '_') + '.o': path
                 for path in (root / 'src').rglob('*.cpp')}
    found = {}
    for line in run(['nm', '-A', '--defined-only', archive]).stdout.splitlines():
        where, _, rest = line.rpartition(':')
        if rest.split()[-1] in names:
            found[by_member[where.rpartition(':')[2]]] = True
    return list(found)


def described(report, root, names, archive, work):
    """What abidw says of a library that has `names`, or None."""
    packages = [name for name in PACKAGES if run(['pkg-config', '--exists', name]).returncode == 0]
    flags = [*FLAGS, f'-I{root}/include', f'-I{root}/src',
             *shlex.split(run(['pkg-config', '--cflags', *packages]).stdout)]
    chosen = sources(root, names, archive)
    units = []
    for begin in range(0, len(chosen), TOGETHER):
        unit = f'unit{begin}.cpp'
        (work / unit).write_text(''.join(f'#include "{path}"\n' for path in chosen[begin:begin + TOGETHER]))
        units.append(unit)
    library = work / 'libverbena.so'
    built = run(['g++', *flags, '-shared', *units, f'-Wl,--version-script={root}/src/libverbena.map',
                 '-Wl,--unresolved-symbols=ignore-all', '-o', library], cwd=work)
    if not report.check(built.returncode == 0, f'does not compile with debug information:\n{built.stdout}'):
        return None
    out = work / 'all.abi'
    said = run(['abidw', '--no-corpus-path', '--no-comp-dir-path', '--out-file', out, library])
    return out if report.check(said.returncode == 0, f'abidw ended with {said.returncode}:\n{said.stdout}') else None


class Pruned:
    """The declarations with one of `names` in abidw's description, and what they are made of, as far as programs see
    it: classes of the tree that no public header defines are names, and those of the standard library are sizes.
    Members that are no data are in the layout of nothing, but for virtual ones. abidw names no pure virtual function:
    shared.py compares those."""

    def __init__(self, tree, names, root):
        self.root = tree.getroot()
        self.close_private(root)
        self.parents = {child: parent for parent in self.root.iter() for child in parent}
        self.types = {}
        for element in self.root.iter():
            if 'id' in element.attrib:
                self.types.setdefault(element.get('id'), []).append(element)
        self.names = names
        self.kept, self.around, waiting = set(), set(), []
        waiting += [element for element in self.root.iter() if self.is_named(element)]
        while waiting:
            element = waiting.pop()
            if element in self.kept:
                continue
            self.kept.add(element)
            for inner in self.parts(element):
                for reference in REFERENCES:
                    waiting += self.types.get(inner.get(reference), [])
            while (element := self.parents.get(element)) is not None:
                self.around.add(element)
        for symbol in self.root.iter('elf-symbol'):
            if symbol.get('name') in names:
                self.kept.add(symbol)
                self.around.add(self.parents[symbol])
        self.remove(self.root)

    def close_private(self, root):
        for element in self.root.iter():
            path = element.get('filepath', '')
            if element.tag in ('class-decl', 'union-decl') and path and not path.startswith(f'{root}/include/'):
                for child in list(element):
                    element.remove(child)
                if path.startswith(f'{root}/'):
                    element.attrib.pop('size-in-bits', None)
                    element.set('is-declaration-only', 'yes')
            # They would change with every edit.
            for place in ('filepath', 'line', 'column'):
                element.attrib.pop(place, None)

    def is_named(self, element):
        return element.get('elf-symbol-id', '').split('@')[0] in self.names

    def is_part(self, element):
        """Whether it is in the layout of the class around it."""
        if element.tag == 'member-function':
            return element.get('vtable-offset') is not None
        return element.tag not in ('member-type', 'member-template')

    def parts(self, element):
        yield element
        for child in element:
            if self.is_part(child):
                yield from self.parts(child)

    def remove(self, element):
        for child in list(element):
            is_wanted = child in self.kept or child in self.around
            if is_wanted:
                self.remove(child)
            elif not is_wanted and not (element in self.kept and self.is_part(child)):
                element.remove(child)


def write_pruned(all_of_it, names, root, out):
    tree = ElementTree.parse(all_of_it)
    Pruned(tree, names, root)
    ElementTree.indent(tree, ' ')
    tree.write(out)


def compare(stored, found):
    """abidiff's exit code, and what it says."""
    compared = run(['abidiff', '--no-default-suppression', stored, found])
    return compared.returncode, compared.stdout


def self_test(report, found, work):
    """A struct of C's that has grown and a call that is gone are found."""
    text = found.read_text()
    planted = work / 'planted.abi'
    for pattern, other in ((r"(<class-decl name=\"RdmaOptions\" size-in-bits=\")\d+", r'\g<1>99968'),
                           (r'<elf-symbol name="verbena_version"[^>]*>', '')):
        changed, count = re.subn(pattern, other, text, count=1)
        planted.write_text(changed)
        code, said = compare(found, planted)
        report.check(count == 1 and code & CHANGED, f'self-test: abidiff does not find {pattern} changed:\n{said}')


def main():
    what, root, library, archive = sys.argv[1:]
    root = pathlib.Path(root).resolve()
    stored = root / 'packaging' / 'abi' / 'libverbena.abi.xz'
    for tool, package in (('abidw', 'abigail-tools'), ('abidiff', 'abigail-tools'), ('g++', 'g++'),
                          ('pkg-config', 'pkg-config')):
        if not shutil.which(tool):
            skip('abi', f'no {tool}: apt-get install {package}')
    compiler = run(['g++', '-dumpversion']).stdout.strip()
    if os.uname().machine != 'x86_64' or compiler.split('.')[0] != str(MAJOR):
        skip('abi', f'types are stored for GCC {MAJOR} on x86_64, and this is GCC {compiler} on {os.uname().machine}')
    report = Report('abi')
    names = set(stable(symbols(library)))
    with tempfile.TemporaryDirectory(prefix='verbena-abi-') as directory:
        work = pathlib.Path(directory)
        all_of_it = described(report, root, names, archive, work)
        if all_of_it is None:
            report.end()
        found = work / 'found.abi'
        write_pruned(all_of_it, names, root, found)
        if what == 'write':
            stored.write_bytes(lzma.compress(found.read_bytes(), preset=9))
            report.end()
        before = work / 'stored.abi'
        before.write_bytes(lzma.decompress(stored.read_bytes()))
        self_test(report, found, work)
        code, said = compare(before, found)
        report.check(not code & BREAKING, 'programs that were linked with the stored interface break: keep it, or '
                     f'raise abi_version in meson.build (docs/abi.md)\n{said}')
        report.check(code in (0, CHANGED, CHANGED | BREAKING), f'abidiff ended with {code}:\n{said}')
        report.check(code & BREAKING or not code & CHANGED, 'the interface has grown, or a type behind it has changed: '
                     f'look at it, then store it with `test/house/abi.py write ROOT LIBRARY ARCHIVE`\n{said}')
    report.end()


main()
