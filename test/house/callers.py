#!/usr/bin/env python3
"""Each class that a header of src/ defines is used by the product: by code of src/ or include/ that is not the class
itself, nor a class that nobody uses. What only tests use belongs to the tests, or goes."""

import pathlib
import re
import sys

import scan
from report import Report

# Header below src/ and name, and why tests alone may use it, as in
#     'kv/store.hpp Store::Pending': 'the reason'
ALLOWED = {}

WORD = re.compile(r'\b[A-Za-z_]\w*\b')
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# These mention a class, and do not use it.
DECLARATION = re.compile(r'\b(?:friend\s+)?(?:class|struct|union)\s+(?:\[\[[^\]]*\]\]\s*)?(?:\w+\s*::\s*)*\w+\s*;|'
                         r'\bfriend\s+[\w:]+\s*;')
DECLARATOR = re.compile(r'\s*[A-Za-z_]\w*\s*(?:\{\s*\}\s*)?;')
ASSERTION = re.compile(r'\bstatic_assert\s*\(')


def mask(code, begin, end):
    return code[:begin] + re.sub(r'[^\n]', ' ', code[begin:end]) + code[end:]


def end_of_call(code, at):
    depth = 0
    for place in range(at, len(code)):
        depth += (code[place] == '(') - (code[place] == ')')
        if depth == 0:
            return place + 1
    return len(code)


class File:
    """A source file of the product: its classes, and who mentions what in it."""

    def __init__(self, name, text):
        self.name = name
        self.includes = INCLUDE.findall(text)
        self.entities, code = scan.scan(text)
        for match in list(ASSERTION.finditer(code)):
            code = mask(code, match.start(), end_of_call(code, match.end() - 1))
        for match in list(DECLARATION.finditer(code)):
            code = mask(code, match.start(), match.end())
        self.code = code

    def classes(self):
        return [entity for entity in self.entities if entity.kind == 'class' and entity.name]

    def owner_at(self, place):
        """Names of the classes that the code at `place` belongs to, the innermost last: ['Outer', 'Inner']."""
        around = [entity for entity in self.entities if entity.begin <= place < entity.end]
        names = []
        for entity in sorted(around, key=lambda entity: entity.begin):
            if entity.kind == 'class':
                names += entity.name.split('::')
            else:
                names += entity.name.split('::')[:-1]
        return [name for name in names if name]


def closure(name, files, seen):
    """Files of src/ that a file includes, and those include."""
    if name in seen or name not in files:
        return
    seen.add(name)
    for header in files[name].includes:
        closure(header, files, seen)


def uses_of(files):
    """For each class, as (header, name): the owners of the code that mentions it, as tuples of class names."""
    found, by_name = {}, {}
    for file in files.values():
        if file.name.endswith('.hpp') and not file.name.startswith('include/'):
            for entity in file.classes():
                key = (file.name, entity.full_name)
                found[key] = set()
                by_name.setdefault(entity.name.split('::')[-1], []).append((key, entity))
    for file in files.values():
        seen = set()
        closure(file.name, files, seen)
        for match in WORD.finditer(file.code):
            for key, entity in by_name.get(match[0], []):
                # What a public header names, such as a handle of the C API, users have.
                if key[0] not in seen and not file.name.startswith('include/'):
                    continue
                if key[0] == file.name and entity.begin <= match.start() < entity.end:
                    continue
                owner = file.owner_at(match.start())
                if match[0] not in owner:
                    found[key].add((file.name, *owner))
    for file in files.values():
        for entity in file.classes():
            key = (file.name, entity.full_name)
            # `struct Part {...} part;` in a class: the class uses it.
            if key in found and DECLARATOR.match(file.code, entity.end):
                found[key].add((file.name, *file.owner_at(entity.begin)[:-1]))
    return found


def unused(files):
    """Classes that nothing alive uses, as (header, name)."""
    uses = uses_of(files)
    names = {}
    for key in uses:
        names.setdefault(key[1].split('::')[-1], set()).add(key)
    alive = set()
    while True:
        more = set()
        for key, owners in uses.items():
            if key in alive:
                continue
            for owner in owners:
                tracked = [names[name] for name in owner[1:] if name in names]
                # Free code, and classes that no header of src/ defines, are in use; the innermost class decides.
                if not tracked or tracked[-1] & alive:
                    more.add(key)
                    break
        if not more:
            return sorted(uses.keys() - alive)
        alive |= more


def self_test(report):
    header = 'namespace a {\nclass Used {\n  int f();\n};\nstruct Lonely {\n  Lonely* next;\n  Inner part;\n};\n' \
             'struct Inner {\n  int a;\n};\nclass Lonely;\nstatic_assert(sizeof(Lonely) == 16);\n}\n'
    body = '#include "a.hpp"\nint Lonely::g() {\n  return 1;\n}\nint h() {\n  Used used;\n}\n'
    files = {'a.hpp': File('a.hpp', header), 'a.cpp': File('a.cpp', body)}
    found = unused(files)
    report.check(found == [('a.hpp', 'Inner'), ('a.hpp', 'Lonely')], f'self-test: finds {found}')
    files['b.cpp'] = File('b.cpp', 'Lonely b;\n')
    report.check(len(unused(files)) == 2, 'self-test: a name of a file that does not include the class')
    files['b.cpp'] = File('b.cpp', '#include "c.hpp"\nLonely b;\n')
    files['c.hpp'] = File('c.hpp', '#include "a.hpp"\n')
    report.check(unused(files) == [], f'self-test: finds {unused(files)} that is used')
    del files['b.cpp'], files['c.hpp']
    files['include/a.h'] = File('include/a.h', 'typedef struct Lonely Handle;\n')
    report.check(unused(files) == [], f'self-test: finds {unused(files)} that users have')


def main():
    root = pathlib.Path(sys.argv[1])
    report = Report('callers')
    self_test(report)
    files = {}
    for directory, prefix in (('src', ''), ('include', 'include/')):
        for path in sorted((root / directory).rglob('*')):
            if path.suffix in ('.hpp', '.cpp', '.h'):
                name = prefix + path.relative_to(root / directory).as_posix()
                files[name] = File(name, path.read_text())
    found = {f'{header} {name}' for header, name in unused(files)}
    for header, name in sorted(uses_of(files)):
        report.check(f'{header} {name}' not in found or f'{header} {name}' in ALLOWED,
                     f'src/{header}: nothing but tests uses {name}: move it to the tests, or delete it')
    for known in ALLOWED:
        report.check(known in found, f'{known} is used, or gone: take it out of ALLOWED')
    report.check(len(files) > 50, 'no sources')
    report.end()


main()
