"""What the tables of the benchmarks share: figures as the scripts noted them, and ratios round by round."""

import json
import statistics


def read(path):
    """Name to values, in the order of their rounds. Each line of the file is a name and a JSON value."""
    figures = {}
    with open(path, encoding='utf-8') as lines:
        for line in lines:
            name, value = line.split(' ', 1)
            figures.setdefault(name, []).append(json.loads(value))
    return figures


def median(values):
    """The median of what was measured; None when nothing was."""
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def ratio(a, b):
    return a / b if a is not None and b else None


def ratios(ours, theirs):
    """Round by round: what the machine did to one it did to the other. Without the rounds that lack either."""
    found = [ratio(a, b) for a, b in zip(ours, theirs)]
    return [value for value in found if value is not None]


def met(value, target, more):
    """None without a target. What was not measured has not met its own."""
    if target is None:
        return None
    return value is not None and (value >= target if more else value <= target)


def verdict(value, target, more):
    if value is None:
        return 'not measured'
    return {None: '-', True: 'yes', False: 'no'}[met(value, target, more)]


def better(more):
    return 'higher' if more else 'lower'


def bound(target, more):
    return '-' if target is None else f"{'>=' if more else '<='} {target}"


def number(value):
    if value is None:
        return '-'
    return f'{value:,.0f}' if abs(value) >= 100 else f'{value:.2f}'
