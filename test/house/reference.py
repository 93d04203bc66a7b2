#!/usr/bin/env python3
"""Doxygen finds all of include/verbena documented, and writes it down under the names that users write."""

import pathlib
import re
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

from report import Report, run, skip

SAID = r'''/** \file
 * A header of the tests. */
#ifdef __cplusplus
extern "C" {
#endif
/* Names for the linker. */
/** \cond */
#define first verbena_first
/** \endcond */

/** \name Calls
 * \{ */

/** What both do. */
int first(int a);
/** \copydoc first */
int second(int a,
           int b);
/** What is in it. */
typedef struct Both {
  int a; /**< One,
              and what it means. */
  int b; /**< The other. */
} Both;
/** \} */

#ifdef __cplusplus
}
#endif
'''
# A mistake, and what Doxygen has to name.
MISTAKES = [
    ('/** \\copydoc first */\n', '', 'second'),
    (' /**< The other. */', '', 'b'),
    ('/** What is in it. */\n', '', 'Both'),
    ('/** What both do. */', '/** What both do. \\param c is none. */', "'c'"),
]


def generate(root, doxygen, headers, work):
    """Runs Doxygen over a directory of headers. Returns its exit code, its output and the names that it knows."""
    work.mkdir()
    values = {'version': '0', 'root': root, 'input': headers, 'output': work}
    text = (root / 'docs' / 'api' / 'Doxyfile.in').read_text()
    doxyfile = work / 'Doxyfile'
    doxyfile.write_text(re.sub('@([a-z]+)@', lambda m: str(values[m[1]]), text) +
                        f'GENERATE_TAGFILE = {work}/tags\n')
    ran = run([doxygen, doxyfile], cwd=work)
    tags = work / 'tags'
    names = {n.text for n in ElementTree.parse(tags).iter('name')} if tags.exists() else set()
    return ran.returncode, ran.stdout, names


def self_test(report, root, doxygen, work):
    for number, (was, becomes, named) in enumerate([('', '', ''), *MISTAKES]):
        headers = work / f'planted-{number}'
        headers.mkdir()
        text = SAID.replace(was, becomes) if was else SAID
        report.check(not was or text != SAID, f'self-test: nothing to spoil: {was}')
        (headers / 'planted.h').write_text(text)
        code, said, names = generate(root, doxygen, headers, work / f'out-{number}')
        if was:
            report.check(code != 0 and named in said, f'self-test: does not find that {named} is amiss: {said}')
        else:
            report.check(code == 0 and {'first', 'second', 'Both', 'a', 'b'} <= names and 'verbena_first' not in names,
                         f'self-test: refuses what is well, or does not know {names}: {said}')


def main():
    root, doxygen = pathlib.Path(sys.argv[1]), sys.argv[2]
    if not doxygen:
        skip('reference', 'doxygen 1.9 or later is not there, or -Ddocs=disabled')
    report = Report('reference')
    with tempfile.TemporaryDirectory(prefix='verbena-reference-') as directory:
        work = pathlib.Path(directory)
        self_test(report, root, doxygen, work)
        code, said, names = generate(root, doxygen, root / 'include', work / 'reference')
        report.check(code == 0, f'doxygen complains:\n{said}')
        for header in sorted((root / 'include' / 'verbena').rglob('*.h')):
            for alias in re.findall(r'^#define (\w+) verbena_\1$', header.read_text(), re.MULTILINE):
                report.check(alias in names, f'{header.name}: {alias} is not in the reference')
    report.end()


main()
