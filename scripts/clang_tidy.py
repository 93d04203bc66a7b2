#!/usr/bin/env python3
"""Looks at sources with clang-tidy, up to BATCH of them as one. Called by scripts/lint.sh.

clang-tidy runs its checks over the headers of the system, too, and drops what they find there: that is 5 s of each
test, of 5 to 12 in all. A batch goes through them once for all its sources. Where the compiler finds something in it,
the reason may be the batch, such as two definitions of one name: the sources that the compiler names are then a batch
of their own, the rest is one again, and so are the halves of the batch when it names all or a header."""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import re
import shlex
import subprocess
import sys
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCH = 16
TIMEOUT_S = 1800
# Clang-tidy looks at the headers of the system with these checks, too: half of the work. In tests and benchmarks they
# are left to the compiler and to the review.
BRIEF = ('test', 'bench')
NOT_BRIEF = ('readability-identifier-naming', 'readability-container-size-empty', 'bugprone-swapped-arguments')
# Switches that change nothing about what is found: sources with and without them go into one batch.
NOT_SEEN = ('-fPIC', '-pthread', '-fvisibility=hidden')
# These take no time, where the checks for the same take seconds.
WARNINGS = ('-Wzero-as-null-pointer-constant', '-Wempty-body')
# Many sources have one of these, and a batch has room for one: the others are renamed.
ENTRY_POINTS = ('main', 'peer_main', 'LLVMFuzzerTestOneInput')
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


def source_of(command, build):
    words = shlex.split(command['command'])
    # The compiler, and ccache before it.
    while not words[0].startswith('-'):
        words.pop(0)
    source = Source((build / command['file']).resolve(), (), {}, [])
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


def fits(source, batch):
    return (len(batch) < BATCH and is_brief(source) == is_brief(batch[0]) and source.switches == batch[0].switches and
            all(other.values.get(name, value) == value for other in batch for name, value in source.values.items()))


def batches_of(sources):
    batches = []
    for source in sources:
        for batch in batches:
            if fits(source, batch):
                batch.append(source)
                break
        else:
            batches.append([source])
    return batches


class Tidy:
    def __init__(self, program, build):
        self.program = program
        self.build = build

    def written(self, batch):
        """The file that includes the sources of `batch`."""
        text = ''
        for number, source in enumerate(batch):
            lines = [f'#define {name} {name}_{number}\n' for name in ENTRY_POINTS] if number else []
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
        command = [self.program, f'--config-file={ROOT / ".clang-tidy"}', f'--checks={",".join(checks)}', '--quiet',
                   batch[0].path if is_alone else self.written(batch), '--', *batch[0].switches,
                   *WARNINGS, *ignored, *(f'{name}={value}' for name, value in values.items()), *directories]
        done = subprocess.run(command, cwd=self.build, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_S)
        if done.returncode == 0:
            return ''
        if is_alone or not COMPILER_SAYS.search(done.stdout):
            lines = [line for line in done.stdout.splitlines() if not NO_FINDING.search(line)]
            return '\n'.join([*lines, f'lint: clang-tidy ended with {done.returncode}']) + '\n'
        said = [line for line in done.stdout.splitlines() if COMPILER_SAYS.search(line)]
        print(f'lint: not as one: {said[0]}', flush=True)
        apart = [source for source in batch if any(line.startswith(f'{source.path}:') for line in said)]
        rest = [source for source in batch if source not in apart]
        # Those that are named often go together; where all are, or a header is, the halves do.
        parts = [apart, rest] if apart and rest else [batch[:len(batch) // 2], batch[len(batch) // 2:]]
        return ''.join(self.look_at(part) for part in parts if part)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('tidy')
    parser.add_argument('build', type=pathlib.Path, help='a Clang build without -Dunity=on, configured')
    parser.add_argument('files', nargs='*', type=pathlib.Path, help='all that the build compiles when none is named')
    options = parser.parse_args()
    build = options.build.resolve()
    batches = batches_of(sources_of(build, {file.resolve() for file in options.files}))
    print(f'lint: clang-tidy on {sum(map(len, batches))} sources in {len(batches)} batches, {options.jobs} at a time',
          flush=True)
    failed = not batches
    with concurrent.futures.ThreadPoolExecutor(max_workers=options.jobs) as pool:
        for found in pool.map(Tidy(options.tidy, build).look_at, batches):
            print(found, end='', flush=True)
            failed = failed or bool(found)
    sys.exit(1 if failed else 0)


main()
