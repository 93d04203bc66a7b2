#!/usr/bin/env python3
"""Library code asks the machine for threads, time, random words and files through src/base alone, where a simulation
has its own in their place (test/sim). Whatever goes past it would make a run depend on more than its seed."""

import pathlib
import re
import sys

import scan
from report import Report

# What a simulation leaves out.
LEFT_OUT = ('src/nic/soft/', 'src/nic/verbs/', 'src/link/cm/', 'src/programs/', 'src/host/prefault.cpp',
            'src/host/this_machine.cpp', 'src/mesh/pmix/', 'include/verbena/mesh_mpi.hpp', 'include/verbena/mpi.h',
            'include/verbena/compat/nova')

CALL = r'(?<![\w.>:])(?:::|std::)?(?:{})\s*\('
# (what, pattern, its home, what to use instead). A call of a method, or of another namespace's function, is none.
RULES = [
    ('thread', r'std\s*::\s*(?:jthread|thread|this_thread|async|stop_token|(?:shared_|recursive_|timed_)*mutex|'
               r'shared_timed_mutex|condition_variable(?:_any)?|counting_semaphore|binary_semaphore|barrier|latch|'
               r'call_once|once_flag|shared_lock)\b|' + CALL.format(
                   'pthread_create|pthread_join|pthread_(?:mutex|cond|rwlock|spin|barrier)_\\w+|sem_\\w+|thrd_\\w+|'
                   'sched_yield|clone|clone3'),
     ('src/base/threads.hpp',), 'Mutex, Condition, Thread and this_thread of base/threads.hpp'),
    ('atomic wait', r'(?:\.|->)\s*notify_(?:one|all)\s*\(\s*\)|(?:\.|->)\s*wait\s*\([^()]*\bmemory_order|'
                    r'\batomic_(?:flag_)?(?:wait|notify)\w*\s*\(|(?:\.|->)\s*wait\s*\(\s*(?:true|false|\d+)\s*\)',
     (), 'wait_while and wake_waiters of base/futex.hpp'),
    ('futex', r'\bFUTEX_\w+|\bSYS_futex\w*|\b__NR_futex\w*', ('src/base/futex.cpp',),
     'wait_while and wake_waiters of base/futex.hpp'),
    ('clock', r'\b\w*_clock\s*::\s*now\b|\b__builtin_ia32_rdtscp?\b|\b__?rdtscp?\b|\bcntvct_el0\b|' + CALL.format(
        'clock_gettime|clock_nanosleep|gettimeofday|timespec_get|time|clock|nanosleep|usleep'),
     ('src/base/clock.cpp', 'include/verbena/deadline.hpp'), 'ticks_now and Deadline of <verbena/deadline.hpp>'),
    ('sleep', r'\bsleep_(?:for|until)\b', (), 'a wait for the event, with a deadline'),
    ('random words', r'std\s*::\s*random_device\b|\b(?:SYS|__NR)_getrandom\b|\b\w*rand48\w*\b|' + CALL.format(
        'getrandom|getentropy|rand|rand_r|srand|random|srandom|arc4random\\w*'),
     ('src/base/random.cpp',), 'fill_random and random_word of base/random.hpp'),
    ('files', r'std\s*::\s*(?:filesystem\b|[io]?fstream\b|rename\b|remove\s*\(\s*[^,()]*\)\s*[;)])|' + CALL.format(
        'open|openat|openat2|creat|fopen|fdopen|freopen|opendir|fdopendir|scandir|pread|preadv2?|pread64|pwrite|'
        'pwritev2?|pwrite64|lseek|fsync|fdatasync|sync_file_range|syncfs|ftruncate|truncate|rename|renameat2?|unlink|'
        'unlinkat|rmdir|mkdir|mkdirat|mkstemp|mkostemp|link|linkat|symlink|fstat|fstatat|stat|lstat|statx|flock'),
     ('src/base/files.cpp',), 'File and Directory of base/files.hpp'),
]
COMPILED = [(what, re.compile(pattern), homes, instead) for what, pattern, homes, instead in RULES]

# File, rule and what stands there, and why it may. Each is to be found.
ALLOWED = {
    ('src/base/log.cpp', 'thread', 'std::shared_mutex'):
        'shared by the threads that log; nobody waits in it for another task, which in a simulation would be for ever',
    ('src/base/log.cpp', 'thread', 'std::shared_lock'): 'its lock',
    ('src/host/arena.cpp', 'files', 'ftruncate('): 'memory of a memfd, and no file',
    ('src/host/memory_limits.cpp', 'files', 'std::filesystem'): 'a directory of the kernel, real in a simulation, too',
}
# Condition of base/threads.hpp has it too.
NOTIFIED = re.compile(r'\bCondition\s+(\w+)')


def findings(name, text, conditions):
    """(rule, what stands there, line, what to use instead) of one file; `name` is its path from the root."""
    if not name.startswith(('src/', 'include/')) or name.startswith(LEFT_OUT):
        return []
    code, found = scan.blank(text), []
    for what, pattern, homes, instead in COMPILED:
        if name in homes:
            continue
        for match in pattern.finditer(code):
            before = re.search(r'(\w+)\s*$', code[:match.start()])
            if what == 'atomic wait' and before and before[1] in conditions:
                continue
            # `Result<File> open(const char* path)` and `void open()` declare.
            if what in ('files', 'clock', 'thread') and match[0].endswith('(') and declares(code, match):
                continue
            line = code.count('\n', 0, match.start()) + 1
            found.append((what, re.sub(r'\s|^::', '', match[0]), line, instead))
    return found


def declares(code, match):
    """Whether the name before a parenthesis is that of a function which is declared there."""
    if '::' in match[0]:
        return False
    before = code[:match.start()].rstrip()
    return bool(re.search(r'(?:[>*\]]|(?<!&)&|\b(?:void|bool|int|auto|Status|File|double|unsigned|\w+_t))$', before))


def self_test(report):
    for line in ['std::thread thread;', 'std::jthread thread(f);', 'std::mutex mutex;', 'std::shared_mutex m;',
                 'std::condition_variable_any c;', 'std::counting_semaphore<1> s(0);', 'std::this_thread::yield();',
                 'pthread_create(&t, nullptr, f, nullptr);', '::sched_yield();',
                 'while (n < m && pthread_create(&t[n], nullptr, f, nullptr) == 0) ++n;',
                 'word.wait(true, std::memory_order_acquire);', 'word.wait(0);', 'word.notify_all();',
                 'std::atomic_wait(&word, 1);', 'syscall(SYS_futex, &word);', 'f(FUTEX_WAIT_PRIVATE);',
                 'std::chrono::steady_clock::now();', 'const auto at = Clock::system_clock::now();',
                 'clock_gettime(CLOCK_MONOTONIC, &now);', '::nanosleep(&t, nullptr);', 'usleep(1);', 'time(nullptr);',
                 'x = a * ::time(nullptr);',
                 '__builtin_ia32_rdtsc();', 'sleep_for(1ms);', 'getrandom(p, 1, 0);', 'std::random_device device;',
                 'x = rand();', 'std::rand();', 'Fd fd(::open(path, O_RDONLY));', 'return open(path, O_RDONLY);',
                 'if (pread(fd, p, 1, 0) < 0) {', '::pwrite(fd, p, 1, 0);', '::fsync(fd);', 'fdatasync(fd);',
                 '::rename(a, b);', 'std::rename(a, b);', 'unlink(path);', '::ftruncate(fd, 0);', 'std::fopen(p, q);',
                 'std::ifstream in(path);', 'namespace fs = std::filesystem;', '::fstat(fd, &facts);']:
        found = findings('src/kv/a.cpp', f'void f() {{\n  {line}\n}}\n', set())
        report.check(len(found) == 1 and found[0][2] == 2, f'self-test: finds {found} in {line}')
        report.check(not findings('src/nic/soft/a.cpp', line, set()), f'self-test: {line} in what is left out')
        report.check(not findings('test/a.cpp', line, set()), f'self-test: {line} in a test')
        report.check(not findings('src/kv/a.cpp', f'// {line}\nconst char* a = "{line}";\n', set()),
                     f'self-test: {line} in a comment')
    for line in ['Mutex mutex;', 'const std::lock_guard lock(mutex_);', 'std::unique_lock lock(mutex_);',
                 'listener.wait();', 'nic_.wait(channel, deadline);', 'changed_.notify_all();', 'device->open(path);',
                 'Fabric::open(options);', '[[nodiscard]] Result<void> open(ibv_pd* pd);', 'void open() noexcept;',
                 'directory.rename(a, b);', 'std::ranges::rename(a);', 'Result<void> sync();',
                 'wait_while(word, 1, d);', 'std::remove(a.begin(), a.end(), 1);', 'Deadline::now();',
                 'const auto t = deadline.time();']:
        found = findings('src/kv/a.cpp', line + '\n', {'changed_'})
        report.check(not found, f'self-test: finds {found} in {line}')
    for homes, line in [('src/base/clock.cpp', 'clock_gettime(CLOCK_MONOTONIC, &now);'),
                        ('src/base/futex.cpp', 'syscall(SYS_futex, &word);'),
                        ('src/base/threads.hpp', 'std::thread t;'), ('src/base/random.cpp', 'getrandom(p, 1, 0);'),
                        ('src/base/files.cpp', '::fsync(fd);')]:
        report.check(not findings(homes, line, set()), f'self-test: {line} at home')


def main():
    root = pathlib.Path(sys.argv[1])
    report = Report('machine')
    self_test(report)
    texts = {}
    for directory in ('src', 'include'):
        for path in sorted((root / directory).rglob('*')):
            if path.suffix in ('.hpp', '.cpp', '.h'):
                texts[path.relative_to(root).as_posix()] = path.read_text()
    conditions = {name for text in texts.values() for name in NOTIFIED.findall(scan.blank(text))}
    used = set()
    for name, text in texts.items():
        found = findings(name, text, conditions)
        used |= {(name, what, there) for what, there, _, _ in found}
        wrong = [f'{name}:{line}: {what}: {there} goes past the simulation: use {instead}'
                 for what, there, line, instead in found if (name, what, there) not in ALLOWED]
        report.check(not wrong, '\n  '.join(wrong))
    for known in ALLOWED:
        report.check(known in used, f'{" ".join(known)} is gone: take it out of ALLOWED')
    report.check(len(texts) > 100, 'no sources')
    report.end()


main()
