"""Prints what bench/slices measured as tables, one for each state of the machine, and the ratios that have targets.

usage: slices_table.py FILE...       each line of a FILE is a JSON object of one slice
"""

import dataclasses
import json
import statistics
import sys

from table import bound, met, number, verdict

# What there and back takes through a bare ring of cache lines, before and after a slice, in ns: the states that were
# seen here are under 50, 100 to 200, and over 400. In the first one both threads share a core.
STATES = (('under 75 ns', 75), ('75 to 300 ns', 300), ('over 300 ns', float('inf')))
SHARED, MIDDLE = STATES[0][0], STATES[1][0]
LEAST = 5  # Slices of a figure.
BARE, OURS, PEER = 'bare', 'now', 'ucx'
FLOOR_OF = 'write 8 B seen'


@dataclasses.dataclass(frozen=True)
class Row:
    """A comparison with a target: of an operation with UCX's, the floor, or one way of the ring around its slice."""
    operation: str
    peer: str               # PEER, `floor` or `ring`.
    target: float
    states: dict = dataclasses.field(default_factory=dict)  # State to another target, or None.

    def target_in(self, state):
        return self.states.get(state, self.target)

    def name(self, state):
        peer = {PEER: 'UCX', 'floor': 'the best bare exchange', 'ring': 'one way of a bare ring'}[self.peer]
        return f'{self.operation}, to {peer} (ring {state})'


ROWS = (
    Row('message 8 B', PEER, 0.7, {SHARED: 0.95}),
    Row('read 8 B', PEER, 0.75),
    Row('write 8 B seen', PEER, 1.1),
    Row('write 8 B seen', 'floor', 1.25),
    Row('GET 64 B, location known', 'ring', 2.0),
    Row('GET 64 B, through the index', 'ring', 4.0),
    Row('GET 64 B, by message', 'ring', 4.5, {name: None for name, _ in STATES if name != MIDDLE}),
    Row('PUT 64 B', 'ring', 5.5, {name: None for name, _ in STATES if name != MIDDLE}),
)


def state_of(ring_ns):
    return next(name for name, end in STATES if ring_ns < end)


@dataclasses.dataclass(frozen=True)
class Slice:
    ns: float
    one_way: float          # Through the ring, around the slice.


def read(paths):
    """State to (variant, operation) to (file, rotation) to Slice. Without slices in which the state changed."""
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
                found[path, one['rotation']] = Slice(one['ns'], (one['before'] + one['after']) / 4)
    return states, changed, slices


def ratios(ours, theirs):
    """Of the rotations that have both."""
    return [ours[at].ns / theirs[at].ns for at in ours.keys() & theirs.keys()]


def middle(values):
    return statistics.median(values) if len(values) >= LEAST else None


def ratio(ours, theirs):
    return middle(ratios(ours, theirs))


def medians_of(found):
    return {name: middle([each.ns for each in values.values()]) for name, values in found.items()
            if len(values) >= LEAST}


def floor_of(medians):
    """The bare exchange that was the quickest; None without any."""
    bare = {name: value for name, value in medians.items() if name[0] == BARE}
    return min(bare, key=bare.get) if bare else None


def libraries(found):
    """This checkout first: the others' ratios are to it."""
    return sorted({variant for variant, _ in found} - {BARE}, key=lambda name: (name != OURS, name))


def targets(states):
    """Of each row, in each state that was seen: what `--json` of compare.sh has."""
    for row in ROWS:
        for state, found in states.items():
            medians = medians_of(found)
            ours = found.get((OURS, row.operation), {})
            if len(ours) < LEAST:
                continue
            if row.peer == 'ring':
                peer = middle([each.one_way for each in ours.values()])
                both = [each.ns / each.one_way for each in ours.values()]
            else:
                name = floor_of(medians) if row.peer == 'floor' else (row.peer, row.operation)
                peer = medians.get(name)
                both = ratios(ours, found.get(name, {}))
            target, value = row.target_in(state), middle(both)
            quarters = statistics.quantiles(both, n=4) if len(both) >= LEAST else []
            yield {'name': row.name(state), 'ours': medians[OURS, row.operation], 'peer': peer, 'ratio': value,
                   'target': target, 'met': met(value, target, False), 'unit': 'ns', 'bound': '<=',
                   'quarters': quarters[::2], 'slices': len(both)}


def targets_table(states):
    text = ['| what | better | ours, ns | peer, ns | ratio | half of them | slices | target | met |',
            '|---|---|--:|--:|--:|---|--:|---|---|']
    for one in targets(states):
        half = ' to '.join(f'{each:.2f}' for each in one['quarters']) or '-'
        text.append(f"| {one['name']} | lower | {number(one['ours'])} | {number(one['peer'])} | {number(one['ratio'])} "
                    f"| {half} | {one['slices']} | {bound(one['target'], False)} "
                    f"| {verdict(one['ratio'], one['target'], False)} |")
    return '\n'.join(text)


def table(found, variants):
    """The libraries' operations, with ratios of the first to the others and the floor."""
    medians = medians_of(found)
    first, *others = variants
    floor = floor_of(medians)
    head = ['', *(f'{name}, ns' for name in variants), *(f'{first} to {name}' for name in others), 'to the floor']
    rows = []
    for operation in sorted({operation for variant, operation in found if variant != BARE}):
        ours = found.get((first, operation), {})
        to_floor = ratio(ours, found[floor]) if floor and operation == FLOOR_OF else None
        rows.append([operation, *(number(medians.get((name, operation))) for name in variants),
                     *(number(ratio(ours, found.get((name, operation), {}))) for name in others), number(to_floor)])
    for (variant, operation), value in sorted(medians.items(), key=lambda item: item[1]):
        if variant == BARE:
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
    print(f'\nWith targets:\n\n{targets_table(states)}')


if __name__ == '__main__':
    main(sys.argv[1:])
