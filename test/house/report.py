"""What the checks of this directory share: a list of failures, printed, and an exit code that Meson understands."""

import contextlib
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile


class Report:
    def __init__(self, name):
        self.name = name
        self.checks = 0
        self.failures = []

    def check(self, condition, failure):
        self.checks += 1
        if not condition:
            self.failures.append(failure)
        return condition

    def end(self):
        for failure in self.failures:
            print(f'{self.name}: {failure}')
        print(f'{self.name}: {self.checks} checks, {len(self.failures)} failed')
        # Nothing checked is a broken check, not a pass.
        sys.exit(1 if self.failures or self.checks == 0 else 0)


def skip(name, reason):
    print(f'{name}: skipped: {reason}')
    sys.exit(77)


def run(arguments, timeout_s=None, **options):
    """Runs a command to its end with stdin closed. Returns the completed process, output and errors in .stdout. Without
    `timeout_s` only who watches the test ends it, for lack of progress."""
    return subprocess.run([str(a) for a in arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors='replace', timeout=timeout_s, check=False,
                          **options)


def copy_tree(root, target):
    """Copies the tree without what builds made of it."""
    shutil.copytree(root, target, ignore=lambda at, names: [
        name for name in names if name == '.git' or name.startswith('build') or name == '__pycache__'])


def free_ports(count):
    """Ports of 127.0.0.1 that nobody listens on, below those that the kernel gives to whoever asks for any."""
    ports = []
    with contextlib.ExitStack() as held:
        while len(ports) < count:
            probe = held.enter_context(socket.socket())
            port = random.randrange(10000, 32768)
            with contextlib.suppress(OSError):
                probe.bind(('127.0.0.1', port))
                ports.append(port)
    return ports


def free_ports_in_a_row(count):
    """The first of so many ports, on all addresses, that nobody listens on."""
    while True:
        first = random.randrange(10000, 32768 - count)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(('', port))
            return first


def warnings_of_man(page):
    """What man complains of in a page."""
    formatted = subprocess.run(['man', '--warnings', '-E', 'UTF-8', '-l', '-Tutf8', '-Z', page], text=True, timeout=60,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
                               env={**os.environ, 'LC_ALL': 'C.UTF-8', 'MANROFFSEQ': '', 'MANWIDTH': '100'})
    return formatted.stderr + ('' if formatted.returncode == 0 else f'ended with {formatted.returncode}')


def check_man_warns(report):
    """This man finds a planted mistake."""
    with tempfile.TemporaryDirectory() as directory:
        planted = pathlib.Path(directory) / 'planted.1'
        planted.write_text('.TH PLANTED 1\n.SH NAME\nplanted \\- a mistake\n.nosuchmacro\n')
        report.check(warnings_of_man(planted), 'self-test: man does not warn of a macro that is none')
