#!/usr/bin/env python3
"""Clean verdicts of clang-tidy are kept only as long as nothing that led to them has changed, sources that clang-tidy
looks at as one go together, and stay together when another is added: scripts/clang_tidy.py on trees of a few files.

usage: verdicts.py ROOT CLANG_TIDY CLANG"""

import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from report import Report, skip

HEADER = '#pragma once\ninline int twice(int value) { return 2 * value; }\n'
PLANTED = HEADER + 'inline int* nothing() { return 0; }\n'
EXCUSED = HEADER + 'inline int* nothing() { return 0; }  // NOLINT(modernize-use-nullptr): planted\n'


class Tree:
    """A checkout with one source and one header, and what its build would compile."""

    def __init__(self, top, root, compiler):
        self.top = top
        self.build = top / 'build'
        for name in ('scripts', 'src', 'build'):
            (top / name).mkdir(parents=True)
        shutil.copy(root / 'scripts' / 'clang_tidy.py', top / 'scripts')
        (top / '.clang-tidy').write_text("Checks: '-*,modernize-use-nullptr'\nWarningsAsErrors: '*'\n"
                                         "HeaderFilterRegex: '.*'\n", encoding='utf-8')
        (top / 'src' / 'a.cpp').write_text('#include "a.hpp"\nint four() { return twice(2); }\n', encoding='utf-8')
        self.header = top / 'src' / 'a.hpp'
        self.compiler = compiler
        self.compiles('a')

    def compiles(self, *names):
        commands = [{'directory': str(self.build), 'file': f'../src/{name}.cpp', 'output': f'{name}.o',
                     'command': f'{self.compiler} -std=c++20 -o {name}.o -c ../src/{name}.cpp'} for name in names]
        (self.build / 'compile_commands.json').write_text(json.dumps(commands), encoding='utf-8')

    def look(self, tidy, header, verdicts):
        """Whether it is clean, and whether a kept verdict said so."""
        self.header.write_text(header, encoding='utf-8')
        done = subprocess.run([sys.executable, self.top / 'scripts' / 'clang_tidy.py', '--verdicts', verdicts, tidy,
                               self.build], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False, timeout=300)
        return done.returncode == 0, '1 of 1 batches were found clean before' in done.stdout, done.stdout


def check_groups(root, report):
    """A source more changes the group that it comes into, and no other."""
    specification = importlib.util.spec_from_file_location('clang_tidy', root / 'scripts' / 'clang_tidy.py')
    script = importlib.util.module_from_spec(specification)
    sys.modules['clang_tidy'] = script
    specification.loader.exec_module(script)
    with tempfile.TemporaryDirectory() as scratch:
        script.ROOT = pathlib.Path(scratch)
        sources = []
        for number in range(100):
            path = pathlib.Path(scratch) / 'src' / f'source_{number}.cpp'
            path.parent.mkdir(exist_ok=True)
            path.write_text('int number();\n', encoding='utf-8')
            sources.append(script.Source(path, (), {}, [], 'clang'))
        told = [{source.path.name for source in batch} for batch in script.batches_of(sources)]
        report.check(sum(map(len, told)) == 100 and max(map(len, told)) <= script.BATCH, f'groups of 100: {told}')
        for left_out in range(100):
            rest = [{each.path.name for each in batch}
                    for batch in script.batches_of(sources[:left_out] + sources[left_out + 1:])]
            # It joins a group, or makes two of one.
            others = [group for group in told if group not in rest]
            report.check(len(others) <= 2, f'with {sources[left_out].path.name} {len(others)} groups are others')


def main():
    root, tidy, compiler = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if not tidy or not compiler:
        skip('verdicts', 'clang-tidy and clang++ are not both there')
    report = Report('verdicts')
    check_groups(root, report)
    with tempfile.TemporaryDirectory() as scratch:
        verdicts = pathlib.Path(scratch) / 'verdicts'
        one = Tree(pathlib.Path(scratch) / 'one', root, compiler)
        other = Tree(pathlib.Path(scratch) / 'a' / 'longer' / 'path', root, compiler)
        for what, tree, header, clean, kept in [
                ('a first look keeps a verdict', one, HEADER, True, False),
                ('nothing has changed', one, HEADER, True, True),
                ('another clone', other, HEADER, True, True),
                ('a finding is planted in the header', one, PLANTED, False, False),
                ('a finding is kept by nobody', one, PLANTED, False, False),
                ('a comment excuses it', one, EXCUSED, True, False),
                ('the comment stays', one, EXCUSED, True, True),
                ('the comment is removed', one, PLANTED, False, False)]:
            was_clean, was_kept, said = tree.look(tidy, header, verdicts)
            report.check((was_clean, was_kept) == (clean, kept),
                         f'{what}: clean {was_clean}, kept {was_kept}; expected {clean} and {kept}:\n{said}')
        (one.top / '.clang-tidy').write_text("Checks: '-*,readability-braces-around-statements'\n", encoding='utf-8')
        _, was_kept, said = one.look(tidy, HEADER, verdicts)
        report.check(not was_kept, f'the checks are others, and the verdict was kept:\n{said}')
        clash = Tree(pathlib.Path(scratch) / 'clash', root, compiler)
        (clash.top / 'src' / 'b.cpp').write_text(
            'static int four() { return 4; }\nint eight() { return 2 * four(); }\n', encoding='utf-8')
        clash.compiles('a', 'b')
        for time in ('first', 'second'):
            was_clean, _, said = clash.look(tidy, HEADER, verdicts)
            report.check(not was_clean and 'not as one' in said,
                         f'two sources do not go together, and passed the {time} time:\n{said}')
    report.end()


main()
