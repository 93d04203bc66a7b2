#!/usr/bin/env python3
"""Manual pages of the C calls and structs, from the comments of the public headers.

    calls.py OUT HEADER...   pages into the directory OUT

A call whose comment is only `\\copydoc OTHER` shares the page of OTHER. The comment at the head of a header becomes
the page verbena-HEADER(3). Text under the `\\name` of a section is on the pages of all its calls; so is the first
comment of the section if no blank line is between."""

import dataclasses
import pathlib
import re
import shutil
import sys

SECTION = re.compile(r'^/\*\* \\name (.+)')
COPY = re.compile(r'^/\*\* \\copydoc (\w+) \*/$')
CALL = re.compile(r'^(?!typedef)(?:static inline )?([\w *]+?)(\w+)\([^;{]*\)(?:;| \{)$')
NOT_FOR_USERS = 'For the functions below'


@dataclasses.dataclass
class Page:
    names: list
    declarations: list  # Each as it stands in the header.
    comment: list  # Paragraphs.
    section: list  # Paragraphs that stand above all calls of the section.


@dataclasses.dataclass
class Header:
    name: str  # Such as verbena/kv.h.
    about: list  # Paragraphs.
    pages: list

    def page(self):
        return f'verbena-{pathlib.PurePath(self.name).stem}'


def paragraphs(comment):
    """Paragraphs of a C comment. One that begins with a dash is an item of a list."""
    lines = [re.sub(r'^ ?\*? ?', '', line, count=1).rstrip() for line in comment.strip()[2:-2].splitlines()]
    lines = [line for line in lines if line not in (r'\file', r'\{', r'\}')]
    found = ['']
    for line in lines:
        if re.match(r' *- ', line):
            found.append(line.strip())
        elif not line.strip():
            found.append('')
        else:
            found[-1] = f'{found[-1]} {line.strip()}'.strip()
    return [text for text in found if text]


def chunks(text):
    """Comments, declarations and blank lines of a header, in order."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        begin, line = at, lines[at]
        if line.startswith('/*'):
            while '*/' not in lines[at]:
                at += 1
        elif line.startswith('#') or not line.strip() or line.startswith('}'):
            pass
        elif re.match(r'(typedef )?(struct|enum|union)\b', line) and not line.rstrip().endswith(';'):
            while not re.search(r'^\}|\} \w+;$', lines[at]):
                at += 1
        else:
            while not lines[at].rstrip().endswith((';', '{', '}')):
                at += 1
            if lines[at].rstrip().endswith('{') and not lines[begin].startswith('extern'):
                body = at
                while at + 1 < len(lines) and not lines[at].startswith('}'):
                    at += 1
                yield '\n'.join(lines[begin:body + 1])
                at += 1
                continue
        yield '\n'.join(lines[begin:at + 1])
        at += 1


def read(path, name):
    """The header's pages."""
    text = path.read_text()
    header = Header(name, [], [])
    comment, section, title = [], [], ''
    page, above, by_name = None, '', {}
    for chunk in chunks(text):
        if heading := SECTION.match(chunk):
            title, section = heading[1], paragraphs(chunk)[1:]
        elif copy := COPY.match(chunk):
            page = by_name.get(copy[1])
        elif chunk.startswith('/*'):
            comment, page = paragraphs(chunk), None
            header.about = header.about or comment
            section = comment if SECTION.match(above) else section
        elif not chunk.strip():
            comment, page = [], None
        elif not chunk.startswith(('#', '}', 'extern')):
            name = name_of(chunk) if title != NOT_FOR_USERS else ''
            if name and comment and page is None:
                page = Page([], [], comment, section if comment is not section else [])
                header.pages.append(page)
            if name and page is not None:
                by_name[name] = page
                page.names.append(name)
                page.declarations.append(declaration(chunk))
            comment, page = [], None
        above = chunk
    return header


def declaration(chunk):
    """A declaration as a program's author would write it: comments behind a field are plain ones."""
    chunk = re.sub(r'^static inline ', '', re.sub(r' \{$', ';', chunk))
    return re.sub(r'/\*\*<.*?\*/', lambda found: re.sub(r'\n   ', '\n', '/*' + found[0][4:]), chunk, flags=re.DOTALL)


def name_of(chunk):
    """What a declaration declares: a call, or a struct or enum with its fields; '' for others."""
    found = CALL.match(' '.join(chunk.split()))
    if found:
        return found[2]
    found = re.match(r'typedef (?:struct|enum)\b.*?\}\s*(\w+);$', chunk, re.DOTALL)
    return found[1] if found else ''


def roff(text):
    """Text for groff: nothing in it is a request."""
    text = text.replace('\\', '\\e').replace('-', '\\-')
    text = re.sub(r'`([^`]*)`', r'\\fI\1\\fR', text)
    return re.sub(r"^([.'])", r'\\&\1', text, flags=re.MULTILINE)


def body(texts):
    lines = []
    for text in texts:
        lines.append(f'.IP \\(bu 2\n{roff(text[2:])}' if text.startswith('- ') else f'.PP\n{roff(text)}')
    return '\n'.join(lines)


def first_sentence(texts):
    text = texts[0].removeprefix('Collective. ')
    sentence = re.match(r'.*?[.:](?= |$)', text)
    return (sentence[0] if sentence else text).rstrip('.:')


def head(name, version):
    return f'.TH {name} 3 "" "Verbena {version}" "Verbena"\n.SH NAME\n'


def write_page(page, header, version):
    text = head(page.names[0], version) + f'{", ".join(page.names)} \\- {roff(first_sentence(page.comment))}\n'
    declared = '\n'.join(roff(declaration).replace('`', '') for declaration in page.declarations)
    text += f'.SH SYNOPSIS\n.nf\n#include <{header.name}>\n.sp\n{declared}\n.fi\n.SH DESCRIPTION\n'
    text += body(page.comment + page.section) + '\n'
    return text + f'.SH SEE ALSO\n.BR {header.page()} (3)\n'


def write_overview(header, version):
    text = head(header.page(), version) + f'{header.page()} \\- {roff(first_sentence(header.about))}\n'
    text += (f'.SH SYNOPSIS\n.nf\n#include <{header.name}>\n.sp\n'
             'cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs verbena)\n.fi\n.SH DESCRIPTION\n')
    text += body(header.about) + '\n.SH CALLS AND TYPES\n'
    for page in header.pages:
        text += f'.TP\n.B {", ".join(page.names)}\n{roff(first_sentence(page.comment))}.\n'
    return text


def pages_of(headers, version):
    """Each page's text by its file's name."""
    found = {}
    for header in headers:
        found[f'{header.page()}.3'] = write_overview(header, version)
        for page in header.pages:
            first, *others = page.names
            found[f'{first}.3'] = write_page(page, header, version)
            for other in others:
                found[f'{other}.3'] = f'.so man3/{first}.3\n'
    return found


def main():
    out, *paths = sys.argv[1:]
    out, paths = pathlib.Path(out), [pathlib.Path(path) for path in paths]
    version = next(re.search(r'^#define VERBENA_VERSION "(.*)"$', path.read_text(), re.MULTILINE)[1]
                   for path in paths if path.name == 'version.h')
    headers = [read(path, f'verbena/{path.name}') for path in paths]
    # Anew, so that the directory is as young as its pages.
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for name, text in pages_of(headers, version).items():
        (out / name).write_text(text)


if __name__ == '__main__':
    main()
