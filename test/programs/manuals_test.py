#!/usr/bin/env python3
"""Man pages and completions: there is a page for each program and command, man has no warning, every option is named,
and bash and zsh complete commands, options and values.

    manuals_test.py MAN1 PROGRAM..."""

import os
import pathlib
import pty
import re
import select
import shutil
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / 'test' / 'house'), str(ROOT / 'packaging' / 'manuals')]
import manuals  # noqa: E402
from report import Report, check_man_warns, run, warnings_of_man  # noqa: E402


# A shell that does not answer so long is stuck.
PATIENCE_S = 60


def check_pages(report, man1, commands):
    wanted = {f'{command.page()}.1' for command in commands}
    there = {page.name for page in man1.iterdir()}
    report.check(there == wanted, f'pages are {sorted(there)}, not {sorted(wanted)}')
    for command in commands:
        page = man1 / f'{command.page()}.1'
        text = page.read_text().replace('\\-', '-') if page.exists() else ''
        text = re.sub(r'\\f.|\\,|\\/', '', text)
        for option in [*command.options, *command.arguments]:
            for name in option.names:
                report.check(re.search(rf'(?<![\w-]){re.escape(name)}(?![\w-])', text), f'{page.name} lacks {name}')
        for name, _ in [*command.environment, *command.files]:
            report.check(name in text, f'{page.name} lacks {name}')
    report.check(any(command.environment and command.files for command in commands), 'no help names a variable')
    if not shutil.which('man') or not shutil.which('groff'):
        print('manuals: pages are not formatted: install man-db and groff')
        return
    check_man_warns(report)
    for page in sorted(man1.iterdir()):
        warnings = warnings_of_man(page)
        report.check(not warnings, f'{page.name}: {warnings}')


def complete(script, directory, *words):
    """What bash offers for the last of `words`."""
    quoted = ' '.join(f"'{word}'" for word in words)
    # COMPREPLY is what a completion function answers with.
    asked = (f'source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _{words[0].replace("-", "_")}; '
             'printf "%s\\n" "${COMPREPLY[@]}"')
    answer = run(['bash', '-u', '-c', asked], timeout_s=60, cwd=directory)
    return set(answer.stdout.split())


class Terminal:
    """A shell at a terminal, in which a program's name is a function that prints what it was given."""

    def __init__(self, shell, directory, setup):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.execvpe(shell[0], shell, {
                'PATH': os.environ['PATH'], 'HOME': str(directory), 'TERM': 'dumb', 'PS1': '> ', 'LC_ALL': 'C.UTF-8',
                'INPUTRC': '/dev/null'})
        self.seen = ''
        self.ask(setup + '; echo re""ady\n', ['ready'])

    def ask(self, keys, wanted):
        """Types, and reads until all that is wanted is there. Returns what is missing."""
        self.seen = ''
        os.write(self.terminal, keys.encode())
        deadline = time.monotonic() + PATIENCE_S
        while any(each not in self.seen for each in wanted) and time.monotonic() < deadline:
            if select.select([self.terminal], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.terminal, 4096).decode(errors='replace')
                except OSError:  # The shell has ended.
                    break
        return [each for each in wanted if each not in self.seen]

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


TYPED = (('sta', 'stats'), ('get --wait=ad', 'get --wait=adaptive'), ('get --wait ev', 'get --wait event'),
         ('get --read-o', 'get --read-only'), ('load valu', 'load values/'),
         ('put --file=value.', 'put --file=value.txt'), ('get -d so', 'get -d soft'))


def check_at_terminal(report, name, terminal):
    for typed, meant in TYPED:
        missing = terminal.ask(f'verbena-kv {typed}\t\n', [f'RAN<{meant}>'])
        report.check(not missing, f'{name} makes of {typed!r} and Tab: {terminal.seen!r}')
    missing = terminal.ask('verbena-kv s\t\t', ['serve', 'stats', 'shell'])
    report.check(not missing, f'{name} does not offer {missing}: {terminal.seen!r}')
    terminal.end()


def check_bash(report, directory, programs):
    scripts = {name: manuals.write_bash(commands) for name, commands in programs.items()}
    for name, script in scripts.items():
        (directory / name).write_text(script)
    (directory / 'value.txt').touch()
    (directory / 'values').mkdir()
    for words, offered in (
            (('verbena-kv', 's'), {'serve', 'stats', 'shell'}),
            (('verbena-kv', 'get', '--ti'), {'--timeout-ms'}),
            (('verbena-kv', '-v', 'put', '--file', 'va'), {'value.txt', 'values'}),
            (('verbena-kv', 'load', 'va'), {'values'}),
            (('verbena-kv', 'get', '--wait', ''), {'spin', 'adaptive', 'event'}),
            (('verbena-kv', 'get', '-d', 's'), {'soft'}),
            (('verbena-kv', 'get', '-p', ''), set()),
            (('verbena-kv', 'get', '--wait', '='), {'spin', 'adaptive', 'event'}),
            (('verbena-kv', 'get', '--wait', '=', 'ad'), {'adaptive'}),
            (('verbena-kv', 'put', '--file', '=', 'va'), {'value.txt', 'values'}),
            (('verbena-kv', 'get', '--read-only', '='), set()),
            (('verbena-kv', 'get', '--wait=s'), {'--wait=spin'}),  # Where COMP_WORDBREAKS has no =.
            (('verbena-perf', 'message', '--sw'), {'--sweep'}),
            (('verbena-perf', 'mesh', '--pattern', 'p'), {'ping-pong', 'poll'}),
            (('verbena-info', '--pl'), {'--plan'})):
        said = complete(directory / words[0], directory, *words)
        report.check(said == offered, f'bash offers {sorted(said)} for {words}, not {sorted(offered)}')
    check_at_terminal(report, 'bash', Terminal(
        ['bash', '--norc', '--noprofile', '-i'], directory,
        f"source {directory}/verbena-kv; verbena-kv() {{ printf 'RAN<%s>\\n' \"$*\"; }}"))
    for name, commands in programs.items():
        for command in commands[1:]:
            offered = complete(directory / name, directory, *command.name.split(), '-')
            wanted = {n for option in command.options for n in option.names}
            report.check(offered == wanted, f'{command.name}: bash offers {sorted(offered ^ wanted)} in excess or not')


def check_zsh(report, directory, programs):
    for name, commands in programs.items():
        script = manuals.write_zsh(commands)
        for command in commands:
            for option in command.options:
                for each in option.names:
                    report.check(each in script, f'zsh does not know {each} of {command.name}')
        if not shutil.which('zsh'):
            continue
        (directory / f'_{name}').write_text(script)
        parsed = run(['zsh', '-n', directory / f'_{name}'], timeout_s=60)
        report.check(parsed.returncode == 0, f'zsh does not parse _{name}: {parsed.stdout}')
    if not shutil.which('zsh'):
        print('manuals: completions of zsh are not tried: install zsh')
        return
    check_at_terminal(report, 'zsh', Terminal(
        ['zsh', '-f', '-i'], directory,
        f"fpath=({directory} $fpath); autoload -U compinit; compinit -u -d {directory}/zcompdump; "
        "unsetopt autoremoveslash; verbena-kv() { printf 'RAN<%s>\\n' \"$*\"; }"))


def main():
    man1, *paths = sys.argv[1:]
    report = Report('manuals')
    programs = {pathlib.Path(path).name: manuals.read_program(path) for path in paths}
    check_pages(report, pathlib.Path(man1), [command for commands in programs.values() for command in commands])
    with tempfile.TemporaryDirectory(prefix='verbena-manuals-') as directory:
        check_bash(report, pathlib.Path(directory), programs)
        check_zsh(report, pathlib.Path(directory), programs)
    report.end()


main()
