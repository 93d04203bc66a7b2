#!/usr/bin/env python3
"""Holds what became of each case of a run of scripts/test.sh against an earlier run.

usage: compare_runs.py BEFORE AFTER      (build-test/results.json of each run)

Says which cases are no longer there, and which passed before and do not now; ends with 1 if there is one. Cases of the
parts of the daily set that were not in both runs are counted, not named."""

import json
import pathlib
import re
import sys

# Seeds that every commit has others of.
OF_A_COMMIT = re.compile(r', VERBENA_CHAOS_SEED=\d{4,}')
# What the parts of the daily set are called in results.
DAILY = re.compile(r'^(softroce(?!-pair)|aarch64|plain: sim_mutants|fresh|daily)\b')


def results_of(path):
    found = json.loads(pathlib.Path(path).read_text(encoding='utf-8'))
    return {name: result for name, result in found.items() if not OF_A_COMMIT.search(name)}


def compared(before, after):
    """(cases that are gone, cases that passed and do not, how many of the daily set were not in both)."""
    gone = sorted(before.keys() - after.keys())
    daily = [name for name in gone if DAILY.match(name)]
    worse = sorted(name for name in before.keys() & after.keys()
                   if before[name] == 'passed' and after[name] != 'passed')
    return [name for name in gone if name not in set(daily)], worse, len(daily)


def main():
    if len(sys.argv) != 3:
        print('usage: compare_runs.py BEFORE AFTER', file=sys.stderr)
        sys.exit(2)
    before, after = results_of(sys.argv[1]), results_of(sys.argv[2])
    gone, worse, daily = compared(before, after)
    for name in gone:
        print(f'gone: {name} ({before[name]} before)')
    for name in worse:
        print(f'{after[name]} now: {name}')
    passed = [sum(result == 'passed' for result in results.values()) for results in (before, after)]
    print(f'compare-runs: {len(before)} cases before, {len(after)} now; {passed[0]} and {passed[1]} passed; '
          f'{len(gone)} are gone, {len(worse)} passed and do not now; {daily} of the daily set were in the first alone')
    sys.exit(1 if gone or worse else 0)


if __name__ == '__main__':
    main()
