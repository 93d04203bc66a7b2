#!/usr/bin/env python3
"""Doxygen's INPUT_FILTER: writes a public header in the words that Doxygen knows. Lines keep their numbers.

- The comment at the head of a file is about the file.
- A comment of a C header documents what follows it, or what stands before it in the same line; one with nothing under
  it is for readers of the source. A comment in dashes heads a section.
- A comment speaks for all declarations below it, up to the next blank line or comment.
- The names are those that users write: what a C header has for the linker goes.
"""

import re
import sys

ALIAS = re.compile(r'^#define \w+ verbena_\w+$')
SECTION = re.compile(r'^/\* -{3} (.)(.+?)\.? -{3,}( \*/)?$')
SCOPE = re.compile(r'^\s*(typedef )?(class|struct|enum|union|namespace|extern "C")\b[^;()]*\{$')
ACCESS = re.compile(r'^\s*(public|protected|private):')
LITERAL = re.compile(r"\"(\\.|[^\"\\])*\"|'(\\.|[^'\\])'")
LINE_DOC = re.compile(r'^\s*///(?!<)')


def end_of(lines, at):
    """Where a comment ends that begins at `at`, and the line below it."""
    end = next(n for n in range(at, len(lines)) if '*/' in lines[n])
    return end, lines[end + 1] if end + 1 < len(lines) else ''


def as_doxygen(lines):
    """C comments as Doxygen's: `/**` before a declaration, `/**<` behind one, sections as groups."""
    out = []
    inside = False
    opens = closes = ''
    for at, line in enumerate(lines):
        text = line.strip()
        section = SECTION.match(text)
        goes_on = '*/' not in line and (inside or '/*' in line)
        if inside or text.startswith('#'):
            if closes and text == '#ifdef __cplusplus':
                out[-1] += closes
                closes = ''
        elif section:
            line = f'{closes}/** \\name {section[1].upper()}{section[2]}{section[3] or ""}'
            opens, closes = ' /** \\{ */', '/** \\} */ '
            if goes_on and end_of(lines, at)[1]:
                # What is said under the heading is about the declarations below it, not about the section.
                line += ' */'
                lines[at + 1] = '/*'
                goes_on = False
        elif text.startswith('/*'):
            below = end_of(lines, at)[1]
            is_macro = below.startswith('#define ') and not ALIAS.match(below)
            is_about = at == 0 or below and (is_macro or not below.startswith('#'))
            line = re.sub(r'/\*+', '/**' if is_about else '/*', line, count=1)
        elif '/*' in line:
            line = re.sub(r'/\*+<?', '/**<', line, count=1)
        inside = goes_on
        if opens and not inside:
            line += opens
            opens = ''
        out.append(line)
    return out


def about_file(lines):
    """The first comment is the file's."""
    for at, line in enumerate(lines):
        if lines[0].startswith('/**') and '*/' in line:
            lines[at] = line.replace('*/', r'\file */', 1)
            break
        if lines[0].startswith('// '):
            lines[at] = line.replace('//', '///', 1)
            if not lines[at + 1].startswith('//'):
                lines[at] += r' \file'
                break
    return lines


class Sharing:
    """What comment stands above the declarations at hand, and whether one of them has had it."""

    def __init__(self):
        self.comment = []
        self.used = False
        self.depth = 0

    def forget(self):
        self.comment, self.used, self.depth = [], False, 0


def share(lines):
    """Repeats a comment before the second and later of the declarations that it speaks for, in the same line."""
    out = []
    above = Sharing()
    in_comment = in_statement = False
    for line in lines:
        text = line.strip()
        if in_comment or text.startswith('/**') and not text.startswith('/**<') or LINE_DOC.match(line):
            if not in_comment and (above.used or not text.startswith('///')):
                above.forget()
            above.comment.append(text)
            in_comment = text.startswith('/**') and '*/' not in text or in_comment and '*/' not in text
            out.append(line)
            continue
        code = re.sub(r'//.*$|/\*.*?(\*/|$)', '', LITERAL.sub('0', line)).rstrip()
        if not in_statement and (not text or text.startswith(('#', '//', '*', '}')) or ACCESS.match(line)):
            if not text.startswith('*'):
                above.forget()
            out.append(line)
            continue
        if SCOPE.match(code):
            above.forget()
            in_statement = False
            out.append(line)
            continue
        if not in_statement and above.used and above.comment and '/**<' not in line and '///<' not in line:
            line = ' '.join(as_block(above.comment)) + ' ' + line
        in_statement = True
        above.depth += sum(code.count(c) for c in '([{') - sum(code.count(c) for c in ')]}')
        if above.depth == 0 and code.endswith((';', '}', ',')):
            in_statement = False
            above.used = True
        out.append(line)
    return out


def as_block(comment):
    """A comment of any form as one /** */ that fits in a line."""
    words = [re.sub(r'^(/\*\*|///|\*(?!/))\s?', '', line).replace('*/', '').strip() for line in comment]
    return ['/**', *words, '*/']


def filtered(text, in_c):
    lines = ['' if ALIAS.match(line) else line for line in text.splitlines()]
    if in_c:
        lines = as_doxygen(lines)
    return '\n'.join(about_file(share(lines))) + '\n'


if __name__ == '__main__':
    with open(sys.argv[1], encoding='utf-8') as source:
        sys.stdout.write(filtered(source.read(), sys.argv[1].endswith('.h')))
