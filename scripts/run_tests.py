#!/usr/bin/env python3
"""Builds and tests every configuration, and counts test cases, not executables. Called by scripts/test.sh."""

import argparse
import concurrent.futures
import glob
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree

import changed
import daily
from configurations import CONFIGURATIONS, FUZZING, SANITIZERS, cached_in
from progress import PATIENCE_S, Progress

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD_ROOT = pathlib.Path(os.environ.get('VERBENA_BUILD_ROOT', ROOT / 'build-test')).resolve()
# What became of each case of this run, for scripts/compare_runs.py.
RESULTS = BUILD_ROOT / 'results.json'
# When the parts of the daily set were last run: beside the compilers' cache, which outlives a clone.
TURNS = pathlib.Path(os.environ.get('VERBENA_CACHE') or BUILD_ROOT) / 'turns.json'
START = time.monotonic()

# A full run divides the tests of the setup 'plain' among these two.
PLAIN_AHEAD = 'plain_ahead'
PLAIN_BEHIND = 'plain_behind'
QUICK = 'quick'
FUZZ_TOTAL_S = 50
# A machine may be slow, and nothing here is ended for that: only for lack of progress, as scripts/progress.py sees it.
# A step that took longer than usual the last time may take so many times as long.
PATIENCE_FACTOR = 10
# The emulated machine ends itself when it hangs as a whole.
SOFTROCE_TIMEOUT_S = 14400
HEARTBEAT_S = 30
SKIP_CODE = 77
# What scripts/packages.sh ends with where nothing can be installed.
NO_PACKAGES_CODE = 3
# 128 MiB of them are reserved for the plain tests.
HUGEPAGES = 64
POOL = pathlib.Path('/sys/kernel/mm/hugepages/hugepages-2048kB')
# A skip because of a program, as tests say it.
MISSING = re.compile(r'\b(is|are) not (all )?there\b|\bis not built\b')
STEP = re.compile(r'^\s*\[?(\d+)/(\d+)\]?\s')
TEST_LOG = 'verbena-run'
PATIENT_LOG = 'verbena-patient'
TAIL_LINES = 120
SLOWEST = 15
CHAOS_SEEDS = 1
# Seeds of whole systems that nobody has run before: for so long, and for less in a quick run. What has failed is then
# cut down to what it needs, which takes minutes at most.
SIMULATION_SEEDS = 300  # Of each scenario.
QUICK_SIMULATION_SEEDS = 60
DAILY_CHAOS_SEEDS = 5
# Compilers work behind the tests, which leave much of the cores idle: at the lowest priority, so that tests get a core
# as soon as they want one. When the tests wait for a compiler, it gets the usual priority: at the lowest one, programs
# of others beside this would leave it nothing for hours.
BEHIND = 19
WAITED_FOR = threading.Event()
OUTPUT = threading.RLock()
STOPPING = threading.Event()


def say(text, more=''):
    elapsed = int(time.monotonic() - START)
    with OUTPUT:
        print(f'[{elapsed // 60:02d}:{elapsed % 60:02d}] {text}', flush=True)
        if more:
            print(more, flush=True)


class Phase:
    """The time of one step, with `begin` and `end` in seconds since START. Compilers work behind the tests, so that the
    steps overlap; the sum of all is more than the whole."""
    done = []

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.begin = time.monotonic() - START

    def __exit__(self, *_):
        with OUTPUT:
            Phase.done.append((self.name, self.begin, time.monotonic() - START))

    @staticmethod
    def table():
        rows = [f'  {end - begin:6.0f} s  {begin:6.0f} to {end:6.0f} s  {name}' for name, begin, end in Phase.done]
        return '\n'.join(['phases, in the order of their ends; builds and style run behind the tests:', *rows,
                          f'  {time.monotonic() - START:6.0f} s  in all'])


def last_lines(text, count=TAIL_LINES):
    lines = text.splitlines()
    return '\n'.join((['...'] if len(lines) > count else []) + lines[-count:])


class Totals:
    def __init__(self):
        self.results = {}  # 'passed', 'failed' or 'skipped' of each 'configuration: case'.
        self.failures = []
        self.skips = []
        self.durations = []  # (seconds, name) of tests.

    @property
    def passed(self):
        return sum(result == 'passed' for result in self.results.values())

    def ok(self, name):
        """Counts a case that passed, once, however often it ran."""
        self.results.setdefault(name, 'passed')

    def fail(self, name, output=''):
        self.results[name] = 'failed'
        self.failures.append(name)
        say(f'FAILED  {name}', last_lines(output.rstrip()))

    def skip(self, name, reason):
        # On a machine that these scripts have furnished, and nobody else, nothing may be missing.
        if os.environ.get('VERBENA_FRESH') and MISSING.search(reason):
            self.fail(name, f'on a fresh machine: {reason}')
            return
        self.results.setdefault(name, 'skipped')
        self.skips.append(name)
        say(f'SKIPPED {name}: {reason}')

    def end(self):
        if self.passed == 0 and not self.failures:
            self.fail('no test ran')
        RESULTS.write_text(json.dumps(self.results, indent=0, sort_keys=True), encoding='utf-8')
        print(Phase.table())
        for seconds, name in sorted(self.durations, reverse=True)[:SLOWEST]:
            print(f'  {seconds:6.0f} s  of that: {name}')
        for name in self.failures:
            print(f'failed: {name}')
        print(f'verbena: {self.passed} passed, {len(self.failures)} failed, {len(self.skips)} skipped', flush=True)
        sys.exit(1 if self.failures else 0)


def set_priority(pid, level):
    """Gives the session that process `pid` leads the nice value `level`. Where sessions are scheduled as groups
    (sched_autogroup), the values of processes count only among those of one session."""
    try:
        os.setpriority(os.PRIO_PGRP, pid, level)
        pathlib.Path(f'/proc/{pid}/autogroup').write_text(str(level), encoding='ascii')
    except OSError:
        pass  # It has ended, there are no such groups, or only root may raise a priority.


def awaited(future):
    """The result of what `future` runs behind the tests. It stays behind no longer: the tests wait for it."""
    WAITED_FOR.set()
    try:
        return future.result()
    finally:
        WAITED_FOR.clear()


class Patience:
    """The longest time that each of our commands spent without a line when it last ended well."""
    file = BUILD_ROOT / 'patience.json'
    lock = threading.Lock()

    @classmethod
    def known(cls):
        try:
            return json.loads(read(cls.file))
        except (OSError, ValueError):
            return {}

    @classmethod
    def of(cls, name):
        return max(PATIENCE_S, PATIENCE_FACTOR * float(cls.known().get(name, 0)))

    @classmethod
    def keep(cls, name, longest_s):
        with cls.lock:
            cls.file.write_text(json.dumps({**cls.known(), name: round(longest_s, 1)}), encoding='utf-8')


def newest(paths):
    """When the newest of these files was written; those that are not there were not."""
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def run(command, log, what, environment=None, show=None, behind=False, beats=()):
    """Runs a command in its own process group with its output in `log`. Prints what `show` picks of it as it comes,
    and a heartbeat. Returns the exit code. The command and its descendants are killed when STOPPING, and when there is
    no progress: neither a line in `log`, nor a new time of a file in `beats`, or below a directory there. What runs
    `behind` the tests takes only the time that others leave, until it is WAITED_FOR."""
    level = BEHIND if behind else 0
    if behind:
        command = ['nice', '-n', BEHIND, *command]
    with open(log, 'w', encoding='utf-8', errors='replace') as sink:
        process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=sink,
                                   stderr=subprocess.STDOUT, cwd=ROOT, env=environment, start_new_session=True)
        if behind:
            set_priority(process.pid, level)
        begin = told = time.monotonic()
        progress = Progress(process.pid, Patience.of(log.name))
        step, beat = '', 0.0
        with open(log, encoding='utf-8', errors='replace') as source:
            try:
                while True:
                    ended = process.poll() is not None
                    for line in source:
                        progress.begin()
                        found = STEP.match(line)
                        step = f', {found[1]} of {found[2]}' if found else step
                        if show and show.search(line):
                            with OUTPUT:
                                print('        ' + line.rstrip(), flush=True)
                            told = time.monotonic()
                    if ended:
                        if process.returncode == 0:
                            Patience.keep(log.name, progress.longest_s)
                        return process.returncode
                    now = time.monotonic()
                    wanted = BEHIND if behind and not WAITED_FOR.is_set() else 0
                    if wanted != level:
                        level = wanted
                        set_priority(process.pid, level)
                    if now - told > HEARTBEAT_S:
                        say(f'... {what}{step}, {int(now - begin)} s')
                        told = now
                    if STOPPING.is_set():
                        raise concurrent.futures.CancelledError
                    if beats:
                        files = [each for path in beats for each in (path.iterdir() if path.is_dir() else [path])]
                        last, beat = beat, newest(files)
                        if beat != last:
                            progress.begin()
                    if progress.is_over():
                        sink.write(f'\nkilled: no progress for {progress.patience_s:.0f} s\n')
                        return -signal.SIGKILL
                    try:
                        process.wait(0.5)
                    except subprocess.TimeoutExpired:
                        pass
            finally:
                if process.poll() is None:
                    progress.kill()
                    process.wait()


def read(path):
    return pathlib.Path(path).read_text(encoding='utf-8', errors='replace')


def build(name, configuration, jobs, totals, environment=None, behind=False, selection=()):
    with Phase(f'build {name}'):
        try:
            environment = with_cache(name, environment)
            directory = configure(name, configuration, totals, environment, behind)
            return directory and build_now(name, directory, jobs, totals, environment, behind, selection)
        finally:
            tell_cache(name)


def with_cache(name, environment):
    """The environment for a build of configuration `name`: its compilers behind the cache that scripts/cache.sh has set
    up, if it has, and where that writes what it found."""
    environment = dict(environment or os.environ)
    if not environment.get('CCACHE_DIR') or not shutil.which('ccache'):
        return environment
    for variable, usual in (('CC', 'cc'), ('CXX', 'c++')):
        compiler = environment.get(variable) or usual
        environment[variable] = compiler if 'ccache' in compiler else f'ccache {compiler}'
    log = cache_log(name)
    log.unlink(missing_ok=True)
    environment['CCACHE_STATSLOG'] = str(log)
    return environment


def cache_log(name):
    return BUILD_ROOT / f'{name}.cache.log'


def tell_cache(name):
    """Says how many of the objects that the build of `name` needed came from the cache."""
    asked, hits = cached_in(cache_log(name))
    if asked:
        say(f'{name}: {hits} of {asked} objects came from the cache ({100 * hits // asked} %)')


def introspect(directory, what):
    told = subprocess.run(['meson', 'introspect', what, directory], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          check=True, timeout=120)
    return json.loads(told.stdout)


def tests_of(directory, setup, selection=()):
    """Names of the tests that Meson runs with `setup`, one of those in test/meson.build, or those of `selection`."""
    told = subprocess.run(['meson', 'test', '-C', directory, '--no-rebuild', '--list', '--setup', setup, *selection],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    return {line.split(' / ')[-1] for line in told.stdout.splitlines()}


def goals(directory, setup, selection=()):
    """What ninja is to build for the tests of `setup`, or those of `selection`: what they use, and all that is built by
    default but for the executables of other tests."""
    wanted = tests_of(directory, setup, selection)
    used, unused = set(), set()
    for test_case in introspect(directory, '--tests'):
        (used if test_case['name'] in wanted else unused).update(test_case['depends'])
    return [os.path.relpath(name, directory) for target in introspect(directory, '--targets')
            if target['id'] in used or (target['build_by_default'] and target['id'] not in unused)
            for name in target['filename']]


def configure(name, configuration, totals, environment, behind=False):
    """Returns the directory that a build of `configuration` is configured in, or None."""
    directory = BUILD_ROOT / name
    directory.mkdir(parents=True, exist_ok=True)
    log = BUILD_ROOT / f'{name}.build.log'
    setup = ['meson', 'setup', directory, ROOT, '--werror', *configuration]
    known = directory / 'verbena-setup.json'
    wanted = [environment.get('CXX', ''), *configuration]
    say(f'{name}: configuring')
    code = 1
    if known.exists() and json.loads(read(known)) == wanted:
        # Without the options, which Meson keeps: told of the build type again, it sets the optimization anew.
        code = run(['meson', 'setup', '--reconfigure', directory, ROOT], log, f'{name}: configuring',
                   environment, behind=behind)
    if code != 0:
        # New, or left by another version of Meson or of this tree.
        shutil.rmtree(directory)
        directory.mkdir()
        code = run(setup, log, f'{name}: configuring', environment, behind=behind)
        known.write_text(json.dumps(wanted), encoding='utf-8')
    if code != 0:
        totals.fail(f'{name}: configure', read(log))
        return None
    return directory


def build_now(name, directory, jobs, totals, environment, behind, selection):
    log = BUILD_ROOT / f'{name}.build.log'
    say(f'{name}: building')
    # The plain build proves that everything compiles. Since Meson 1.7 `all` leaves out what only tests use.
    if selection:
        wanted = goals(directory, name, selection)
    elif behind:
        wanted = goals(directory, name)
    else:
        wanted = ['all', *goals(directory, name)]
    command = ['ninja', '-k', 0, '-j', jobs, '-C', directory, *wanted]
    if run(command, log, f'{name}: building', environment, behind=behind) != 0:
        # What went wrong, without the steps that went well.
        text = re.sub(r'^\[\d+/\d+\] (?:Compiling|Linking|Generating).*\n', '', read(log), flags=re.MULTILINE)
        totals.fail(f'{name}: build', text)
        return None
    return directory


def count_gtest(suite, test, tree, totals):
    """Counts the cases of `suite`, one run of a GoogleTest executable, from its XML; returns the failures found."""
    failed = 0
    for case in tree.iter('testcase'):
        label = f'{suite}: {case.get("classname")}.{case.get("name")}'
        skipped = case.find('skipped')
        problems = case.findall('failure')
        if case.get('status') == 'notrun' or (case.get('result') == 'suppressed'):
            # Disabled, or not chosen by the filter.
            if case.get('name', '').startswith('DISABLED_'):
                totals.skip(label, 'disabled')
        elif problems:
            failed += 1
            totals.fail(label, '\n'.join(p.get('message') or p.text or '' for p in problems))
        elif skipped is not None:
            message = (skipped.get('message') or skipped.text or 'no reason given').strip()
            totals.skip(label, ' '.join(line for line in message.splitlines() if line)[:500])
        else:
            totals.ok(label)
    if failed and test['stdout']:
        print(last_lines(test['stdout'] + '\n' + (test.get('stderr') or '')), flush=True)
    return failed


def count_test(name, short, test, xml, totals):
    """Counts one test by its result as Meson names it: its cases, if it is a GoogleTest that left `xml`, or itself."""
    output = test['stdout'] + '\n' + (test.get('stderr') or '')
    label = f'{name}: {short}'
    tree = None
    if xml.exists():
        try:
            tree = ElementTree.parse(xml).getroot()
        except ElementTree.ParseError:
            tree = None
    if tree is not None:
        failed = count_gtest(label, test, tree, totals)
        if test['result'] not in ('OK', 'SKIP') and not failed:
            # All cases are well, and the executable is not: a leak, or a crash on the way out.
            totals.fail(f'{label} ({test["result"]}, exit code {test["returncode"]})', output)
    elif test['result'] in ('OK', 'EXPECTEDFAIL'):
        totals.ok(label)
    elif test['result'] == 'SKIP':
        reasons = [line for line in output.splitlines() if line.strip()] or ['no reason given']
        totals.skip(label, reasons[-1].strip()[:500])
    else:
        # A crash leaves no XML: the cases that ended before it count, and it is one failure with its output.
        for case in re.findall(r'^\[       OK \] (\S+)', output, flags=re.MULTILINE):
            totals.ok(f'{label}: {case}')
        totals.fail(f'{label} ({test["result"]}, exit code {test["returncode"]})', output)


def count(name, directory, log_base, totals):
    """Counts the results of one `meson test`. Returns the names of the tests that ended."""
    logs = glob.glob(str(directory / 'meson-logs' / f'{log_base}*.json'))
    if not logs:
        return set()
    tests = [json.loads(line) for line in read(logs[0]).splitlines() if line.strip()]
    for test in tests:
        short = test['name'].split(' / ')[-1]
        totals.durations.append((test.get('duration', 0), f'{name}: {short}'))
        count_test(name, short, test, directory / f'{short}.xml', totals)
    return {test['name'].split(' / ')[-1] for test in tests}


def sanitizer_wrapper(name, compiler, totals):
    """What a program of this configuration must be started with: `setarch -R` (no address randomization) under a
    sanitizer, or nothing where that is not permitted. None when the sanitizer does not run at all."""
    probe = BUILD_ROOT / f'{name}-probe'
    source = probe.with_suffix('.cpp')
    source.write_text('#include <thread>\nint main() { std::thread([] {}).join(); }\n')
    built = subprocess.run([*compiler.split(), '-std=c++20', SANITIZERS[name], '-pthread', source, '-o', probe],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           check=False, timeout=120)
    if built.returncode != 0:
        totals.skip(f'{name}: all tests', 'this compiler has no such sanitizer: ' + built.stdout.strip()[-300:])
        return None
    # Without randomization first: with it, and vm.mmap_rnd_bits=32, ASan of GCC 12 hangs in one start of a few, and
    # TSan starts and then refuses some mappings.
    said = ''
    for wrapper in [['setarch', platform.machine(), '-R'], []]:
        if wrapper and not shutil.which(wrapper[0]):
            continue
        # One start that works says little where it is randomized, ten say more.
        for _ in range(10):
            try:
                ran = subprocess.run([*wrapper, probe], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, check=False, timeout=30)
            except subprocess.TimeoutExpired:
                said = 'it hung'
                break
            if ran.returncode != 0:
                said = ' '.join(ran.stdout.split())[-300:]
                break
        else:
            return wrapper
    totals.skip(f'{name}: all tests', f'a trivial program with this sanitizer does not start here: {said}')
    return None


def choose(directory, text):
    """Names of the tests to run for --filter: GoogleTest suites all (cases are filtered), others by name."""
    listing = json.loads(read(directory / 'meson-info' / 'intro-tests.json'))
    return [t['name'] for t in listing if t['protocol'] == 'gtest' or text in t['name']]


def runs_everything(options):
    return not options.quick and not options.filter and not options.suite and options.changed is None


def meson_test(directory, log_base, together, setup, selection):
    """The command that runs the tests of `setup`, or those of `selection` alone, and leaves its logs under the name
    `log_base`."""
    for stale in (directory / 'meson-logs').glob(f'{log_base}*'):
        stale.unlink()
    return ['meson', 'test', '-C', directory, '--no-rebuild', '--logbase', log_base, '--num-processes', together,
            '--setup', setup, *selection]


def beat_of(log, environment):
    """The file whose time each line of a test sets; names it in the environment of the tests."""
    beat = log.with_suffix('.beat')
    beat.touch()
    environment['VERBENA_PROGRESS'] = str(beat)
    return beat


def judge(label, directory, log_base, code, log, totals, wanted):
    """Counts the tests of a `meson test` that ended with `code`. Those of `wanted` that did not end are skips, so that
    the last line never looks better than the run was."""
    before = len(totals.failures)
    ran = count(label, directory, log_base, totals)
    for name in sorted(wanted - ran):
        totals.skip(f'{label}: {name}', f'it was not run to its end: meson test ended with {code}')
    if not ran:
        totals.fail(f'{label}: no test ran', read(log))
    elif code != 0 and len(totals.failures) == before:
        totals.fail(f'{label}: meson test ended with {code}', read(log))


def parts_of(options):
    """The parts of the daily set that this run has."""
    if not runs_everything(options):
        return []
    if options.daily:
        return daily.all_parts()
    if options.part:
        return [options.part]
    turns = daily.Turns(TURNS)
    return [turns.next([part for part in daily.all_parts() if daily.runs_here(part)], daily.commit_number())]


def test(name, directory, options, wrapper, totals, chaos_seed=None, names=()):
    """Runs the tests of a build, or those of `names`; with `chaos_seed` those of the suite 'chaos' alone, with that
    seed."""
    for stale in directory.glob('*.xml'):
        stale.unlink()
    environment = dict(os.environ)
    if options.seeds:
        environment['VERBENA_SEEDS'] = str(options.seeds)
    environment.pop('GTEST_FILTER', None)
    label = setup = name
    selection = []
    if chaos_seed is not None:
        environment['VERBENA_CHAOS_SEED'] = str(chaos_seed)
        label = f'{name}, VERBENA_CHAOS_SEED={chaos_seed}'
        selection = ['--suite', 'chaos']
    elif name == 'plain' and runs_everything(options):
        setup = PLAIN_AHEAD
    elif options.quick:
        setup = QUICK
    if options.filter:
        environment['GTEST_FILTER'] = f'*{options.filter}*'
        selection = choose(directory, options.filter)
    if options.suite:
        selection = ['--suite', options.suite]
    selection += sorted(names)
    # Suites that poll need a core each: half the cores run tests at a time. Under chaos they wait most of the time.
    together = os.cpu_count() or 2
    if chaos_seed is None:
        together = max(1, together // 2)
    command = [*wrapper, *meson_test(directory, TEST_LOG, together, setup, selection)]
    say(f'{label}: testing')
    log = BUILD_ROOT / f'{name}.test.log'
    with Phase(f'test {label}'):
        code = run(command, log, f'{label}: testing', environment, re.compile(r'^\s*\d+/\d+ '),
                   beats=[beat_of(log, environment)])
    judge(label, directory, TEST_LOG, code, log, totals, tests_of(directory, setup, selection))


def test_patient(directory, options):
    """Runs behind the others the tests of 'plain' that PLAIN_AHEAD leaves out. Returns what `judge` needs to count
    them."""
    names = tests_of(directory, 'plain') - tests_of(directory, PLAIN_AHEAD)
    if 'mutants' not in options.parts:
        names -= tests_of(directory, 'plain', ['--suite', 'mutants'])
    names = sorted(names)
    command = meson_test(directory, PATIENT_LOG, options.jobs, PLAIN_BEHIND, names)
    say('plain, behind: testing')
    log = BUILD_ROOT / 'plain.patient.log'
    with Phase('test plain, behind'):
        environment = dict(os.environ)
        code = run(command, log, 'plain, behind: testing', environment, behind=True,
                   beats=[beat_of(log, environment)])
    return 'plain', directory, PATIENT_LOG, code, log, set(names)


def first_seed():
    """A seed that every change of what is simulated moves, so that each commit runs others, and each run of one commit
    the same ones. scripts/simulate.sh runs seeds that nobody has run before."""
    digest = hashlib.sha256()
    for top in ['include', 'src', 'test/sim']:
        for path in sorted((ROOT / top).rglob('*')):
            if path.suffix in ('.hpp', '.cpp', '.h'):
                digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4], 'big')


def simulation(directory, options, totals):
    """Runs whole systems in simulation with seeds of this commit: each scenario counts as one test. Meson has run the
    kept seeds (test/sim/seeds.txt)."""
    program = directory / 'test' / 'sim' / 'verbena-simulate'
    if not program.exists():
        totals.skip('simulation: all scenarios', 'it was not built: it needs Boost.Context and CLI11 '
                    '(libboost-context-dev, libcli11-dev)')
        return
    seeds = QUICK_SIMULATION_SEEDS if options.quick else SIMULATION_SEEDS
    command = [program, '--from', first_seed(), '--seeds', seeds, '--jobs', 2, '--twice=10', '--coverage']
    say(f'simulation: {seeds} seeds of this commit')
    log = BUILD_ROOT / 'simulation.test.log'
    with Phase('test simulation'):
        code = run(command, log, 'simulation: seeds of this commit', None,
                   re.compile(r'^seeds from|^FAILED|^  again:|^\w+: \d+ runs'))
    text = read(log)
    scenarios = re.findall(r'^(\w+): (\d+) runs, (\d+) failed', text, flags=re.MULTILINE)
    for scenario, _, failed in scenarios:
        if failed == '0':
            totals.ok(f'simulation: {scenario}')
        else:
            totals.fail(f'simulation: {scenario}: {failed} seeds', text[text.find(f'FAILED  {scenario} '):])
    if not scenarios or code not in (0, 1):
        totals.fail(f'simulation: verbena-simulate ended with {code}', text)


def softroce_in_turn(directory, options, totals):
    """The suites on real verbs of every run, and those of the parts of the daily set that this run has."""
    parts = [part for part in options.parts if part.startswith(daily.SOFTROCE)]
    groups = [daily.EVERY_RUN, *(part.removeprefix(daily.SOFTROCE) for part in parts)]
    if options.filter:
        groups = []  # All of them.
    softroce('softroce', '--numa', directory, options, totals, groups)
    softroce('softroce-pair', '--pair', directory, options, totals)


def softroce(name, machines, directory, options, totals, groups=()):
    """Runs suites of scripts/softroce/suites.sh with the build `directory`: real verbs, in emulated machines."""
    results = BUILD_ROOT / f'{name}-results'
    shutil.rmtree(results, ignore_errors=True)
    environment = {**os.environ, 'VERBENA_BUILD_ROOT': str(BUILD_ROOT), 'VERBENA_GROUPS': ' '.join(groups)}
    if options.seeds:
        environment['VERBENA_SEEDS'] = str(options.seeds)
    environment.pop('GTEST_FILTER', None)
    command = [ROOT / 'scripts' / 'softroce.sh', machines, '--timeout', SOFTROCE_TIMEOUT_S, '--results', results,
               '--build', directory]
    say(f'{name}: testing')
    log = BUILD_ROOT / f'{name}.test.log'
    with Phase(f'test {name}'):
        code = run(command, log, f'{name}: testing', environment, re.compile('^== '), beats=[results])
    count_suites(name, 'scripts/softroce.sh', code, log, results, totals)


def count_suites(name, script, code, log, results, totals):
    """Counts suites that `script` ran, and left as NAME.log, NAME.status and NAME.xml in `results`."""
    logs = sorted(results.glob('*.log'), key=lambda path: path.stat().st_mtime)
    if code == SKIP_CODE and not logs:
        totals.skip(f'{name}: all suites', (read(log).strip().splitlines() or ['no reason given'])[-1][:500])
        return
    before = len(totals.failures)
    for suite in logs:
        status = suite.with_suffix('.status')
        # Without a status it was running when the script ended.
        said = read(status).strip() if status.exists() else ''
        returned = int(said) if said else None
        result = {0: 'OK', SKIP_CODE: 'SKIP', 124: 'TIMEOUT', None: 'INTERRUPT'}.get(returned, 'FAIL')
        test = {'result': result, 'returncode': returned, 'stdout': read(suite)}
        count_test(name, suite.stem, test, suite.with_suffix('.xml'), totals)
    if code not in (0, 1, SKIP_CODE):
        say(f'{name}: ' + (read(log).strip().splitlines() or ['no output'])[-1])
    if code not in (0, SKIP_CODE) and len(totals.failures) == before:
        totals.fail(f'{name}: {script} ended with {code}', read(log))


def aarch64_command(*more):
    """A command of scripts/aarch64.sh, its log, and where it leaves results."""
    results = BUILD_ROOT / 'aarch64-results'
    return [ROOT / 'scripts' / 'aarch64.sh', '--results', results, *more], BUILD_ROOT / 'aarch64.log', results


def build_aarch64(jobs):
    """Builds the suites for AArch64 behind the tests. Returns the exit code of scripts/aarch64.sh."""
    command, log, _ = aarch64_command('--build-only', '--jobs', jobs)
    say('aarch64: building')
    # Its compilers are those of a cross file.
    environment = {**os.environ, 'VERBENA_BUILD_ROOT': str(BUILD_ROOT), 'CCACHE_STATSLOG': str(cache_log('aarch64'))}
    cache_log('aarch64').unlink(missing_ok=True)
    with Phase('build aarch64'):
        code = run(command, log, 'aarch64: building', environment, behind=True)
    tell_cache('aarch64')
    return code


def test_aarch64(built, totals):
    """Runs the suites that build_aarch64 has built, and ended with `built`."""
    command, log, results = aarch64_command('--test-only', '--no-packages')
    shutil.rmtree(results, ignore_errors=True)
    if built == 0:
        environment = {**os.environ, 'VERBENA_BUILD_ROOT': str(BUILD_ROOT)}
        environment.pop('GTEST_FILTER', None)
        say('aarch64: testing')
        with Phase('test aarch64'):
            built = run(command, log, 'aarch64: testing', environment, re.compile('^== '), beats=[results])
    count_suites('aarch64', 'scripts/aarch64.sh', built, log, results, totals)


def look_at_style(jobs):
    """Returns the exit code of scripts/lint.sh, behind the tests, and what it said."""
    say('style: clang-format and clang-tidy')
    log = BUILD_ROOT / 'lint.log'
    environment = {**os.environ, 'VERBENA_BUILD_ROOT': str(BUILD_ROOT)}
    command = [ROOT / 'scripts' / 'lint.sh', '--no-packages', '--jobs', jobs]
    with Phase('style'):
        return run(command, log, 'style', environment, behind=True), read(log)


def lint(code, said, totals):
    if code == 0:
        totals.ok('style')
    elif code == SKIP_CODE:
        totals.skip('style', said.strip().splitlines()[-1])
    else:
        totals.fail('style', said)


def fuzzing_environment(totals):
    """The environment of a build with libFuzzer, or None when this machine has no Clang that can do it."""
    probe = BUILD_ROOT / 'fuzz-probe'
    source = probe.with_suffix('.cpp')
    # Clang 18 does not see std::expected in the library of GCC.
    source.write_text('#include <cstddef>\n#include <expected>\n'
                      'std::expected<int, int> one = 1;\n'
                      'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return *one - 1; }\n')
    reason = 'clang++ 19 is not there'
    for compiler in ['clang++-19', 'clang++']:
        if not shutil.which(compiler):
            continue
        built = subprocess.run([compiler, '-std=c++23', '-fsanitize=fuzzer,address,undefined', source, '-o', probe],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               check=False, timeout=120)
        if built.returncode == 0:
            return {**os.environ, 'CC': compiler.replace('clang++', 'clang'), 'CXX': compiler}
        reason = f'{compiler} makes no fuzzer (older than 19, or without libclang-rt): {built.stdout.strip()[-300:]}'
    totals.skip('fuzz', reason)
    return None


def hex_of(path, most=2048):
    data = path.read_bytes()
    rows = [f'{at:06x}  {data[at:at + 32].hex(" ")}' for at in range(0, min(len(data), most), 32)]
    return '\n'.join([f'{path}: {len(data)} bytes', *rows, *(['...'] if len(data) > most else [])])


def fuzz_target(executable, corpus, seconds, wrapper, totals):
    """One target for `seconds`, from the corpus of the tree and what earlier runs here have found."""
    name = executable.name.removeprefix('fuzz_')
    found = BUILD_ROOT / 'fuzz-corpus' / name
    found.mkdir(parents=True, exist_ok=True)
    artifacts = BUILD_ROOT / 'fuzz-artifacts'
    artifacts.mkdir(exist_ok=True)
    begin = time.time()
    log = BUILD_ROOT / f'fuzz-{name}.log'
    command = [*wrapper, executable, f'-max_total_time={seconds}', '-max_len=2048', '-len_control=10', '-timeout=60',
               f'-artifact_prefix={artifacts}/{name}-', found, corpus]
    code = run(command, log, f'fuzz: {name}')
    text = read(log)
    runs = re.search(r'^Done (\d+) runs', text, flags=re.MULTILINE)
    if code == 0 and runs and int(runs[1]) > 0:
        with OUTPUT:
            totals.ok(f'fuzz: {name}')
        say(f'fuzz: {name}: {runs[1]} runs')
        return
    # Leaks, crashes and hangs leave the input that makes them.
    inputs = [hex_of(path) for path in sorted(artifacts.glob(f'{name}-*')) if path.stat().st_mtime >= begin - 1]
    totals.fail(f'fuzz: {name} (exit code {code})', '\n'.join([last_lines(text), *inputs]))


def fuzz(directory, options, wrapper, totals):
    corpora = sorted(path for path in (ROOT / 'test' / 'fuzz' / 'corpus').iterdir() if path.is_dir())
    in_all = daily.FUZZ_TOTAL_S if 'fuzz' in options.parts else FUZZ_TOTAL_S
    seconds = options.fuzz_seconds or max(1, in_all // len(corpora))
    say(f'fuzz: {len(corpora)} targets, {seconds} s each')
    with Phase('fuzz'):
        fuzz_all(directory, corpora, seconds, wrapper, totals)


def fuzz_all(directory, corpora, seconds, wrapper, totals):
    def fuzz_one(corpus):
        executable = directory / 'test' / 'fuzz' / f'fuzz_{corpus.name}'
        if executable.exists():
            fuzz_target(executable, corpus, seconds, wrapper, totals)
        else:
            totals.fail(f'fuzz: {corpus.name} has a corpus and no target')

    # Each target computes in one thread.
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        try:
            for done in [pool.submit(fuzz_one, corpus) for corpus in corpora]:
                done.result()
        except BaseException:
            STOPPING.set()
            raise


def build_sanitized(name, environment, options, totals, names=()):
    """Builds a configuration behind the tests, or what the tests `names` need of it, with the compiler of `environment`
    if there is one. Returns its directory, the words that its programs start with and whether it has the fuzzing
    targets, or None."""
    configuration = CONFIGURATIONS[name]
    has_fuzzers = environment is not None and name == 'address'
    if has_fuzzers:
        configuration = [*configuration, FUZZING]
    wrapper = sanitizer_wrapper(name, (environment or os.environ).get('CXX', 'c++'), totals)
    if wrapper is None:
        return None
    directory = build(name, configuration, options.jobs, totals, environment, True, sorted(names))
    if directory is None:
        totals.skip(f'{name}: all tests', 'its build failed')
        return None
    return directory, wrapper, has_fuzzers


class Hugepages:
    """Reserves HUGEPAGES of 2 MiB while it is entered: slabs lie in them then, as on a machine of a user. The sanitized
    builds are tested without."""

    def __init__(self, totals):
        self.totals = totals
        self.keeper = None

    def __enter__(self):
        wanted = HUGEPAGES + pages_in('nr_hugepages') - pages_in('free_hugepages')
        # In a session of its own, so that who kills this run does not kill the one that puts the setting back.
        self.keeper = subprocess.Popen([sys.executable, ROOT / 'scripts' / 'setting.py', POOL / 'nr_hugepages',
                                        str(max(wanted, pages_in('nr_hugepages')))], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, start_new_session=True)
        said = self.keeper.stdout.readline().strip()
        if pages_in('free_hugepages') >= HUGEPAGES:
            self.totals.ok('plain: with hugepages')
        else:
            self.totals.skip('plain: with hugepages', f'{HUGEPAGES} of 2 MiB cannot be reserved here: {said or "0"}')

    def __exit__(self, *_):
        self.keeper.stdin.close()
        self.keeper.wait(60)
        self.keeper.stdout.close()


def pages_in(name):
    """A figure of the pool of hugepages; 0 where there is no such pool."""
    file = POOL / name
    return int(read(file)) if file.exists() else 0


def test_plain(directory, options, totals):
    with Hugepages(totals):
        test_plainly(directory, options, totals)


def test_plainly(directory, options, totals):
    test('plain', directory, options, [], totals)
    if options.suite:
        return
    if options.quick:
        for left_out in sorted(tests_of(directory, 'plain') - tests_of(directory, QUICK)):
            totals.skip(f'plain: {left_out}', 'it takes long, and this is a quick run')
        totals.skip('chaos, softroce', 'this is a quick run')
        simulation(directory, options, totals)
        return
    if not options.filter:
        for seed in chaos_seeds(options):
            test('plain', directory, options, [], totals, seed)
    if options.filter in (None, 'simulation'):
        simulation(directory, options, totals)
    if options.filter in (None, 'softroce'):
        softroce_in_turn(directory, options, totals)


def chaos_seeds(options):
    """The same ones in every run, and in the daily set some of this commit."""
    seeds = list(range(1, (options.seeds or CHAOS_SEEDS) + 1))
    if 'chaos' in options.parts:
        first = 1000 + first_seed() % 1_000_000
        seeds += range(first, first + (DAILY_CHAOS_SEEDS if options.daily else 1))
    return seeds


def fresh_machine(part, totals):
    """Runs a part of the daily set on an empty Debian, which counts as one test. Returns how many seconds it took when
    it passed, else None."""
    log = BUILD_ROOT / f'fresh-{part}.log'
    say(f'fresh: {part}: {" ".join(daily.FRESH[part])}')
    begin = time.monotonic()
    with Phase(f'fresh {part}'):
        code = run([ROOT / 'scripts' / 'fresh-machine.sh', *daily.FRESH[part]], log, f'fresh: {part}', None,
                   re.compile(r'^fresh-machine: |^verbena: \d+ passed'))
    if code == 0:
        totals.ok(f'fresh: {part}')
        return time.monotonic() - begin
    if code in (SKIP_CODE, NO_PACKAGES_CODE):
        totals.skip(f'fresh: {part}', (read(log).strip().splitlines() or ['no reason given'])[-1][:500])
    else:
        totals.fail(f'fresh: {part} (exit code {code})', read(log))
    return None


def tell_parts(options, totals):
    """What of the daily set is not in this run is a skip, each."""
    for part in daily.all_parts():
        if part not in options.parts:
            totals.skip(f'daily: {part}', 'not its turn; scripts/test.sh --daily runs all parts, --part NAME this one')
        elif not daily.runs_here(part):
            totals.skip(f'daily: {part}', 'this is a fresh machine already')


def test_all(worker, options, totals):
    """The tests, one configuration after the other; `worker` builds the next ones meanwhile, one at a time, then runs
    the tests that are patient, and looks at the style."""
    plain = build('plain', CONFIGURATIONS['plain'], options.jobs, totals,
                  selection=['--suite', options.suite] if options.suite else ())
    everything = runs_everything(options)
    patient = aarch64 = None
    sanitized = {}
    if everything:
        say(f'daily: this run has {", ".join(options.parts)} of the daily set')
        tell_parts(options, totals)
        clang = fuzzing_environment(totals)
        sanitized = {name: worker.submit(build_sanitized, name, clang, options, totals) for name in SANITIZERS}
        if 'aarch64' in options.parts:
            aarch64 = worker.submit(build_aarch64, options.jobs)
        # Last, what no test waits for.
        if plain is not None:
            patient = worker.submit(test_patient, plain, options)
        style = worker.submit(look_at_style, options.jobs)
    if plain is not None:
        test_plain(plain, options, totals)
    else:
        totals.skip('plain: all tests', 'its build failed')
    for name, built in sanitized.items():
        ready = awaited(built)
        if ready is not None:
            directory, wrapper, has_fuzzers = ready
            test(name, directory, options, wrapper, totals)
            if has_fuzzers:
                fuzz(directory, options, wrapper, totals)
    if aarch64 is not None:
        test_aarch64(awaited(aarch64), totals)
    if patient is not None:
        *ended, names = awaited(patient)
        judge(*ended, totals, names)
    if everything:
        lint(*awaited(style), totals)
    for part in options.parts:
        seconds = fresh_machine(part, totals) if part in daily.FRESH and daily.runs_here(part) else None
        daily.Turns(TURNS).ended(part, seconds)


def changed_files(base):
    """Files that differ from the commit `base` of --changed, or None when one of them may reach everything."""
    is_dirty = subprocess.run(['git', 'diff', '--quiet', 'HEAD'], cwd=ROOT, stdin=subprocess.DEVNULL, check=False,
                              timeout=60).returncode != 0
    names = changed.files_since(base or ('HEAD' if is_dirty else 'HEAD~1'))
    unknown = changed.unknown_of(names)
    if unknown:
        say(f'changed: {", ".join(unknown[:8])} may reach everything: this is a whole run')
    return None if unknown else names


def test_changed(names, worker, options, totals):
    """What a change of the files `names` can reach: in the plain build, and with ASan what is of their own rooms. Never
    in place of a whole run."""
    say(f'changed: {len(names)} files: {", ".join(names[:8])}{" ..." if len(names) > 8 else ""}')
    has_code = any(changed.is_code(name) for name in names)
    directory = configure('plain', CONFIGURATIONS['plain'], totals, with_cache('plain', None))
    if directory is None:
        return
    tests = changed.Tests(directory)
    reading = changed.read_by(names, tests) | tests.named_all(changed.ALWAYS)
    plain = build('plain', CONFIGURATIONS['plain'], options.jobs, totals, selection=() if has_code else sorted(reading))
    if plain is None:
        totals.skip('plain: all tests', 'its build failed')
        return
    reached, own, chaos = changed.reached_tests(tests, names)
    chosen = reading | reached
    sanitized = None
    if own:
        sanitized = worker.submit(build_sanitized, 'address', fuzzing_environment(totals), options, totals, own)
    style = worker.submit(look_at_style, options.jobs)
    everything = tests_of(plain, 'plain')
    left = sorted(everything - chosen)
    say(f'changed: {len(chosen)} of {len(everything)} tests are reached, {len(own)} of them in their own rooms; '
        f'not run: {", ".join(left) or "none"}, thread, AArch64, Soft-RoCE, the daily set')
    test('plain', plain, options, [], totals, names=chosen)
    if chaos:
        test('plain', plain, options, [], totals, 1, chaos)
    if 'simulate' in reached:
        simulation(plain, options, totals)
    if sanitized is not None and (ready := awaited(sanitized)) is not None:
        directory, wrapper, _ = ready
        if own_there := own & tests_of(directory, 'address'):
            test('address', directory, options, wrapper, totals, names=own_there)
    lint(*awaited(style), totals)
    say('changed: no proof: scripts/test.sh runs everything')


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError('must be 1 or more')
    return number


def main():
    parser = argparse.ArgumentParser(prog='scripts/test.sh', description=__doc__)
    parser.add_argument('--quick', action='store_true', help='the plain build, and what takes seconds')
    parser.add_argument('--filter', metavar='TEXT', help='only tests whose name contains TEXT, in the plain build')
    parser.add_argument('--suite', metavar='NAME', help='only the tests of a suite of Meson, in the plain build')
    parser.add_argument('--changed', nargs='?', const='', metavar='BASE',
                        help='what files that differ from commit BASE can reach (default: the commit before the last, '
                             'or the last one while files are not committed)')
    parser.add_argument('--daily', action='store_true', help='the whole daily set; otherwise one part of it, in turn')
    parser.add_argument('--part', choices=daily.all_parts(), help='this part of the daily set, out of turn')
    parser.add_argument('--seeds', type=positive, metavar='N', help='seeds for the randomized suites and chaos')
    parser.add_argument('--fuzz-seconds', type=positive, metavar='N', help='seconds for each fuzzing target')
    parser.add_argument('--jobs', type=positive, default=os.cpu_count() or 1, metavar='N', help='compilers at a time')
    parser.add_argument('--no-cache', action='store_true', help='compile everything again')
    options = parser.parse_args()

    BUILD_ROOT.mkdir(parents=True, exist_ok=True)
    if options.changed is not None:
        options.changed = changed_files(options.changed)
    options.parts = parts_of(options)
    if not runs_everything(options):
        os.environ.pop('VERBENA_FRESH', None)  # It installs less than the tests can use.
    totals = Totals()
    # The summary is the last line even when somebody stops us.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as worker:
            try:
                if options.changed is None:
                    test_all(worker, options, totals)
                else:
                    test_changed(options.changed, worker, options, totals)
            except BaseException:
                # What was not begun is not; what runs ends now.
                worker.shutdown(wait=False, cancel_futures=True)
                STOPPING.set()
                raise
    except KeyboardInterrupt:
        totals.fail('interrupted')
    except SystemExit:
        totals.fail('stopped by a signal')
    say('done')
    totals.end()


main()
