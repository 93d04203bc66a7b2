#!/usr/bin/env python3
"""Runs a program to its end, unless it stops making progress. Meson starts every test by it (test/meson.build), and
scripts/run_tests.py uses its Progress for builds.

usage: progress.py PROGRAM ARGUMENT...

A line of output is progress. Without one the program may spend PATIENCE_S seconds of its own: a second counts while it
computes, by the processor time of its busiest process, and while it and all its descendants sleep. A second in which
they wait for a core that others have does not count, so that a busy machine ends nothing. A program that has used up
its patience is killed with its descendants, and this ends with 1 and says so on stderr. Otherwise it ends as the
program did.
VERBENA_PATIENCE_S sets another patience. Each line also sets the time of the file that VERBENA_PROGRESS names, by which
who runs several programs sees that one of them goes on."""

import contextlib
import ctypes
import os
import pathlib
import resource
import selectors
import signal
import subprocess
import sys
import time

PATIENCE_S = 300
LOOK_S = 2
PR_SET_PDEATHSIG = 1
TICKS = os.sysconf('SC_CLK_TCK')


def processes():
    """(parent, is it running or waiting for a core, processor time in seconds) of each process, by its number."""
    found = {}
    for entry in os.scandir('/proc'):
        if entry.name.isdigit():
            # It may have ended since.
            with contextlib.suppress(OSError, IndexError):
                fields = pathlib.Path(entry.path, 'stat').read_text(encoding='utf-8', errors='replace')
                words = fields.rpartition(')')[2].split()
                found[int(entry.name)] = (int(words[1]), words[0] == 'R', (int(words[11]) + int(words[12])) / TICKS)
    return found


def family_of(pid, all_processes):
    """`pid` and its descendants."""
    children = {}
    for number, (parent, _, _) in all_processes.items():
        children.setdefault(parent, []).append(number)
    family, rest = [], [pid]
    while rest:
        number = rest.pop()
        if number in all_processes:
            family.append(number)
        rest += children.get(number, [])
    return family


def is_ready(pid):
    """Whether a thread of the process runs, or waits for a core."""
    with contextlib.suppress(OSError):
        for thread in os.scandir(f'/proc/{pid}/task'):
            with contextlib.suppress(OSError):
                stat = pathlib.Path(thread.path, 'stat').read_text(encoding='utf-8', errors='replace')
                if stat.rpartition(')')[2].split()[0] == 'R':
                    return True
    return False


class Progress:
    """How much of its patience the program `pid` has spent since its last line."""

    def __init__(self, pid, patience_s=PATIENCE_S):
        self.pid = pid
        self.patience_s = patience_s
        self.spent_s = self.longest_s = 0.0
        self.begin()

    def begin(self):
        """It made progress."""
        self.longest_s = max(self.longest_s, self.spent_s)
        self.spent_s = 0.0
        self.last = time.monotonic()
        self.times = {}

    def is_over(self):
        """Looks at the processes, at most every LOOK_S seconds. Whether the patience is used up."""
        now = time.monotonic()
        if now - self.last < LOOK_S:
            return False
        everything = processes()
        family = family_of(self.pid, everything)
        # A process that is new since the last look began within it.
        computed = max((everything[number][2] - self.times.get(number, 0.0) for number in family), default=0.0)
        if not self.times:
            computed = 0.0
        sleeps = not any(everything[number][1] or is_ready(number) for number in family)
        self.spent_s += now - self.last if sleeps else min(computed, now - self.last)
        self.times = {number: everything[number][2] for number in family}
        self.last = now
        return self.spent_s >= self.patience_s

    def kill(self):
        """Kills the program and its descendants, and nobody else."""
        for number in reversed(family_of(self.pid, processes())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def relay(source, sink):
    """Copies what is there. False at the end."""
    read = os.read(source, 65536)
    view = memoryview(read)
    while view:
        view = view[os.write(sink, view):]
    return bool(read)


def watch(child, patience_s):
    """Relays the output of `child` until it ends. False when it was killed for lack of progress."""
    progress = Progress(child.pid, patience_s)
    beat = os.environ.get('VERBENA_PROGRESS')
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, 1)
        selector.register(child.stderr, selectors.EVENT_READ, 2)
        while True:
            # Its end first: what it left running may keep its pipes, and only what is in them now is its output.
            has_ended = child.poll() is not None
            ready = selector.select(0 if has_ended else 0.1)
            for key, _ in ready:
                if not relay(key.fd, key.data):
                    selector.unregister(key.fileobj)
            if ready:
                progress.begin()
                if beat:
                    with contextlib.suppress(OSError):
                        os.utime(beat)
            elif has_ended:
                return True
            elif progress.is_over():
                progress.kill()
                child.wait()
                return False
            if not selector.get_map():
                # It closed its output, and may go on.
                time.sleep(0 if has_ended else 0.1)


def main():
    command = sys.argv[1:]
    if not command:
        print('usage: progress.py PROGRAM ARGUMENT...', file=sys.stderr)
        return 2
    # Who started this is killed: so is this, and the program with it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as child:
        def end(number, _):
            Progress(child.pid).kill()
            sys.exit(128 + number)

        signal.signal(signal.SIGTERM, end)
        patience_s = float(os.environ.get('VERBENA_PATIENCE_S', PATIENCE_S))
        if not watch(child, patience_s):
            print(f'progress: killed after {patience_s:.0f} s without a line of output: {" ".join(command)}',
                  file=sys.stderr)
            return 1
        child.stdout.close()
        child.stderr.close()
    if child.returncode < 0:
        # As the program ended, but without a core of this.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if child.returncode != -signal.SIGKILL:
            signal.signal(-child.returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -child.returncode)
    return child.returncode


if __name__ == '__main__':
    sys.exit(main())
