#!/usr/bin/env python3
"""Wrong code must not compile. Each file of nocompile/, and of demo/ unless it is a program, holds one mistake under
`#ifdef WRONG`, and the words of the compiler that it is refused with: // expect: regular expression. Without WRONG it
must compile, which the first compiler shows: the second one sees the same headers in the build of the sanitized tests.
The public headers are precompiled, which makes the check three times as fast."""

import concurrent.futures
import pathlib
import re
import sys
import tempfile

from report import Report, run

EXPECT = re.compile(r'^// expect: (.+)$', re.MULTILINE)
FLAGS = re.compile(r'^// flags: (.+)$', re.MULTILINE)
PUBLIC = re.compile(r'^#include <verbena/.+>$', re.MULTILINE)


def precompile(base, texts, directory):
    """Compiles the public headers that the files include. Returns the arguments that use the result."""
    header = pathlib.Path(directory) / 'public.hpp'
    header.write_text('\n'.join(sorted({line for text in texts for line in PUBLIC.findall(text)})) + '\n')
    suffix = '.pch' if 'clang' in str(base[0]) else '.gch'
    made = run([*base, '-x', 'c++-header', header, '-o', f'{header}{suffix}'])
    return ['-include', header] if made.returncode == 0 else []


def main():
    root = pathlib.Path(sys.argv[1])
    compilers = [c for c in sys.argv[2:] if c]
    report = Report('nocompile')
    files = sorted((pathlib.Path(__file__).resolve().parent / 'nocompile').glob('*.cpp'))
    files += sorted(path for path in (root / 'demo').glob('*.cpp') if 'int main()' not in path.read_text())
    texts = {path: path.read_text() for path in files}
    jobs = []
    directory = tempfile.TemporaryDirectory()
    for compiler in compilers:
        flags = [compiler, '-std=c++23', '-D_GNU_SOURCE', '-Wall', '-Werror',
                 '-I', root / 'include', '-I', root / 'src']
        (place := pathlib.Path(directory.name) / pathlib.Path(compiler).name).mkdir()
        precompiled = precompile(flags, texts.values(), place)
        for path, text in texts.items():
            expect = EXPECT.search(text)
            if not report.check(expect and '#ifdef WRONG' in text, f'{path.name}: no expect line, or no #ifdef WRONG'):
                continue
            extra = FLAGS.search(text)
            # Other flags make other headers.
            base = [*flags, *([] if extra else precompiled), '-fsyntax-only', path]
            wrong = [*base, '-DWRONG', *(extra.group(1).split() if extra else [])]
            jobs.append((path.name, compiler, expect.group(1), base if compiler == compilers[0] else None, wrong))
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for name, compiler, expected, right, wrong in pool.map(
                lambda job: (*job[:3], job[3] and run(job[3]), run(job[4])), jobs):
            if right is not None:
                report.check(right.returncode == 0, f'{name} without WRONG does not compile:\n{right.stdout}')
            if report.check(wrong.returncode != 0, f'{name}: {compiler} takes the wrong code'):
                report.check(re.search(expected, wrong.stdout),
                             f'{name}: {compiler} refuses it for another reason:\n{wrong.stdout}')
    directory.cleanup()
    report.end()


main()
