#!/usr/bin/env python3
"""Protections of the store taken out one at a time: the suite must fail, for the reason that is due.

usage: mutate.py make NAME SOURCE OUTPUT    writes SOURCE with the mutation
       mutate.py run NAME EXECUTABLE        runs the tests of the suite that must see it
       mutate.py check ROOT NAME...         the table fits the sources, and has these names

Meson compiles the mutated source and links it with the objects of the suite ahead of the archive, whose own object is
then not taken. So a mutation belongs into a source, not into a header, and costs one compilation.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

TIMEOUT_S = 120
# Of the seeds of one mutant: the suite is random, and a race may not come about at once.
RUNS = 40


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str        # Below src/.
    old: str         # Occurs once.
    new: str
    tests: str       # GoogleTest filter.
    why: str | None  # What the suite says about it; None: the change is harmless, and the suite must pass.
    chaos: str = ''  # VERBENA_CHAOS of the run.


# What a reader of bytes that changed under it says: values tell who stored them, unless what tells it is torn too.
TORN = r'torn: .*|one value of two versions: .*|a value that nobody stored: .*'
# Reads in pieces, out of order, with time in between.
PIECES = 'delay=0.5,pieces=1,hold=0.3'
# A window of one instruction is one that clients meet once a year.
YIELDS = '  for (int i = 0; i < 40; ++i) sched_yield();\n'
MARK = '  if (!is_new) retire(item_of(*entry));\n'
LIVE = '  store_word(header(item).state, state_word(ItemState::kLive, version));\n'
PUBLISH = '  store_word(*entry, word);\n'

MUTANTS = {
    # Readers by message have nothing but time to go by.
    'no_grace': Mutant(
        'kv/store.cpp',
        'const bool is_lent = old.server != 0 && stamp(now_) <= old.server + (grace_ticks_ >> kStampShift) + 1;',
        'const bool is_lent = false;', 'KvLinear.LargeValues', TORN, PIECES),
    'no_checksum_check': Mutant(
        'kv/item.cpp',
        '  if (checksum_of(bytes.data(), shape.bytes(), version) != header.checksum) return Verdict::kTorn;\n', '',
        'KvLinear.SmallValues', TORN, PIECES),
    'no_state_check': Mutant(
        'kv/item.cpp', 'if (state_of(header.state) != ItemState::kLive || version == 0)', 'if (version == 0)',
        'KvLinear.SmallValues', 'no order explains .*'),
    'never_superseded': Mutant(
        'kv/store.cpp', '    store_word(old.state, superseded);\n', '', 'KvLinear.SmallValues', 'no order explains .*'),
    'mark_after_publish': Mutant(
        'kv/store.cpp', MARK + LIVE + PUBLISH,
        '  const std::uint64_t before = *entry;\n' + LIVE + PUBLISH + YIELDS +
        '  if (!is_new) retire(item_of(before));\n',
        'KvLinear.SmallValues', 'no order explains .*'),
    # The index changes last, as it should; but the place of the new item may be known already.
    'mark_after_live': Mutant('kv/store.cpp', MARK + LIVE, LIVE + YIELDS + MARK, 'KvLinear.SmallValues',
                              'no order explains .*'),
    # The same pauses, and the right order.
    'control_pauses': Mutant('kv/store.cpp', MARK + LIVE + PUBLISH, MARK + YIELDS + LIVE + YIELDS + PUBLISH,
                             'KvLinear.SmallValues', None),
    # Without any pause, for readers that look all the time.
    'mark_after_live_at_once': Mutant('kv/store.cpp', MARK + LIVE, LIVE + MARK, 'KvOrder.*', 'stale value .*'),
    # The second look at the item of a large value.
    'no_version_check': Mutant(
        'kv/client_reads.cpp', 'if (!is_live(state, operation.outcome.version)) return on_overtaken(slot);',
        'if (state_of(state) != ItemState::kLive) return on_overtaken(slot);',
        'KvLinear.LargeValues', TORN, PIECES),
    'no_second_look': Mutant(
        'kv/reader.cpp', 'return is_live(state, item.version) && is_intact ?', 'return is_intact ?',
        'KvLinear.LargeValues', TORN),
}


def mutated(mutant, text):
    """The text with the mutation; ValueError when that is not one place."""
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f'occurs {count} times in src/{mutant.file}, not once: {mutant.old!r}')
    return text.replace(mutant.old, mutant.new)


def make(name, source, output):
    mutant = MUTANTS[name]
    if not source.as_posix().endswith('src/' + mutant.file):
        sys.exit(f'mutate.py: {name} is of src/{mutant.file}, not of {source}')
    try:
        text = mutated(mutant, source.read_text())
    except ValueError as error:
        sys.exit(f'mutate.py: {name} {error}. Who changed that place says there what the mutation is now.')
    output.write_text(f'#include <sched.h>\n#line 1 "{source}"\n{text}')


def verdict(mutant, code, output):
    """What is wrong with a run of the suite; '' for nothing, None for nothing yet: another seed may show it."""
    if mutant.why is None:
        return '' if code == 0 else f'a harmless change makes the suite fail ({code})'
    if code == 0:
        return None
    if code != 1:
        return f'the suite did not fail but end with {code}'
    return '' if re.search(mutant.why, output) else f'the suite fails for another reason than {mutant.why!r}'


def run(name, executable):
    mutant = MUTANTS[name]
    for seed in range(1, RUNS + 1):
        environment = {**os.environ, 'VERBENA_CHAOS_SEED': str(seed), 'VERBENA_SEEDS': '1'}
        environment.pop('VERBENA_CHAOS', None)
        if mutant.chaos:
            environment['VERBENA_CHAOS'] = mutant.chaos
        try:
            ran = subprocess.run([executable, f'--gtest_filter={mutant.tests}'], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace',
                                 env=environment, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            sys.exit(f'mutate.py: {name}: the suite took longer than {TIMEOUT_S} s')
        wrong = verdict(mutant, ran.returncode, ran.stdout)
        if wrong is None:
            continue
        if wrong:
            print(ran.stdout[-20000:])
            sys.exit(f'mutate.py: {name}: {wrong}')
        said = re.search(mutant.why, ran.stdout)[0] if mutant.why else 'it passes'
        print(f'mutate.py: {name}, seed {seed}: {said[:500]}')
        return
    sys.exit(f'mutate.py: {name}: the suite passes, {RUNS} seeds')


def check(root, names):
    wrong = []
    planted = Mutant('a.cpp', 'one', 'two', '', 'torn')
    for text in ['', 'one and one']:
        try:
            mutated(planted, text)
            wrong.append(f'self-test: mutates {text!r}')
        except ValueError:
            pass
    for code, output, expected in [(0, '', False), (1, 'torn', True), (1, 'refused', False), (-11, 'torn', False)]:
        if (verdict(planted, code, output) == '') != expected:
            wrong.append(f'self-test: takes code {code} and output {output!r} wrongly')
    if sorted(names) != sorted(MUTANTS):
        wrong.append(f'meson.build has {sorted(names)}, the table {sorted(MUTANTS)}')
    for name, mutant in MUTANTS.items():
        try:
            mutated(mutant, (root / 'src' / mutant.file).read_text())
        except ValueError as error:
            wrong.append(f'{name} {error}')
    sys.exit('\n'.join(wrong) or None)


def main():
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == 'make':
        make(arguments[0], pathlib.Path(arguments[1]), pathlib.Path(arguments[2]))
    elif command == 'run':
        run(arguments[0], arguments[1])
    elif command == 'check':
        check(pathlib.Path(arguments[0]), arguments[1:])
    else:
        sys.exit(__doc__)


main()
