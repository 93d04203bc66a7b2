#!/usr/bin/env python3
"""Looks at sources with clang-tidy, up to BATCH of them as one. Called by scripts/lint.sh.

clang-tidy runs its checks over the headers of the system, too, and drops what they find there: that is 5 s of each
test, of 5 to 12 in all. A batch goes through them once for all its sources: those of one directory, as long as they are
not too many. Where the compiler finds something in it, the reason may be the batch, such as two definitions of one
name: the sources that the compiler names are then a batch of their own, the rest is one again, and so are the halves of
the batch when it names all or a header. Sources that do not go together are a finding, too: what is a name in two of
them is hard to follow for a reader, and a build with -Dunity=on would stumble over it.

With --verdicts DIRECTORY a batch that was found clean is not looked at again: as long as clang-tidy, this script,
.clang-tidy, the switches and every byte of every file that the batch includes are what they were."""

import argparse
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH = 16
# Clang-tidy looks at the headers of the system with these checks, too: half of the work. In tests and benchmarks they
# are left to the compiler and to the review.
BRIEF = ('test', 'bench')
NOT_BRIEF = ('readability-identifier-naming', 'readability-container-size-empty', 'bugprone-swapped-arguments')
# Switches that change nothing about what is found: sources with and without them go into one batch.
NOT_SEEN = ('-fPIC', '-pthread', '-fvisibility=hidden')
# These take no time, where the checks for the same take seconds.
WARNINGS = ('-Wzero-as-null-pointer-constant', '-Wempty-body')
# Many sources define one of these, and a batch has room for one: the others are renamed.
ENTRY_POINTS = ('main', 'peer_main', 'run_other', 'LLVMFuzzerTestOneInput')
# Each source there is a program of its own, for people to read: its names are not chosen to go with the others'.
ALONE = ('examples', 'bench')
COMPILER_SAYS = re.compile(r'\[clang-diagnostic-')
NO_FINDING = re.compile(r'^(\d+ warnings? (generated|treated)|Suppressed|Use -header-filter)')


@dataclasses.dataclass
class Source:
    """A source and how it is compiled. Two with equal `switches` go into one batch: the macros with a value are of one
    target each, and its directories do not disturb the others."""
    path: pathlib.Path
    switches: tuple
    values: dict
    directories: list
    compiler: str


def source_of(command, build):
    words = shlex.split(command['command'])
    # The compiler, and ccache before it.
    compiler = ''
    while not words[0].startswith('-'):
        compiler = words.pop(0)
    source = Source((build / command['file']).resolve(), (), {}, [], compiler)
    while words:
        word = words.pop(0)
        if word in ('-o', '-MF', '-MQ'):
            words.pop(0)
        elif word.startswith(('-I', '-isystem')):
            source.directories.append(word)
        elif word.startswith('-D') and '=' in word:
            name, value = word.split('=', 1)
            source.values[name] = value
        elif word not in ('-c', '-MD', command['file'], *NOT_SEEN):
            source.switches += (word,)
    return source


def sources_of(build, named):
    """The C++ sources that `build` compiles, each once for each way: those of `named`, or all."""
    found = {}
    for command in json.loads((build / 'compile_commands.json').read_text(encoding='utf-8')):
        source = source_of(command, build)
        # Sources that a build would generate are not there, and the simulation compiles the library once more.
        is_ours = ROOT in source.path.parents and source.path.suffix == '.cpp' and source.path.exists()
        if not is_ours or 'verbena_simulated' in command['output']:
            continue
        if not named or source.path in named:
            found.setdefault((source.path, source.switches), source)
    return list(found.values())


def is_brief(source):
    return source.path.relative_to(ROOT).parts[0] in BRIEF


def bit_of(source, depth):
    """A bit that the name of the source alone decides."""
    return zlib.crc32(source.path.name.encode()) >> depth & 1


def divided(sources, depth=0):
    """Groups of at most BATCH. Where one has grown beyond that it becomes two, and the others stay what they are."""
    if len(sources) <= BATCH or depth == 32:
        return [sources] if sources else []
    halves = [[source for source in sources if bit_of(source, depth) == bit] for bit in (0, 1)]
    return [group for half in halves for group in divided(half, depth + 1)]


def defined_in(path):
    """The ENTRY_POINTS that the source defines."""
    text = path.read_text(encoding='utf-8')
    return [name for name in ENTRY_POINTS if re.search(rf'^[^\n;]*\b{name}\([^;{{]*\{{', text, re.MULTILINE)]


def batches_of(sources):
    """Groups that stay what they are when a source is added: those of one directory, compiled in one way."""
    told = {}
    for source in sources:
        for name, value in source.values.items():
            told.setdefault((source.path.parent, name), set()).add(value)
    groups = {}
    # Who calls an entry point of another source sees it declared by its own name, before that is another.
    for source in sorted(sources, key=lambda each: (any(name != 'main' for name in defined_in(each.path)), each.path)):
        # A macro that has several values in this directory.
        apart = tuple(sorted(item for item in source.values.items() if len(told[source.path.parent, item[0]]) > 1))
        alone = source.path if source.path.relative_to(ROOT).parts[0] in ALONE else ''
        groups.setdefault((source.path.parent, source.switches, apart, alone), []).append(source)
    return [batch for group in groups.values() for batch in divided(group)]


@functools.cache
def digest_of(path):
    """Of the bytes of a file; nothing where there is none."""
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    except OSError:
        return ''


def from_root(text):
    """The same words in any clone."""
    return text.replace(str(ROOT), '@')


def names_in(rule):
    """The files that a rule of make, as compilers write it, depends on."""
    words = re.sub(r'\\\n', ' ', rule).partition(': ')[2]
    return [word.replace('\\ ', ' ') for word in re.findall(r'(?:\\ |\S)+', words)]


class Verdicts:
    """Batches that were found clean, each in a file: the digests of all files that were read for it."""

    def __init__(self, directory, program):
        self.directory = directory
        said = subprocess.run([program, '--version'], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              check=True, timeout=60)
        self.tools = [said.stdout, digest_of(__file__), digest_of(ROOT / '.clang-tidy')]
        directory.mkdir(parents=True, exist_ok=True)

    def file_of(self, command, batch):
        words = [*self.tools, *(str(source.path) for source in batch), *map(str, command)]
        return self.directory / hashlib.sha256(from_root('\n'.join(words)).encode()).hexdigest()

    @staticmethod
    def is_clean(file):
        try:
            kept = json.loads(file.read_text(encoding='utf-8'))
        except (OSError, ValueError):
            return False
        return bool(kept) and all(digest_of(name.replace('@', str(ROOT), 1)) == digest for name, digest in kept.items())

    @staticmethod
    def keep(file, names):
        digests = {from_root(str(name)): digest_of(name) for name in names}
        part = file.with_suffix(f'.{os.getpid()}')
        part.write_text(json.dumps(digests), encoding='utf-8')
        part.replace(file)


class Tidy:
    def __init__(self, program, build, verdicts=None):
        self.program = program
        self.build = build
        self.verdicts = verdicts
        self.kept = 0
        self.split = False

    def read_by(self, batch, file, switches):
        """The files that the compiler reads for `file`, which stands for `batch`."""
        told = subprocess.run([batch[0].compiler, '-M', *switches, file], cwd=self.build, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        if told.returncode != 0:
            return []
        names = {(self.build / name).resolve() for name in names_in(told.stdout)}
        names = sorted(names - {pathlib.Path(file).resolve()} | {source.path for source in batch})
        for name in names:
            digest_of(name)  # Before clang-tidy reads them: what is changed meanwhile has other bytes the next time.
        return names

    def written(self, batch):
        """The file that includes the sources of `batch`."""
        text = ''
        for number, source in enumerate(batch):
            lines = [f'#define {name} {name}_{number}\n' for name in defined_in(source.path)] if number else []
            text += ''.join([*lines, f'#include "{source.path}"\n', *[f'#undef {line.split()[1]}\n' for line in lines]])
        relative = batch[0].path.relative_to(ROOT).with_suffix('')
        way = zlib.crc32(' '.join(batch[0].switches).encode())
        path = self.build / 'batches' / f'{"_".join(relative.parts)}_{len(batch)}_{way:x}.cpp'
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding='utf-8')
        return path

    def look_at(self, batch):
        """What is found in `batch`, or nothing."""
        is_alone = len(batch) == 1
        checks = [] if is_alone else ['-bugprone-suspicious-include']
        if is_brief(batch[0]):
            checks += [f'-{name}' for name in NOT_BRIEF]
        values = {name: value for source in batch for name, value in source.values.items()}
        directories = dict.fromkeys(word for source in batch for word in source.directories)
        # Flags of GCC that Clang does not know are no finding. All errors are wanted: each names a source to take out.
        # A name may hide one of another source of the batch, and what was `main` must return; the builds see to that.
        ignored = ['-ferror-limit=0', '-Wno-unknown-warning-option']
        if not is_alone:
            ignored += ['-Wno-shadow', '-Wno-return-type']
        switches = [*batch[0].switches, *WARNINGS, *ignored, *(f'{name}={value}' for name, value in values.items()),
                    *directories]
        file = batch[0].path if is_alone else self.written(batch)
        command = [self.program, f'--config-file={ROOT / ".clang-tidy"}', f'--checks={",".join(checks)}', '--quiet',
                   file, '--', *switches]
        verdict, names = None, []
        if self.verdicts:
            verdict = self.verdicts.file_of(command, batch)
            if self.verdicts.is_clean(verdict):
                self.kept += 1
                return ''
            names = self.read_by(batch, file, switches)
        done = subprocess.run(command, cwd=self.build, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode == 0:
            if names:
                self.verdicts.keep(verdict, names)
            return ''
        if is_alone or not COMPILER_SAYS.search(done.stdout):
            lines = [line for line in done.stdout.splitlines() if not NO_FINDING.search(line)]
            return '\n'.join([*lines, f'lint: clang-tidy ended with {done.returncode}']) + '\n'
        said = [line for line in done.stdout.splitlines() if COMPILER_SAYS.search(line)]
        print(f'lint: not as one: {said[0]}', flush=True)
        self.split = True
        apart = [source for source in batch if any(line.startswith(f'{source.path}:') for line in said)]
        rest = [source for source in batch if source not in apart]
        # Those that are named often go together; where all are, or a header is, the halves do.
        parts = [apart, rest] if apart and rest else [batch[:len(batch) // 2], batch[len(batch) // 2:]]
        return ''.join(self.look_at(part) for part in parts if part)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--verdicts', type=pathlib.Path, help='where clean verdicts are kept')
    parser.add_argument('tidy')
    parser.add_argument('build', type=pathlib.Path, help='a Clang build without -Dunity=on, configured')
    parser.add_argument('files', nargs='*', type=pathlib.Path, help='all that the build compiles when none is named')
    options = parser.parse_args()
    build = options.build.resolve()
    batches = batches_of(sources_of(build, {file.resolve() for file in options.files}))
    print(f'lint: clang-tidy on {sum(map(len, batches))} sources in {len(batches)} batches, {options.jobs} at a time',
          flush=True)
    failed = not batches
    tidy = Tidy(options.tidy, build, Verdicts(options.verdicts, options.tidy) if options.verdicts else None)
    with concurrent.futures.ThreadPoolExecutor(max_workers=options.jobs) as pool:
        for number, found in enumerate(pool.map(tidy.look_at, batches), 1):
            # A line for each: who runs this sees that it goes on.
            print(f'[{number}/{len(batches)}]{" found:" if found else ""}\n{found}', end='', flush=True)
            failed = failed or bool(found)
    if options.verdicts:
        print(f'lint: {tidy.kept} of {len(batches)} batches were found clean before, and nothing in them has changed',
              flush=True)
    if tidy.split:
        print('lint: some sources do not go together (not as one): give one of the names other words')
    sys.exit(1 if failed or tidy.split else 0)


if __name__ == '__main__':
    main()
