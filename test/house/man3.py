#!/usr/bin/env python3
"""Manual pages of the C calls: there is one for each call that a header declares, it says what the header says, and man
has no warning.

    man3.py ROOT MAN3"""

import concurrent.futures
import pathlib
import re
import shutil
import sys
import tempfile

from report import Report, check_man_warns, warnings_of_man

SAID = r"""/** \file
 * A header of the tests.
 *
 * Its second paragraph:
 *  - an item. */
#ifndef PLANTED
/* Names for the linker. */
/** \cond */
#define first verbena_first
/** \endcond */
enum { LIMIT = 3 };

/** Does `first` things - of two. Never more.
 * .No request. */
int first(int a);
/** \copydoc first */
int second(int a,
           int b);
int undocumented(void);

/** \name More
 *
 * Above all of the section.
 * \{ */

/** What is in it. */
typedef struct Both {
  int a; /**< One,
              and more. */
} Both;
/** \} */

/** \name Close
 * \{ */
/** Begins. Of all. */
int begins(void);
/** Ends. */
int ends(void);
/** \} */

/** \name For the functions below
 * \{ */

/** Not for users. */
static inline int hidden(void) { return 0; }
/** \} */

/** \name Calls
 * \{ */

/** Collective. Calls. */
static inline const char* inlined(int a) {
  return a;
}
/** \} */
#endif
"""


def self_test(report, calls):
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / 'planted.h'
        path.write_text(SAID)
        pages = calls.pages_of([calls.read(path, 'verbena/planted.h')], '1')
    wanted = {'verbena-planted.3', 'first.3', 'second.3', 'Both.3', 'begins.3', 'ends.3', 'inlined.3'}
    report.check(set(pages) == wanted, f'self-test: pages are {sorted(pages)}')
    if report.failures:
        return
    for name, said in (('first.3', 'first, second \\- Does \\fIfirst\\fR things \\- of two\n'),
                       ('first.3', 'int second(int a,\n           int b);'), ('first.3', 'Never more. .No request.'),
                       ('second.3', '.so man3/first.3\n'),
                       ('Both.3', 'int a; /* One,\n           and more. */\n} Both;'),
                       ('Both.3', '.PP\nAbove all of the section.'),
                       ('begins.3', 'DESCRIPTION\n.PP\nBegins. Of all.\n.SH'),
                       ('ends.3', 'Ends.\n.PP\nBegins. Of all.\n'),
                       ('inlined.3', 'const char* inlined(int a);\n.fi'),
                       ('inlined.3', 'inlined \\- Calls\n'), ('verbena-planted.3', '.IP \\(bu 2\nan item.')):
        report.check(said in pages[name], f'self-test: {name} lacks {said!r}: {pages[name]}')


def main():
    root, man3 = (pathlib.Path(each) for each in sys.argv[1:])
    sys.path.append(str(root / 'packaging' / 'manuals'))
    import calls
    report = Report('man3')
    self_test(report, calls)
    pages = {page.name: page.read_text() for page in man3.iterdir()}
    declared = 0
    for header in sorted((root / 'include' / 'verbena').glob('*.h')):
        text = header.read_text()
        report.check(f'verbena-{header.stem}.3' in pages, f'{header.name} has no page: packaging/manuals/meson.build')
        for name in [*re.findall(r'^#define (\w+) verbena_\1$', text, re.MULTILINE),
                     *re.findall(r'^\w.* \*?(verbena_\w+)\(', re.sub(r'\* ', ' *', text), re.MULTILINE)]:
            declared += 1
            page = pages.get(f'{name}.3', '')
            if page.startswith('.so '):
                page = pages[page.split('/')[1].strip()]
            report.check(re.search(rf'^[^.].*\b{name}\(', page, re.MULTILINE), f'{header.name}: {name} has no page')
    report.check(declared > 130, f'only {declared} calls are found in the headers')
    if shutil.which('man') and shutil.which('groff'):
        check_man_warns(report)
        texts = [name for name, text in pages.items() if not text.startswith('.so ')]
        with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
            for name, said in zip(texts, pool.map(lambda name: warnings_of_man(man3 / name), texts)):
                report.check(not said, f'{name}: {said}')
    else:
        print('man3: pages are not formatted: install man-db and groff')
    report.end()


if __name__ == '__main__':
    main()
