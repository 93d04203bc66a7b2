#!/usr/bin/env python3
"""Comments, messages to users and pages are in plain English: no sentence begins with "Of", "That" or "What ... is",
and no word means something here that it means nowhere else.

usage: prose.py ROOT
"""

import pathlib
import re
import sys

from report import Report

DIRECTORIES = ['include', 'src', 'examples', 'demo']
PAGES = ['docs/*.md', 'docs/adr/*.md', 'docs/api/*.md', 'docs/benchmarks/*.md', 'README.md', 'CHANGELOG.md',
         'CONTRIBUTING.md', 'SECURITY.md', 'examples/README.md', 'demo/README.md', 'packaging/**/*.md',
         'packaging/systemd/*']
# Their string literals are messages to users.
SPEAKING = ('src/', 'examples/', 'demo/')

CODE = ('.hpp', '.cpp', '.h', '.c')
FORTRAN = ('.f90',)

INVERTED = re.compile(r'(?:Of|That|What [^.?!]* (?:is|are)) ')
# (words that only we use so, the plain ones)
WORDS = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in [
    (r'(?<!`)\b(?:rests|rested|resting|(?:may|must|can|to|blocks|items|values) rest)\b(?! on\b)',
     'waits out its grace period'),
    (r'\b(?:one|two|each|its) lines? (?:moves?|travels?)\b', 'cache-line transfers'),
    (r'\b(?:is|are) the (?:NIC|region|caller|user|library|store|reader|owner|peer|producer)\'s (?:again|until)\b',
     'belongs to'),
    (r'\bwaits? on(?=[,.;:]| and\b)', 'stays queued'),
    (r'\b(?:could not|cannot|can|to) be had\b', 'is, or is not, available'),
    (r'\bsa(?:ys|id) no\b', 'refuses'),
    (r'\bplays? by the rules\b', 'is well-behaved'),
    (r'\bhears? (?:of|that|when|by)\b', 'learns'),
    (r'\bcomes? (?:to nothing|to something)\b', 'fails, or succeeds'),
    (r'\bvouch(?:es)?\b', 'confirms'),
    (r'\banew\b', 'again'),
    (r'\bas ever\b', 'as usual'),
    (r'\b(?:the kernel\'s|its) word (?:on|for)\b', 'as the kernel tells'),
]]

LITERAL_OR_COMMENT = re.compile(r'''
    (?P<line>//[^\n]*) | (?P<block>/\*.*?\*/)
  | R"(?P<mark>[^()\\\s]{0,16})\((?P<raw>.*?)\)(?P=mark)"
  | "(?P<text>(?:\\.|[^"\\\n])*)" | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
''', re.VERBOSE | re.DOTALL)
ESCAPE = re.compile(r'\\(.)')
WORD = re.compile(r"[A-Za-z][A-Za-z']+")
FEWEST_WORDS = 3  # Shorter literals are names and parts of lines.
FORTRAN_LITERAL_OR_COMMENT = re.compile(r'''(?P<line>![^\n]*) | "[^"\n]*" | '[^'\n]*' ''', re.VERBOSE)
MARKER = re.compile(r'^\s*(?://[/!]?<?|/\*+<?|\*+/?|![<>!]?)\s?')
ITEM = re.compile(r'^\s*(?:[-*+]|\d+[.)])\s')
# Doxygen's commands stand for the beginning of a sentence; those that mark up a word don't.
COMMAND = re.compile(r'[\\@](?:t?param(?:\[[a-z,]+\])?\s+\w+|retval\s+\w+|(?!(?:p|c|a|e|b|ref)\b)[a-z]+)\s*')
END = re.compile(r'(?<=[.?!:;])[)"\'`*\]]*\s+(?=[("\'`*\[]*[A-Z])')
OPENING = '("\'`*[_ '


def comment_lines(text, fortran):
    """(number, column, whether it may go on with the line before, text) of each line of a comment."""
    for match in (FORTRAN_LITERAL_OR_COMMENT if fortran else LITERAL_OR_COMMENT).finditer(text):
        if match.lastgroup not in ('line', 'block'):
            continue
        number = text.count('\n', 0, match.start()) + 1
        begin = text.rfind('\n', 0, match.start()) + 1
        alone = not text[begin:match.start()].strip()
        for offset, line in enumerate(match[0].splitlines()):
            content = MARKER.sub('', line).replace('*/', '').rstrip()
            yield number + offset, match.start() - begin, alone or offset > 0, content


def comments(text, fortran=False):
    """Paragraphs of the comments of a source: each a list of (number, line)."""
    paragraph, last = [], (0, 0)
    for number, column, goes_on, line in comment_lines(text, fortran):
        if not goes_on or (number - 1, column) != last or not line or ITEM.match(line):
            yield paragraph
            paragraph = []
        if line:
            paragraph.append((number, ITEM.sub('', line)))
        last = number, column
    yield paragraph


def literals(text):
    """Paragraphs of the string literals of a source. Adjacent ones are one, and each of its lines is a paragraph."""
    paragraph, last = [], 0
    for match in LITERAL_OR_COMMENT.finditer(text):
        kind = 'raw' if match['raw'] is not None else 'text' if match['text'] is not None else None
        if kind is None or text[last:match.start()].strip():
            yield paragraph
            paragraph = []
        last = match.end()
        if kind is None:
            continue
        number = text.count('\n', 0, match.start()) + 1
        parts = match['raw'].split('\n') if kind == 'raw' else match['text'].split(r'\n')
        for offset, part in enumerate(parts):
            if offset > 0:
                yield paragraph
                paragraph = []
            paragraph.append((number + (offset if kind == 'raw' else 0), ESCAPE.sub(r'\1', part)))
    yield paragraph


def speaking(paragraphs):
    """Those of them that have enough words for a sentence."""
    return (one for one in paragraphs if len(WORD.findall(' '.join(line for _, line in one))) >= FEWEST_WORDS)


def hash_comments(text):
    """Paragraphs of comments that begin with #, each on a line of its own."""
    paragraph = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith('#'):
            paragraph.append((number, line.lstrip('# ')))
        else:
            yield paragraph
            paragraph = []
    yield paragraph


def page(text):
    """Paragraphs of a page in Markdown, without its programs; a heading and a cell of a table are paragraphs."""
    paragraph, fenced, code, listed = [], False, False, False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith('```')
        fenced ^= fence
        after_blank = not paragraph
        code = not listed and line.startswith('    ') and (after_blank or code)
        table = line.lstrip().startswith('|')
        if fence or fenced or code or table or not line.strip() or line.startswith('#') or ITEM.match(line):
            yield paragraph
            paragraph = []
        if line.startswith('#') and not fence and not fenced:
            yield [(number, line.lstrip('# '))]
            continue
        if fence or fenced or code or not line.strip():
            continue
        listed = bool(ITEM.match(line)) or listed and line.startswith(' ')
        if table:
            yield from ([(number, cell.strip())] for cell in line.split('|'))
        else:
            paragraph.append((number, ITEM.sub('', line)))
    yield paragraph


def sentences(paragraph):
    """(number of its first line, sentence) of a paragraph."""
    text, starts = '', []
    for number, line in paragraph:
        starts.append((len(text), number))
        text += COMMAND.sub(lambda match: '.' + ' ' * (len(match[0]) - 1), line) + ' '
    begin = 0
    for end in [match.end() for match in END.finditer(text)] + [len(text)]:
        sentence = ' '.join(text[begin:end].split()).lstrip(OPENING + '.')
        lead = len(text[begin:end]) - len(text[begin:end].lstrip(OPENING + '.'))
        if sentence:
            yield [number for start, number in starts if start <= begin + lead][-1], sentence
        begin = end


def violations(name, text):
    """Failures of one file; `name` is its path from the root."""
    if name.endswith('.md'):
        paragraphs = page(text)
    elif name.endswith(CODE + FORTRAN):
        paragraphs = list(comments(text, name.endswith(FORTRAN)))
        if name.startswith(SPEAKING) and name.endswith(CODE):
            paragraphs += speaking(literals(text))
    else:
        paragraphs = hash_comments(text)
    found = []
    for paragraph in paragraphs:
        for number, sentence in sentences(paragraph):
            if INVERTED.match(sentence) and not sentence.rstrip(')"\'`* ').endswith('?'):
                found.append(f'{name}:{number}: begin with the subject: {sentence}')
            found += [f'{name}:{number}: "{match[0]}": write "{instead}": {sentence}'
                      for word, instead in WORDS for match in word.finditer(sentence)]
    return found


def self_test(report):
    for name, text, line in [
            ('a.hpp', '/// Of each: its length.\n', 1), ('a.hpp', 'int a;  ///< Sized. Of\n        ///< bytes.\n', 1),
            ('a.cpp', 'f("//");  // That is so.\n', 1), ('a.cpp', '// First.\n\n// What we\n// have is ours.\n', 3),
            ('a.hpp', 'int a;  ///< One\nint b;  ///< Of two\n', 2), ('a.h', '/* One: That helps. */\n', 1),
            ('a.h', '/** Sets it.\n * \\param size  Of the\n * buffer.\n */\n', 2),
            ('a.cpp', '// One.\n//\n// - two\n// - What two are is known.\n', 4),
            ('a.f90', '!> Of bytes.\n', 1), ('a.f90', "x = 'a!b'  ! That is so.\n", 1),
            ('a.cpp', '// The block\n// rests a while.\n', 1), ('a.cpp', '// One line moves.\n', 1),
            ('a.md', '| a | It hears of it |\n', 1), ('a.md', '# One\n\nText.\n(That is\nit.)\n', 4),
            ('a.md', '| a | Of two. |\n', 1), ('a.md', '- one\n\n    That is text of the item.\n', 3),
            ('a.md', 'Text.\n\n## Of two\n\nText.\n', 3), ('a.md', 'Text.\n### One that rests\n', 2),
            ('a.service', 'A=1\n# Of two,\n# and three.\nB=1\n', 2),
            ('src/a.cpp', 'f("Of two {}: take one");\n', 1), ('src/a.cpp', 'f("First. "\n  "That is so.");\n', 2),
            ('src/a.cpp', 'f("{} of the "\n  "rest");\ng("none is to be had");\n', 3),
            ('src/a.cpp', 'f("one\\nOf \\"two\\" things\\n");\n', 1),
            ('src/a.cpp', 'f(R"(one is\nOf two things.\nis)");\n', 2), ('demo/a.c', 'f("the block rests");\n', 1)]:
        found = violations(name, text)
        report.check(len(found) == 1 and found[0].startswith(f'{name}:{line}:'), f'self-test: {text!r}: {found}')
    for name, text in [
            ('a.cpp', 'f("Of two. That is so.");  // Calls it.\n'), ('a.cpp', '// What is it for? All of that.\n'),
            ('a.cpp', '// Some\n// Of\n\n// The lease rests on That.\n'), ('a.hpp', '// Offers what there is.\n'),
            ('a.hpp', '// What the peer sent. It is small.\n'), ('a.f90', "print *, '! Of two'\n"),
            ('src/a.cpp', 'f("Of {} B", "That");\ng("resting", "Of", "two", "these");  // Not sentences.\n'),
            ('src/a.cpp', "f('\"', of, '\"');  // of, Of and That\n"),
            ('src/a.cpp', 'f("takes the rest of it", "which has to be there");\n'),
            ('include/a.hpp', 'f("Of two things that are told");\n'), ('a.service', 'Of=two things # That is so\n'),
            ('a.md', 'The key `resting` has a sentence.\n'),
            ('a.md', 'Two\n\n    // That is code.\n\n```\n# Of two.\n```\n')]:
        report.check(not violations(name, text), f'self-test: refuses {text!r}: {violations(name, text)}')


def main():
    root = pathlib.Path(sys.argv[1])
    report = Report('prose')
    self_test(report)
    files = []
    for directory in DIRECTORIES:
        there = [path for path in sorted((root / directory).rglob('*')) if path.suffix in CODE + FORTRAN]
        report.check(there, f'{directory} has no sources')
        files += there
    for pattern in PAGES:
        there = sorted(root.glob(pattern))
        report.check(there, f'no page is {pattern}')
        files += there
    for path in files:
        found = violations(path.relative_to(root).as_posix(), path.read_text())
        report.check(not found, '\n  '.join(found))
    report.end()


main()
