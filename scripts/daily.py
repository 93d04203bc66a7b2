"""The daily set: tests that take minutes, and that a change seldom breaks alone. `scripts/test.sh --daily` runs all its
parts, any other whole run one of them, in turn, so that none that takes minutes is ever long ago."""

import json
import os
import pathlib
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A group of suites of scripts/softroce/suites.sh is a part each, but for those of every run.
GROUP = re.compile(r'^group (\w+)$', re.MULTILINE)
EVERY_RUN = 'each'
SOFTROCE = 'softroce-'
# Commands on an empty Debian (scripts/fresh-machine.sh): its arguments.
CONSUMERS = ['bash', '-c', 'scripts/demo.sh && scripts/test.sh --filter consumers']
FRESH = {
    'packages': ['--', 'scripts/packages-debian.sh', '--install'],
    'bookworm': ['--suite', 'bookworm', '--', *CONSUMERS],
    'trixie': ['--suite', 'trixie', '--', *CONSUMERS],
}
# Seconds for all targets together.
FUZZ_TOTAL_S = 240
# A run that has other things to do takes such a part in turn only when the last one here took no longer: without the
# compilers' cache an empty Debian compiles for an hour.
BRIEF_S = 300


def softroce_groups():
    """The groups of suites that are in no other run."""
    text = (ROOT / 'scripts' / 'softroce' / 'suites.sh').read_text(encoding='utf-8')
    return [name for name in dict.fromkeys(GROUP.findall(text)) if name != EVERY_RUN]


def all_parts():
    return [*(SOFTROCE + group for group in softroce_groups()), 'aarch64', 'mutants', 'fuzz', 'chaos', *FRESH]


def runs_here(part):
    """On a fresh machine there is no other one."""
    return part not in FRESH or not os.environ.get('VERBENA_FRESH')


class Turns:
    """When each part was last run to its end, and how long those of FRESH took when they last passed, in `file`."""

    def __init__(self, file):
        self.file = file

    def known(self):
        try:
            return json.loads(self.file.read_text(encoding='utf-8'))
        except (OSError, ValueError):
            return {}

    def ended(self, part, seconds=None):
        self.file.parent.mkdir(parents=True, exist_ok=True)
        known = self.known()
        known[part] = {**known.get(part, {}), 'at': int(time.time())}
        if seconds is not None:
            known[part]['seconds'] = int(seconds)
        self.file.write_text(json.dumps(known), encoding='utf-8')

    def next(self, parts, number):
        """The part that has waited longest; of those that were never run the one that commit `number` comes to."""
        known = self.known()
        parts = [part for part in parts if part not in FRESH or known.get(part, {}).get('seconds', BRIEF_S) < BRIEF_S]
        return min(parts, key=lambda part: (known.get(part, {}).get('at', 0),
                                            (parts.index(part) - number) % len(parts)))


def commit_number():
    """How many commits led to this one; 0 where git does not say."""
    try:
        told = subprocess.run(['git', 'rev-list', '--count', 'HEAD'], cwd=ROOT, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, timeout=60)
    except OSError:
        return 0
    return int(told.stdout) if told.returncode == 0 else 0
