"""What a change can reach, for `scripts/test.sh --changed`: by the files that each object includes, and by the objects
that each program is linked from."""

import fnmatch
import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Checks that take seconds and read the whole tree: every change has them.
ALWAYS = ['rooms', 'tidy', 'prose', 'pyflakes', 'shape', 'callers', 'machine', 'commands', 'runs', 'changed']
# What else reads files, and no program: tests by the first pattern that a file matches, of tests by their names. A file
# that matches none, and that no compiler reads, reaches everything.
READ_BY = [
    ('*/meson.build', None),
    ('docs/drawings/*', ['drawings']),
    ('docs/*', ['reference', 'drawings', 'safety', 'man3', 'packaging', 'consumers-guide', 'consumers-languages',
                'consumers-layouts', 'consumers-readme', 'consumers-store', 'consumers-nova', 'consumers-physical',
                'consumers-pool', 'consumers-mesh', 'consumers-fortran']),
    ('README.md', ['consumers-readme', 'packaging']),
    ('*.md', []),
    ('test/house/nocompile/*', ['nocompile']),
    ('test/house/consumer/*', ['install']),
    ('test/consumers/*', ['@consumers']),
    ('test/house/report.py', ['@house']),
    ('test/house/scan.py', ['@house']),
    ('test/house/shape_ratchet.txt', ['shape']),
    ('test/house/*.py', ['{stem}']),
    ('test/sim/seeds.txt', ['simulate_kept']),
    ('test/fuzz/corpus/*', ['fuzz_corpus_*']),
    ('bench/*.py', ['bench']),
    ('bench/*.sh', ['bench']),
]
# Tests that read sources themselves: more of them, where a file matches. All patterns count.
ALSO = [
    ('include/*', ['headers', 'nocompile', 'abi', 'reference', 'safety', 'man3', 'install', 'shared', 'symbols',
                   'peer_memory', '@consumers']),
    ('src/*.hpp', ['headers', 'peer_memory']),
    ('src/*.cpp', ['symbols', 'shared', 'peer_memory']),
    ('src/programs/*.cpp', ['headers', 'programs-manuals']),
    ('examples/*', ['example-*', 'consumers-fortran']),
    ('demo/*', ['demo']),
]
CODE = ('.cpp', '.hpp', '.c', '.h', '.f90')
CODE_IN = ('include', 'src', 'test', 'demo', 'examples', 'bench')
STRONG = set('TDBRS')


def ended_well(command, directory):
    return subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          check=True, timeout=600).stdout


def files_since(base):
    """Files that differ from commit `base`, with those that git does not know yet."""
    names = ended_well(['git', 'diff', '--name-only', '--no-renames', base, '--'], ROOT).split('\n')
    names += ended_well(['git', 'ls-files', '--others', '--exclude-standard'], ROOT).split('\n')
    return sorted({name for name in names if name})


def is_code(name):
    return name.endswith(CODE) and name.split('/')[0] in CODE_IN


class Tests:
    """The tests of a configured build, by name."""

    def __init__(self, build):
        self.build = build
        told = json.loads((build / 'meson-info' / 'intro-tests.json').read_text(encoding='utf-8'))
        self.all = {each['name']: each for each in told}
        targets = json.loads((build / 'meson-info' / 'intro-targets.json').read_text(encoding='utf-8'))
        self.targets = {each['id']: each for each in targets}

    def named(self, word):
        """The tests that a word of READ_BY stands for."""
        if word.startswith('@'):
            return {name for name in self.all if self.has_suite(name, word[1:])}
        return set(fnmatch.filter(self.all, word))

    def named_all(self, words):
        return set().union(*(self.named(word) for word in words))

    def has_suite(self, name, suite):
        return any(each.endswith(f':{suite}') for each in self.all[name]['suite'])

    def programs(self, name):
        """The executables and shared libraries that a test uses."""
        used = [self.targets[each] for each in self.all[name]['depends'] if each in self.targets]
        return {pathlib.Path(file) for each in used if each['type'] in ('executable', 'shared library')
                for file in each['filename']}

    def rooms(self, name):
        """The rooms of test/ whose programs a test uses."""
        found = [os.path.relpath(file, self.build.resolve()).split('/') for file in self.programs(name)]
        return {parts[1] for parts in found if parts[0] == 'test'}


def words_of(name):
    """What READ_BY has for the file `name`, or None."""
    return next((words for pattern, words in READ_BY if fnmatch.fnmatch(name, pattern)), None)


def is_read(name):
    """Whether tests are known that read the file `name` themselves."""
    return words_of(name) is not None or any(fnmatch.fnmatch(name, pattern) for pattern, _ in ALSO)


def unknown_of(names):
    """Those of the files `names` that may reach everything."""
    return [name for name in names if words_of(name) is None and not is_code(name)]


def read_by(names, tests):
    """The tests that read the files `names`."""
    found = set()
    for name in names:
        words = words_of(name)
        found |= tests.named_all(word.format(stem=pathlib.Path(name).stem) for word in words or [])
        for pattern, more in ALSO:
            if fnmatch.fnmatch(name, pattern):
                found |= tests.named_all(more)
    return found


def objects_of(build, names):
    """Objects of a built tree that include each of the files `names`, by the file's name."""
    wanted = {(ROOT / name).resolve(): name for name in names}
    build = build.resolve()
    found = {name: set() for name in names}
    known, current = {}, None
    for line in ended_well(['ninja', '-t', 'deps'], build).splitlines():
        if not line.startswith(' '):
            current = line.partition(':')[0] if line.endswith('(VALID)') else None
        elif current is not None:
            text = line.strip()
            if text not in known:
                known[text] = wanted.get(pathlib.Path(os.path.normpath(build / text)))
            if known[text] is not None:
                found[known[text]].add(current)
    return found


def symbols_of(path, *more):
    lines = ended_well(['nm', '--defined-only', *more, path], ROOT).splitlines()
    return [(words[-2], words[-1]) for words in map(str.split, lines) if len(words) >= 2]


def reached_programs(build, objects, programs):
    """Those of `programs` that are linked from one of `objects`. An object belongs to a program when it is the
    program's own, or when a symbol that it alone defines is in there: a static library gives only what is needed."""
    reached, shared = set(), set()
    for each in objects:
        owner, is_part, _ = each.partition('.p/')
        if is_part and build / owner in programs:
            reached.add(build / owner)
        else:
            shared.add(each)
    names = set()
    for each in sorted(shared):
        own = {name for kind, name in symbols_of(build / each, '--extern-only') if kind in STRONG}
        if not own:
            return set(programs)  # Nothing tells who has it.
        names |= own
    if names:
        for program in programs - reached:
            if program.exists() and any(name in names for _, name in symbols_of(program)):
                reached.add(program)
    return reached


def rooms_of(names):
    """The rooms whose own files are among `names`: those of src/, and test/, which mirrors it."""
    return {match[1] for match in (re.match(r'(?:src|test)/([^/]+)/', name) for name in names) if match}


def reached_tests(tests, names):
    """Of a change of the files `names`: (the tests that it reaches, those of them whose own room has changed, tests
    under chaos whose own room has changed)."""
    code = [name for name in names if is_code(name)]
    programs = set().union(*(tests.programs(name) for name in tests.all))
    objects = objects_of(tests.build, code) if code else {}
    reached = reached_programs(tests.build.resolve(), set().union(*objects.values()), programs)
    if any(not objects[name] and not is_read(name) for name in code):
        reached = programs  # No object includes it: nobody knows what does.
    found = {name for name in tests.all if tests.programs(name) & reached and not tests.has_suite(name, 'house') and
             not tests.has_suite(name, 'consumers')}
    rooms = rooms_of(code)
    # Mutants are of the daily set, and chaos is for the rooms that have changed.
    found = {name for name in found if not tests.has_suite(name, 'mutants')}
    own = {name for name in found if tests.rooms(name) & rooms}
    chaos = {name for name in found if tests.has_suite(name, 'chaos')}
    return found - chaos, own - chaos, own & chaos
