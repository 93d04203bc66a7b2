#!/usr/bin/env python3
"""Python of the tree: pyflakes finds no unknown name, unused import or lost value.

    pyflakes.py ROOT PYFLAKES"""

import pathlib
import sys
import tempfile

from report import Report, run, skip

DIRECTORIES = ('bench', 'demo', 'examples', 'packaging', 'scripts', 'test')
# Spack's own idiom is `from spack.package import *`; test/house/packaging.py compiles that file.
EXEMPT = ('packaging/spack/package.py',)


def main():
    root, pyflakes = pathlib.Path(sys.argv[1]), sys.argv[2]
    if not pyflakes:
        skip('pyflakes', 'no pyflakes3 here: install it')
    report = Report('pyflakes')
    with tempfile.TemporaryDirectory(prefix='verbena-pyflakes-') as directory:
        planted = pathlib.Path(directory) / 'planted.py'
        planted.write_text('import os\nprint(unknown)\n')
        said = run([pyflakes, planted], timeout_s=60).stdout
        report.check('unused' in said and 'undefined' in said, f'self-test: finds no unused import or name: {said}')
    sources = [path for each in DIRECTORIES for path in sorted((root / each).rglob('*.py'))
               if path.relative_to(root).as_posix() not in EXEMPT]
    said = run([pyflakes, *sources], timeout_s=100)
    report.checks += len(sources)
    report.check(said.returncode == 0, said.stdout.strip())
    report.end()


main()
