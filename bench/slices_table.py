"""Prints what bench/slices measured as tables, one for each state of the machine.

usage: slices_table.py FILE...       each line of a FILE is a JSON object of one slice
"""

import json
import statistics
import sys

from table import number

# What there and back takes through a bare ring of cache lines, before and after a slice, in ns: the states that were
# seen here are under 50, 100 to 200, and over 400.
STATES = (('under 75 ns', 75), ('75 to 300 ns', 300), ('over 300 ns', float('inf')))
LEAST = 5  # Slices of a figure.
BARE, OURS = 'bare', 'now'
FLOOR_OF = 'write 8 B seen'


def state_of(ring_ns):
    return next(name for name, end in STATES if ring_ns < end)


def read(paths):
    """State to (variant, operation) to (file, rotation) to ns. Without slices in which the state changed."""
    states, changed, slices = {name: {} for name, _ in STATES}, 0, 0
    for path in paths:
        with open(path, encoding='utf-8') as lines:
            for line in lines:
                one = json.loads(line)
                slices += 1
                state = state_of(one['before'])
                if state != state_of(one['after']):
                    changed += 1
                    continue
                found = states[state].setdefault((one['variant'], one['operation']), {})
                found[path, one['rotation']] = one['ns']
    return states, changed, slices


def ratio(ours, theirs):
    """The median of the ratios of the rotations that have both."""
    both = [ours[at] / theirs[at] for at in ours.keys() & theirs.keys()]
    return statistics.median(both) if len(both) >= LEAST else None


def libraries(found):
    """This checkout first: the others' ratios are to it."""
    return sorted({variant for variant, _ in found} - {BARE}, key=lambda name: (name != OURS, name))


def table(found, variants):
    """The libraries' operations, with ratios of the first to the others and the floor."""
    medians = {name: statistics.median(values.values()) for name, values in found.items() if len(values) >= LEAST}
    first, *others = variants
    bare = {name: value for name, value in medians.items() if name[0] == BARE}
    floor = min(bare, key=bare.get) if bare else None
    head = ['', *(f'{name}, ns' for name in variants), *(f'{first} to {name}' for name in others), 'to the floor']
    rows = []
    for operation in sorted({operation for variant, operation in found if variant != BARE}):
        ours = found.get((first, operation), {})
        to_floor = ratio(ours, found[floor]) if floor and operation == FLOOR_OF else None
        rows.append([operation, *(number(medians.get((name, operation))) for name in variants),
                     *(number(ratio(ours, found.get((name, operation), {}))) for name in others), number(to_floor)])
    for (_, operation), value in sorted(bare.items(), key=lambda item: item[1]):
        mark = ', the floor' if floor == (BARE, operation) else ''
        rows.append([f'bare: {operation}{mark}', number(value), *[''] * (len(head) - 2)])
    return '\n'.join(f'| {" | ".join(row)} |' for row in [head, ['---', *['--:'] * (len(head) - 1)], *rows])


def main(paths):
    states, changed, slices = read(paths)
    print(f'{slices} slices, {changed} of them left out, in which the state changed. Medians; lower is better.')
    for state, found in states.items():
        variants = libraries(found)
        enough = max((len(values) for values in found.values()), default=0)
        if not variants or enough < LEAST:
            print(f'\nRing {state}: {enough} slices of a figure, too few.')
            continue
        print(f'\nRing {state}, up to {enough} slices of each figure:\n\n{table(found, variants)}')


if __name__ == '__main__':
    main(sys.argv[1:])
