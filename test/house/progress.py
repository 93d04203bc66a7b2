#!/usr/bin/env python3
"""A program is ended when it makes no progress, and only then: scripts/progress.py on programs that end, sleep, compute
and print.

usage: progress.py ROOT"""

import os
import pathlib
import subprocess
import sys
import time

from report import Report

PATIENCE_S = 3


def outcome(root, script, beat=''):
    """How a shell that runs `script` ends under the watch: its exit code, and what it printed."""
    done = subprocess.run([sys.executable, root / 'scripts' / 'progress.py', 'bash', '-c', script],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, timeout=240,
                          env={**os.environ, 'VERBENA_PATIENCE_S': str(PATIENCE_S), 'VERBENA_PROGRESS': beat})
    return done.returncode, done.stdout


def is_there(pid):
    return pathlib.Path(f'/proc/{pid}').exists()


def main():
    root = pathlib.Path(sys.argv[1])
    report = Report('progress')
    for script, code, said in [('exit 0', 0, ''), ('echo out; exit 3', 3, 'out\n'),
                               ('echo error >&2; exit 77', 77, 'error\n'),
                               ('kill -TERM $$', -15, ''), ('kill -KILL $$', -9, '')]:
        got = outcome(root, script)
        report.check(got == (code, said), f'{script}: ended with {got}, expected {(code, said)}')
    lines = f'for i in 1 2 3 4; do sleep {PATIENCE_S * 0.5}; echo $i; done'
    got = outcome(root, lines)
    report.check(got == (0, '1\n2\n3\n4\n'), f'a program that prints is not ended: {got}')
    for what, script in [('sleeps', 'echo $$; sleep 600'), ('computes', 'echo $$; while :; do :; done'),
                         ('waits for a child that sleeps', 'echo $$; (sleep 600; true); true')]:
        code, said = outcome(root, script)
        pid = said.split('\n')[0]
        report.check(code == 1 and 'without a line of output' in said, f'a program that {what}: {code}, {said}')
        report.check(not is_there(pid), f'a program that {what} is still there')
    # What a program leaves behind keeps its output open, and nobody waits for that.
    begin = time.monotonic()
    code, said = outcome(root, 'sleep 600 & echo $!')
    report.check(code == 0 and time.monotonic() - begin < 600, f'a child keeps the output open: {code}, {said}')
    subprocess.run(['kill', said.strip()], check=False)
    report.end()


main()
