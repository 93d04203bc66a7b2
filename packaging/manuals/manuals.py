#!/usr/bin/env python3
"""Manual pages and completions of the programs, from what they print with --help.

    manuals.py man HELP2MAN OUT PROGRAM...   man pages, one a program and one a command, into the directory OUT
    manuals.py bash OUT PROGRAM              completion for bash
    manuals.py zsh OUT PROGRAM               completion for zsh"""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# CLI11 puts a name into so many columns, and the description of a longer one on the next line.
NAME_COLUMNS = 30
GROUP_INDENT = 2
# What completes the value of an option, or an argument.
FILES, DIRECTORIES, DEVICES, HOSTS, NOTHING = 'files', 'directories', 'devices', 'hosts', 'nothing'


@dataclasses.dataclass
class Option:
    names: list  # Such as -p and --port; of an argument its one name.
    metavar: str  # Empty: a flag.
    what: str
    is_repeated: bool

    def choices(self):
        """The words that it takes, or nothing when it takes others."""
        words = self.metavar.split('|')
        return words if len(words) > 1 and all(re.fullmatch(r'[a-z][a-z-]*', word) for word in words) else []

    def values(self):
        """What completes its value: one of the constants above, or its words joined by blanks."""
        if choices := self.choices():
            return ' '.join(choices)
        if self.metavar == 'soft|DEVICE':
            return DEVICES
        if self.metavar == 'NAME|ADDRESS':
            return HOSTS
        if self.metavar in ('DIR', 'DIRECTORY'):
            return DIRECTORIES
        return FILES if self.metavar == 'FILE' or self.names[-1].endswith('file') else NOTHING


@dataclasses.dataclass
class Command:
    name: str  # Such as `verbena-kv get`.
    what: str  # Its description, without exit codes.
    exit_codes: str
    usage: str
    options: list
    arguments: list
    commands: list  # (names, description) of each.
    environment: list  # The same of variables,
    files: list  # and of files.

    def page(self):
        return self.name.replace(' ', '-')


def entries(lines):
    """(name, description) of each entry of a section of CLI11's help."""
    lines = [line for line in lines if line.strip()]
    wrapped = ' ' * NAME_COLUMNS
    at = 0
    while at < len(lines):
        if at + 1 < len(lines) and lines[at + 1].startswith(wrapped):
            yield lines[at].strip(), lines[at + 1].strip()
            at += 2
        else:
            yield lines[at][:NAME_COLUMNS].strip(), lines[at][NAME_COLUMNS:].strip()
            at += 1


def parse_option(text, what):
    """An option of ('-p,--port UINT:1 to 65535=7470 Needs: --other', "the server's port")."""
    text, *relations = re.split(r' (?=Needs: |Excludes: |REQUIRED)', text)
    names, _, kind = text.partition(' ')
    is_repeated = kind.endswith('...')
    kind = kind.removesuffix('...').strip()
    kind, _, default = kind.partition('=')
    notes = []
    if ':' in kind and kind.split(':')[0] in ('UINT', 'INT', 'FLOAT'):
        notes.append(kind.split(':', 1)[1])
        kind = 'N'
    kind = {'UINT': 'N', 'INT': 'N', 'FLOAT': 'N'}.get(kind, kind)
    if default:
        notes.append(f'default {default}')
    for relation in relations:
        word, _, others = relation.partition(': ')
        notes += [f'{"only" if word == "Needs" else "not"} with {others}'] if others else []
    what += f' ({"; ".join(notes)})' if notes else ''
    return Option(names.split(','), re.sub(r', | or ', '|', kind), what, is_repeated)


def parse_help(name, text):
    # An option group is one more section, moved to the right.
    sections = {'': []}
    section, indent = '', 0
    for line in text.splitlines():
        if line.startswith('[Option Group'):
            indent = GROUP_INDENT
            continue
        line = line[indent:] if line.startswith(' ' * indent) else line
        if re.fullmatch(r'\w+:', line):
            section = line[:-1]
            sections.setdefault(section, [])
        else:
            sections[section].append(line)
    unknown = set(sections) - {'', 'Options', 'Positionals', 'Subcommands', 'Environment', 'Files'}
    if unknown:
        sys.exit(f'manuals: {name} --help has sections that nobody expects: {sorted(unknown)}')
    head = sections['']
    usage = next(line for line in head if line.startswith('Usage: '))
    what = ' '.join(line for line in head[:head.index(usage)] if line)
    what, _, exit_codes = what.partition('Exit codes: ')
    arguments = [Option([text.split()[0]], text.split()[0], said, False)
                 for text, said in entries(sections.get('Positionals', []))]
    return Command(name, what.strip(), exit_codes.strip(), usage.removeprefix('Usage: '),
                   [parse_option(*entry) for entry in entries(sections.get('Options', []))], arguments,
                   [(text.split(', '), said) for text, said in entries(sections.get('Subcommands', []))],
                   list(entries(sections.get('Environment', []))), list(entries(sections.get('Files', []))))


def ask(program, *arguments):
    return subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True,
                          text=True, timeout=60).stdout


def read_program(program):
    """The program and its commands."""
    name = pathlib.Path(program).name
    top = parse_help(name, ask(program, '--help'))
    below = [parse_help(f'{name} {names[0]}', ask(program, names[0], '--help')) for names, _ in top.commands]
    for command in below:
        command.exit_codes = top.exit_codes
    return [top, *below]


def sentence(text):
    return text[0].upper() + text[1:] + ('' if text.endswith('.') else '.')


def plain_help(command):
    """The help as help2man reads it best."""
    lines = [f'Usage: {command.usage}', '', sentence(command.what), '']
    wrapped = ' ' * NAME_COLUMNS
    if command.arguments:
        lines.append('Arguments:')
        for argument in command.arguments:
            lines += [f'  {argument.names[0]}', wrapped + sentence(argument.what)]
    lines.append('Options:')
    for option in command.options:
        value = f'={option.metavar}' if option.metavar else ''
        names = ', '.join(option.names[:-1] + [option.names[-1] + value])
        again = ' May be given several times.' if option.is_repeated else ''
        lines += [f'  {names}', wrapped + sentence(option.what) + again]
    if command.commands:
        lines.append('Commands:')
        for names, what in command.commands:
            lines += [f'  {", ".join(names)}', wrapped + sentence(what)]
    return '\n'.join(lines) + '\n'


def roff(text):
    return text.replace('\\', '\\e').replace('-', '\\-').replace('"', '\\(dq')


def extra_sections(command, pages):
    own = HERE / f'{command.page()}.h2m'
    text = own.read_text() if own.exists() else ''
    for section, font, rows in (('ENVIRONMENT', 'B', command.environment), ('FILES', 'I', command.files)):
        if rows:
            text += f'\n[{section}]\n' + ''.join(f'.TP\n.{font} {roff(name)}\n{roff(sentence(what))}\n'
                                                for name, what in rows)
    if command.exit_codes:
        codes = re.findall(r'(\d) (.*?)(?:[,;] (?=\d )|\.?$)', command.exit_codes)
        text += '\n[EXIT STATUS]\n' + ''.join(f'.TP\n.B {code}\n{sentence(what)}\n' for code, what in codes)
    others = [page for page in pages if page != command.page()]
    text += '\n[SEE ALSO]\n' + ',\n'.join(f'.BR {page} (1)' for page in others).replace(' (1),\n', ' (1),\n') + '\n'
    return text


def write_man(help2man, out, programs):
    # Anew, so that the directory is as young as its pages.
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for program in programs:
        version = ask(program, '--version').split()[-1]
        commands = read_program(program)
        pages = [command.page() for command in commands]
        for command in commands:
            with tempfile.TemporaryDirectory(prefix='verbena-manuals-') as directory:
                work = pathlib.Path(directory)
                (work / 'help').write_text(plain_help(command))
                (work / 'sections').write_text(extra_sections(command, pages if command is commands[0] else pages[:1]))
                # help2man runs a program; this one prints the text.
                speaker = work / command.page()
                speaker.write_text(f'#!/bin/sh\ncat {work}/help\n')
                speaker.chmod(0o755)
                page = subprocess.run(
                    [help2man, '--no-info', '--no-discard-stderr', '--section=1', '--manual=Verbena',
                     f'--source=Verbena {version}', f'--version-string={command.page()} {version}',
                     f'--name={command.what.split(". ")[0].rstrip(".")}', f'--include={work}/sections', speaker],
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True, timeout=60).stdout
            (out / f'{command.page()}.1').write_text(page)


BASH = '''# bash completion of @name@, made from its --help by packaging/manuals/manuals.py
@function@() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command='' values='' joined='' each
  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $each in
@commands@
    esac
  done
  # --option=value is three words, unless COMP_WORDBREAKS lacks the =.
  if [[ $word == = ]]; then
    word='' joined=split
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD-2]} joined=split
  elif [[ $word == --*=* ]]; then
    before=${word%%=*} joined=${word%%=*}= word=${word#*=}
  fi
  # The value of an option, or else an option, a command or an argument.
  case $before in
@options@
    *) [[ -z $joined ]] || values=nothing ;;
  esac
  [[ -n $values ]] || case $command:$word in
@names@
  esac
  COMPREPLY=()
  case $values in
    nothing) ;;
    files) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    directories) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
    hosts) mapfile -t COMPREPLY < <(compgen -A hostname -- "$word") ;;
    devices)
      values=$(cd /sys/class/infiniband 2>/dev/null && echo *)
      mapfile -t COMPREPLY < <(compgen -W "soft $values" -- "$word") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word") ;;
  esac
  [[ $joined != *= ]] || COMPREPLY=("${COMPREPLY[@]/#/$joined}")
}
complete -F @function@ @name@
'''


def fill(template, **values):
    for name, value in values.items():
        template = template.replace(f'@{name}@', value)
    return template


def values_of_options(commands):
    # What completes an option's value, by the option's names. The same name is the same thing in each command.
    found = {}
    for command in commands:
        for option in command.options:
            for name in option.names:
                if option.metavar and found.setdefault(name, option.values()) != option.values():
                    sys.exit(f'manuals: {name} takes {option.values()} in {command.name}, and {found[name]} elsewhere')
    return found


def write_bash(commands):
    top, *below = commands
    by_values = {}
    for name, values in values_of_options(commands).items():
        by_values.setdefault(values, []).append(name)
    names = []
    for command, (all_names, _) in zip(below, top.commands, strict=True):
        options = ' '.join(name for option in command.options for name in option.names)
        arguments = {argument.values() for argument in command.arguments} - {NOTHING}
        if arguments:
            names.append(f"    {all_names[0]}:-*) values='{options}' ;;")
            names.append(f"    {all_names[0]}:*) values='{' '.join(arguments)}' ;;")
        else:
            names.append(f"    {all_names[0]}:*) values='{options}' ;;")
    first = [name for option in top.options for name in option.names] + [n for all_names, _ in top.commands
                                                                         for n in all_names]
    names.append(f"    *) values='{' '.join(first)}' ;;")
    met = [f"      {'|'.join(all_names)}) command={all_names[0]}; break ;;" for all_names, _ in top.commands]
    options = [f"    {'|'.join(all_names)}) values='{values}' ;;" for values, all_names in sorted(by_values.items())]
    return fill(BASH, name=top.name, function='_' + top.name.replace('-', '_'),
                commands='\n'.join(met) or '      *) ;;', options='\n'.join(options), names='\n'.join(names))


ZSH = '''#compdef @name@
# zsh completion of @name@, made from its --help by packaging/manuals/manuals.py
@function@_devices() {
  local -a devices=(soft /sys/class/infiniband/*(N:t))
  _describe device devices
}
@function@() {
  local context state line
  local -A opt_args
@body@
}
@function@ "$@"
'''


def zsh_text(text):
    return re.sub(r'([\[\]:\\])', r'\\\1', text).replace("'", "'\\''")


def zsh_options(command, function):
    actions = {FILES: '_files', DIRECTORIES: '_files -/', HOSTS: '_hosts', DEVICES: f'{function}_devices', NOTHING: ' '}
    lines = []
    for option in command.options:
        value = ''
        if option.metavar:
            action = actions.get(option.values(), f'({option.values()})')
            value = f':{zsh_text(option.metavar)}:{action}'
        first = '*' if option.is_repeated else f"({' '.join(option.names)})"
        for name in option.names:
            equals = '=' if option.metavar and name.startswith('--') else ''
            lines.append(f"'{first}{name}{equals}[{zsh_text(option.what)}]{value}'")
    for number, argument in enumerate(command.arguments, 1):
        # Not ' ': zsh would then print the argument's name, and list the options that fit instead of inserting one.
        action = actions.get(argument.values(), ' ')
        lines.append(f"'{number}:{argument.names[0]}:{'()' if action == ' ' else action}'")
    return lines


def write_zsh(commands):
    top, *below = commands
    function = '_' + top.name.replace('-', '_')
    lines = zsh_options(top, function)
    body = []
    if below:
        lines += ["'1:command:->command'", "'*::argument:->argument'"]
    body.append('  _arguments -C \\\n' + ' \\\n'.join(f'    {line}' for line in lines))
    if below:
        described = [f"'{name}:{zsh_text(what)}'" for names, what in top.commands for name in names]
        body.append('  case $state in\n    command)\n      local -a commands=(\n'
                    + '\n'.join(f'        {line}' for line in described)
                    + '\n      )\n      _describe command commands ;;\n    argument)\n      case $words[1] in')
        for command, (names, _) in zip(below, top.commands, strict=True):
            options = ' \\\n'.join(f'            {line}' for line in zsh_options(command, function))
            body.append(f"        {'|'.join(names)})\n          _arguments \\\n{options} ;;")
        body.append('      esac ;;\n  esac')
    return fill(ZSH, name=top.name, function=function, body='\n'.join(body))


def main():
    what, *rest = sys.argv[1:]
    if what == 'man':
        help2man, out, *programs = rest
        write_man(help2man, pathlib.Path(out), [os.path.abspath(program) for program in programs])
        return
    out, program = rest
    pathlib.Path(out).write_text({'bash': write_bash, 'zsh': write_zsh}[what](read_program(os.path.abspath(program))))


if __name__ == '__main__':
    main()
