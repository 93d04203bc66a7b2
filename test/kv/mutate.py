#!/usr/bin/env python3
"""Protections of the store and of its readers, taken out one at a time: the tests of steps_test.cpp must see it.

usage: mutate.py make SOURCE OUTPUT      writes SOURCE with all its mutations, of which none is planted, and its steps
       mutate.py run NAME EXECUTABLE     runs EXECUTABLE with one of them planted
       mutate.py check ROOT NAME...      the table fits the sources, and has these names

Meson compiles the sources that have mutations once, and links them ahead of the archive, whose own objects are then not
taken. VERBENA_MUTANT plants one when the tests run; without it they run what is in src/, and must pass. In place of
each std::atomic_ref there is a steps::Ref, at which the tests stop the writer after each store: see steps.hpp.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

TIMEOUT_S = 100


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str   # Below src/.
    old: str    # Occurs once.
    new: str
    tests: str  # GoogleTest filter.
    why: str    # What the test says.


MARK = '  if (!is_new) retire(item_of(*entry));\n'
LIVE = '  store_word(header(item).state, state_word(ItemState::kLive, version));\n'
PUBLISH = '  store_word(*entry, word);\n'

# Statements end with a newline; what does not is an expression.
MUTANTS = {
    # Readers by message have nothing but time to go by.
    'no_grace': Mutant(
        'kv/store.cpp',
        'old.server != 0 && stamp(now_) <= old.server + (options_.grace_ticks >> kStampShift) + 1', 'false',
        'KvSteps.LentValues*', 'overwritten within its grace period'),
    'no_checksum_check': Mutant(
        'kv/item.cpp', 'checksum_of(bytes.data(), shape.bytes(), version) != header.checksum', 'false',
        'KvSteps.SmallValues*', 'torn value of version'),
    'no_state_check': Mutant(
        'kv/item.cpp', 'state_of(header.state) != ItemState::kLive || version == 0', 'version == 0',
        'KvSteps.SmallValues*', 'stale value of version'),
    'never_superseded': Mutant(
        'kv/store.cpp', '    store_word(old.state, superseded);\n', '', 'KvSteps.SmallValues*',
        'stale value of version'),
    'never_superseded_large': Mutant(
        'kv/store.cpp', '  (void)std::atomic_ref(old.state).exchange(superseded, std::memory_order_seq_cst);\n', '',
        'KvSteps.LargeValues*', 'stale value of version'),
    'mark_after_publish': Mutant(
        'kv/store.cpp', MARK + LIVE + PUBLISH,
        '  const std::uint64_t before = *entry;\n' + LIVE + PUBLISH + '  if (!is_new) retire(item_of(before));\n',
        'KvSteps.SmallValues*', 'stale value of version'),
    # The index changes last, as it should; but the place of the new item may be known already.
    'mark_after_live': Mutant(
        'kv/store.cpp', MARK + LIVE + PUBLISH, LIVE + MARK + PUBLISH, 'KvSteps.SmallValues*',
        'stale value of version .* through the index'),
    # The second look at the item of a large value.
    'no_version_check': Mutant(
        'kv/client_reads.cpp', '!is_live(state, operation.outcome.version)', 'state_of(state) != ItemState::kLive',
        'KvSteps.AValue*', 'one value of two versions'),
    'no_second_look': Mutant(
        'kv/reader.cpp', 'is_live(state, item.version) && is_intact', 'is_intact', 'KvSteps.AValue*',
        'one value of two versions'),
}


def places(file):
    """What is mutated in a file: the text, and the mutants that there are of it."""
    found = {}
    for name, mutant in MUTANTS.items():
        if mutant.file == file:
            found.setdefault(mutant.old, []).append(name)
    return found


def switch(old, names):
    """The old text, and each of its mutations where that is the one planted."""
    text = old
    for name in names:
        new = MUTANTS[name].new
        if old.endswith('\n'):
            text = f'if (steps::is_planted("{name}")) {{\n{new}}} else {{\n{text}}}\n'
        else:
            text = f'(steps::is_planted("{name}") ? ({new}) : ({text}))'
    return text


def mutated(file, text):
    """The text with all mutations of that file; ValueError when one has not exactly one place."""
    for old, names in places(file).items():
        count = text.count(old)
        if count != 1:
            raise ValueError(f'{", ".join(names)}: occurs {count} times in src/{file}, not once: {old!r}')
        text = text.replace(old, switch(old, names))
    return text


def stepped(text):
    return text.replace('std::atomic_ref(', 'steps::Ref(')


def file_of(source):
    """As the table names it."""
    return '/'.join(source.parts[-2:])


def make(source, output):
    try:
        text = mutated(file_of(source), source.read_text())
    except ValueError as error:
        sys.exit(f'mutate.py: {error}. Who changed that place says in mutate.py what the mutation is now.')
    output.write_text(f'#include "steps.hpp"\n#line 1 "{source}"\n{stepped(text)}')


def verdict(mutant, code, output):
    """What is wrong with a run of the tests; '' for nothing."""
    if code != 1:
        return f'the tests did not fail but end with {code}'
    return '' if re.search(mutant.why, output) else f'the tests fail for another reason than {mutant.why!r}'


def run(name, executable):
    mutant = MUTANTS[name]
    environment = {**os.environ, 'VERBENA_MUTANT': name}
    environment.pop('VERBENA_CHAOS', None)
    environment.pop('GTEST_FILTER', None)
    ran = subprocess.run([executable, f'--gtest_filter={mutant.tests}'], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace',
                         env=environment, timeout=TIMEOUT_S, check=False)
    wrong = verdict(mutant, ran.returncode, ran.stdout)
    if wrong:
        print(ran.stdout[-20000:])
        sys.exit(f'mutate.py: {name}: {wrong}')
    print(f'mutate.py: {name}: {re.search(mutant.why, ran.stdout)[0][:500]}')


def check(root, names):
    wrong = []
    planted = Mutant('a.cpp', 'one', 'two', '', 'torn')
    MUTANTS['planted'] = planted
    for text in ['', 'one and one']:
        try:
            mutated('a.cpp', text)
            wrong.append(f'self-test: mutates {text!r}')
        except ValueError:
            pass
    if mutated('a.cpp', 'one') != '(steps::is_planted("planted") ? (two) : (one))':
        wrong.append('self-test: an expression is not switched')
    del MUTANTS['planted']
    for code, output, expected in [(0, 'torn', False), (1, 'torn', True), (1, 'refused', False), (-11, 'torn', False)]:
        if (verdict(planted, code, output) == '') != expected:
            wrong.append(f'self-test: takes code {code} and output {output!r} wrongly')
    if sorted(names) != sorted(MUTANTS):
        wrong.append(f'meson.build has {sorted(names)}, the table {sorted(MUTANTS)}')
    for file in sorted({mutant.file for mutant in MUTANTS.values()}):
        try:
            mutated(file, (root / 'src' / file).read_text())
        except ValueError as error:
            wrong.append(str(error))
    sys.exit('\n'.join(wrong) or None)


def main():
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == 'make':
        make(pathlib.Path(arguments[0]), pathlib.Path(arguments[1]))
    elif command == 'run':
        run(arguments[0], arguments[1])
    elif command == 'check':
        check(pathlib.Path(arguments[0]), arguments[1:])
    else:
        sys.exit(__doc__)


main()
