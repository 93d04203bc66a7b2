#!/usr/bin/env python3
"""Nothing is lost between runs of scripts/test.sh: each part of the daily set has its turn (scripts/daily.py), and
scripts/compare_runs.py finds a case that is gone or passes no more.

usage: runs.py ROOT"""

import pathlib
import sys
import tempfile

from report import Report

MOST_RUNS = 10
BEFORE = {'plain: kv: A.One': 'passed', 'plain: kv: A.Two': 'passed', 'plain: kv: A.Three': 'skipped',
          'address: kv: A.One': 'passed', 'softroce: kv: A.One': 'passed',
          'plain, VERBENA_CHAOS_SEED=12345: kv: A.One': 'passed'}


def check_turns(daily, report):
    parts = daily.all_parts()
    report.check(len(parts) <= MOST_RUNS, f'{len(parts)} parts: some would be older than {MOST_RUNS} runs')
    report.check(all(f'{daily.SOFTROCE}{group}' in parts for group in daily.softroce_groups()),
                 'a group of suites on real verbs is no part')
    for first_commit in (0, 7, 943):
        with tempfile.TemporaryDirectory() as scratch:
            turns = daily.Turns(pathlib.Path(scratch) / 'turns.json')
            # Each part once, by --daily: on an empty Debian with what the compilers' cache has.
            for part in parts:
                turns.ended(part, 200)
            ran = []
            for run in range(len(parts)):
                part = turns.next(parts, first_commit + 3 * run)
                turns.ended(part, 200)
                ran.append(part)
            report.check(sorted(ran) == sorted(parts), f'from commit {first_commit} on: {ran}')
    with tempfile.TemporaryDirectory() as scratch:
        # Where nothing is kept, commits alone decide, and nothing is taken that compiles for an hour.
        turns = daily.Turns(pathlib.Path(scratch) / 'turns.json')
        brief = [part for part in parts if part not in daily.FRESH]
        ran = {turns.next(parts, commit) for commit in range(len(parts))}
        report.check(ran == set(brief), f'commits in a row without a record ran {sorted(ran)}')
        turns.ended('trixie', daily.BRIEF_S + 1)
        for part in brief:
            turns.ended(part)
        turns.ended('trixie')  # It failed at once this time, which says nothing of its length.
        part = turns.next(parts, 0)
        report.check(part in brief, f'{part} takes longer than a run has for it, and had its turn')


def check_comparison(compare_runs, report):
    for what, after, gone, worse in [
            ('nothing has changed', BEFORE, [], []),
            ('one more', {**BEFORE, 'plain: kv: A.Four': 'passed'}, [], []),
            ('one is gone', {k: v for k, v in BEFORE.items() if k != 'plain: kv: A.Two'}, ['plain: kv: A.Two'], []),
            ('one is gone of one configuration', {k: v for k, v in BEFORE.items() if not k.startswith('address')},
             ['address: kv: A.One'], []),
            ('one is skipped', {**BEFORE, 'plain: kv: A.One': 'skipped'}, [], ['plain: kv: A.One']),
            ('one fails', {**BEFORE, 'plain: kv: A.One': 'failed'}, [], ['plain: kv: A.One']),
            ('a part of the daily set has no turn', {k: v for k, v in BEFORE.items() if not k.startswith('softroce')},
             [], [])]:
        found = compare_runs.compared(BEFORE, after)
        report.check(found[:2] == (gone, worse), f'{what}: {found}')


def main():
    root = pathlib.Path(sys.argv[1])
    sys.path.insert(0, str(root / 'scripts'))
    sys.dont_write_bytecode = True
    import compare_runs  # pylint: disable=import-outside-toplevel
    import daily  # pylint: disable=import-outside-toplevel
    report = Report('runs')
    check_turns(daily, report)
    check_comparison(compare_runs, report)
    report.end()


main()
