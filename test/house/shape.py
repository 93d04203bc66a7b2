#!/usr/bin/env python3
"""Functions have at most 70 lines, classes at most 25 data members, and nothing above src/link asks what kind of NIC it
has. What is longer already is in shape_ratchet.txt with its size, which may only shrink.

usage: shape.py ROOT            checks
       shape.py ROOT --write    writes shape_ratchet.txt as the tree is now; its diff shows what grew
"""

import pathlib
import re
import sys

import scan
from report import Report

LIMITS = {'lines': 70, 'members': 25}
DIRECTORIES = ('include', 'src', 'test', 'demo', 'examples', 'bench')
RATCHET = pathlib.Path(__file__).resolve().parent / 'shape_ratchet.txt'
HEADER = """# What was too long when test/house/shape.py came: lines of functions (at most 70), data members of classes
# (at most 25). Numbers may only shrink. `python3 test/house/shape.py . --write` writes this file anew.
"""

KIND = re.compile(r'\bkind\(\)\s*[=!]=|[=!]=\s*(?:\w+(?:\.|->|::))*kind\(\)|'
                  r'\bswitch\s*\([^()]*\bkind\(\)\s*\)|\bKind::k(?:Soft|Verbs)\b|\bfacts_of\s*\(')
MAY_ASK_KIND = ('src/nic/', 'src/link/', 'src/programs/info')
# perf_tests.hpp has a facts_of of its own, of tests; rooms.py keeps the NIC away from these files.
NO_NIC_THERE = ('src/programs/perf',)


def sizes(name, text):
    """What is above its limit in one file: a dictionary from (what, file, full name) to the size."""
    found = {}
    for entity in scan.scan(text)[0]:
        what, size = ('lines', entity.lines) if entity.kind == 'function' else ('members', entity.members)
        if size > LIMITS[what]:
            key = (what, name, entity.full_name)
            found[key] = max(size, found.get(key, 0))
    return found


def asks_kind(name, text):
    if not name.startswith('src/') or name.startswith(MAY_ASK_KIND + NO_NIC_THERE):
        return []
    return [f'{name}:{number}: asks for the kind of NIC; make it a named capability of the NIC'
            for number, line in enumerate(scan.blank(text).splitlines(), 1) if KIND.search(line)]


def parse_ratchet(text):
    found = {}
    for line in text.splitlines():
        if line and not line.startswith('#'):
            what, size, name, full_name = line.split(' ', 3)
            found[what, name, full_name] = int(size)
    return found


def print_ratchet(found):
    lines = [f'{what} {size} {name} {full_name}\n' for (what, name, full_name), size in sorted(found.items())]
    return HEADER + ''.join(lines)


def compare(found, allowed):
    """Failures, of what is too long now and what the ratchet has."""
    wrong = []
    for key, size in sorted(found.items()):
        what, name, full_name = key
        most = max(LIMITS[what], allowed.get(key, 0))
        if size > most:
            wrong.append(f'{name}: {full_name} has {size} {what}, {most} at most')
        elif size < most:
            wrong.append(f'{name}: {full_name} has {size} {what} now: lower its {most} in shape_ratchet.txt')
    for what, name, full_name in sorted(allowed.keys() - found.keys()):
        wrong.append(f'{name}: {full_name} is not too long any more: take its {what} out of shape_ratchet.txt')
    return wrong


def self_test(report):
    def body(head, count):
        return head + ' {\n' + '  step();\n' * (count - 2) + '}\n'

    def planted(text):
        return {f'{what} {full_name}': size for (what, _, full_name), size in sizes('src/a.cpp', text).items()}

    members = ''.join(f'  std::array<int, 2> a{i}_{{}};\n' for i in range(26))
    for text, expected in [
            (body('namespace a {\nvoid f(int x)', 71) + '}\n', {'lines f': 71}),
            (body('template <class T>\n  requires(sizeof(T) == 1)\nA::A(T x) : b_(x), c_{1}', 69), {'lines A::A': 71}),
            (body('TEST(Suite, Case)', 72), {'lines TEST(Suite, Case)': 72}),
            ('struct A {\n' + body('  bool operator==(const A&) const', 71) + '};\n', {'lines A::operator==': 71}),
            (f'class A final : public B<int> {{\n{members}}};\n', {'members A': 26}),
            ('struct A {\n' + '  int a = 1, b = 2;\n' * 12 + '  struct {\n    int z;\n  } c;\n  void (*f)(int);\n};\n',
             {'members A': 26})]:
        report.check(planted(text) == expected, f'self-test: finds {planted(text)}, not {expected}')
    for text in [body('void f()', 70), 'class A {\n' + '  int a() const;\n' * 90 + '  static int b;\n};\n',
                 body('namespace a', 200), 'struct A {\n' + '  A(int a, int b) : a_{a} {}\n' * 30 + '  int a_;\n};\n',
                 'const char* text = R"(' + body('void f()', 90) + ')";\n']:
        report.check(not planted(text), f'self-test: {planted(text)} is not too long')
    key = ('lines', 'src/a.cpp', 'f')
    for found, allowed, wrong in [({key: 71}, {}, 1), ({key: 80}, {key: 79}, 1), ({key: 78}, {key: 79}, 1),
                                  ({}, {key: 79}, 1), ({key: 79}, {key: 79}, 0), ({}, {}, 0)]:
        report.check(len(compare(found, allowed)) == wrong, f'self-test: {found} against {allowed}')
    report.check(parse_ratchet(print_ratchet({key: 79})) == {key: 79}, 'self-test: the ratchet is not read as written')
    for name, line, wrong in [('src/kv/a.cpp', 'if (nic.kind() == nic::Kind::kSoft) {', 1),
                              ('src/engine/a.cpp', 'return kSoft != nic->kind();', 1),
                              ('src/session/a.cpp', 'if (facts_of(nic)) {', 1),
                              ('src/channel/a.cpp', 'switch (nic.kind()) {', 1),
                              ('src/link/a.cpp', 'nic.kind() == remote', 0), ('src/kv/a.cpp', '// kind() == of it', 0),
                              ('src/programs/info_a.cpp', 'facts_of(nic)', 0), ('test/a.cpp', 'facts_of(nic)', 0)]:
        report.check(len(asks_kind(name, line)) == wrong, f'self-test: kind of NIC: {line} in {name}')


def main():
    root = pathlib.Path(sys.argv[1])
    report = Report('shape')
    self_test(report)
    found = {}
    for directory in DIRECTORIES:
        for path in sorted((root / directory).rglob('*')):
            if path.suffix not in ('.hpp', '.cpp', '.h', '.c'):
                continue
            name, text = path.relative_to(root).as_posix(), path.read_text()
            try:
                found.update(sizes(name, text))
            except ValueError as error:
                report.check(False, f'{name}: cannot be read: {error}')
            wrong = asks_kind(name, text)
            report.check(not wrong, '\n  '.join(wrong))
    if '--write' in sys.argv[2:]:
        RATCHET.write_text(print_ratchet(found))
    wrong = compare(found, parse_ratchet(RATCHET.read_text()))
    report.check(not wrong, '\n  '.join(wrong))
    report.end()


main()
