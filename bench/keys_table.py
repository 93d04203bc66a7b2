"""What keys.sh noted, as a table, a plot and JSON.

usage: keys_table.py FIGURES --out DIR [--json FILE]     FIGURES: in each line OPERATION:KEYS and a JSON value
"""

import argparse
import json
import pathlib
import sys

import plots
from compare_table import Figures, environment
from table import median, number, read

# What is measured, and what it is called.
OPERATIONS = {
    'get-index': 'GET one-sided, through the index',
    'get-message': 'GET by message',
    'put': 'PUT',
    'gets-index': 'GET one-sided, of 32 at once',
    'gets-message': 'GET by message, of 32 at once',
    'chase': 'a read of one cache line of as much memory, after another',
}


def costs(figures):
    """Operation to keys to the ns of each round: medians of calls, or what a key took in batches."""
    found = {operation: {} for operation in OPERATIONS}
    for name, values in figures.noted.items():
        operation, _, keys = name.partition(':')
        if operation == 'chase':
            found[operation][int(keys)] = [value['ns'] for value in values]
        elif operation in found:
            found[operation][int(keys)] = figures.values(name, 'ns')
    return found


def misses(found, operation, keys, least):
    """What an operation takes more with so many keys than with the least, in such reads: its misses, if it is flat
    besides. None where reads take no longer."""
    def more(name):
        return median(found[name][keys]) - median(found[name][least])
    return more(operation) / more('chase') if more('chase') > 0 else None


def table(found):
    """A row for each number of keys that all was measured with: medians in ns, and the misses."""
    counts = sorted(set.intersection(*(set(each) for each in found.values())))
    return [{'keys': keys,
             'ns': {operation: median(found[operation][keys]) for operation in OPERATIONS},
             'misses': {operation: misses(found, operation, keys, counts[0])
                        for operation in OPERATIONS if operation != 'chase'}} for keys in counts]


def markdown(rows, figures, drawn):
    text = ['# What an operation costs by the number of keys', '',
            'Written by `bench/keys.sh`; what it measures is in [README.md](README.md). Medians of interleaved',
            'rounds, in ns a key; keys of 16 B, values of 64 B, chosen uniformly. In brackets: what it takes more than',
            'with the fewest keys, in reads of one cache line of as much memory that depend on each other (the last',
            'column).', '',
            '| keys | ' + ' | '.join(OPERATIONS.values()) + ' |', '|--:|' + '--:|' * len(OPERATIONS),
            '| *better* |' + ' lower |' * len(OPERATIONS)]
    for row in rows:
        cells = []
        for operation in OPERATIONS:
            extra = row['misses'].get(operation)
            cells.append(number(row['ns'][operation]) + ('' if extra is None else f' ({extra:.1f})'))
        text.append(f"| {row['keys']:,} | " + ' | '.join(cells) + ' |')
    if drawn:
        text += ['', '![Cost of an operation by the number of keys](keys.svg)']
    text += ['', '## Environment', ''] + [f'- {name}: {value}' for name, value in environment(figures).items()]
    return '\n'.join(text) + '\n'


def draw(found, figures, out):
    told = environment(figures)
    where = ', '.join([str(told[name]) for name in ('cpu', 'kernel', 'date') if name in told])
    curves = {OPERATIONS[operation]: sorted(points.items()) for operation, points in found.items()}
    return plots.write(plots.by_number('Cost of an operation by the number of keys', where, curves, 'keys'),
                       out / 'keys.svg')


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('figures')
    parser.add_argument('--out', type=pathlib.Path, required=True)
    parser.add_argument('--json', type=pathlib.Path)
    options = parser.parse_args(arguments)
    figures = Figures(read(options.figures))
    found = costs(figures)
    rows = table(found)
    options.out.mkdir(parents=True, exist_ok=True)
    lacking = plots.missing()
    drawn = not lacking and draw(found, figures, options.out)
    if lacking:
        print(f'bench: there is no plot: {lacking}', file=sys.stderr)
    text = markdown(rows, figures, drawn)
    (options.out / 'keys.md').write_text(text, encoding='utf-8')
    print(text)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + '\n', encoding='utf-8')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
