#!/usr/bin/env python3
"""Memory that a peer can write is read one word at a time, by one load each.

The types that live there have words (PeerWord) and bytes, and nothing else: a plain field could be loaded twice, once
for a check and once for the use. Then the readers are looked at as compiled: in the archive, and in a probe that every
compiler optimizes in several ways. Two loads of one place in a peer's memory fail.

usage: peer_memory.py ROOT ARCHIVE COMPILER...
"""

import pathlib
import platform
import re
import shutil
import sys
import tempfile

import scan
from report import Report, run, skip

# Types in memory that a peer writes, or reads while this side writes.
SHARED = {'src/nic/soft/layout.hpp': ('KeyEntry', 'QpControl', 'ServiceBlock'), 'src/nic/soft/ring.hpp': ('SlotOf',)}
WORD = re.compile(r'^(?:PeerWord<[\w:]+>|typename Memory::template Atomic<[\w:]+>) \w+$')
BYTES = re.compile(r'^(?:alignas\(\d+\) )?std::byte \w+\[\w+\]$')
# Another way to the same memory.
CAST = re.compile(r'reinterpret_cast<(?:const )?(?:volatile )?std::atomic|std::atomic_ref\((?:remote|theirs|peer)\b')

# Name in the disassembly, register of the peer's memory. The other registers hold private memory.
ARCHIVE_READERS = {'verbena::nic::soft::ServiceBlock::Ask::read() const': '%rsi'}
PROBE = """
#include "nic/soft/layout.hpp"
using namespace verbena::nic::soft;
extern "C" bool probe_peek(const RingConsumer<RealMemory>* ring, SlotView* view) { return ring->peek(*view); }
extern "C" const std::byte* probe_payload(const RingConsumer<RealMemory>* ring, const SlotView* view) {
  return ring->payload(*view);
}
extern "C" bool probe_key(const KeyEntry* entry, std::uint64_t* to) {
  constexpr auto kAcquire = std::memory_order_acquire;
  const std::uint64_t length = entry->length.load(kAcquire), iova = entry->iova.load(kAcquire);
  if (length > *to) return false;
  *to = length + iova;
  return true;
}
"""
# Registers of each probe's private arguments: what is loaded by them is this side's.
PROBE_READERS = {'probe_peek': ('%rdi', '%rsi'), 'probe_payload': ('%rdi', '%rsi'), 'probe_key': ('%rsi',)}
VARIANTS = (['-O1'], ['-O2'], ['-O3', '-march=native'])

FUNCTION = re.compile(r'^[0-9a-f]+ <(.+)>:$')
INSTRUCTION = re.compile(r'^\s*[0-9a-f]+:\t(?:[0-9a-f]{2} )+\s*\t(?:lock |rep \w* ?)?(\w+)\s*([^#<]*)')
MEMORY = re.compile(r'-?(?:0x[0-9a-f]+)?\((%\w+)(?:,%\w+(?:,\d)?)?\)')
NO_LOAD = re.compile(r'^(?:lea|nop|prefetch|cs|data16)')


def members(body):
    """The statements of a class body, without those of nested functions; nested structs are flattened."""
    text = re.sub(r'\[\[[^\]]*\]\]', ' ', body)
    # Heads of nested structs, then bodies of functions, then the ends of the structs.
    text = re.sub(r'\bstruct\s+(?:alignas\(\d+\)\s*)?(?:\w+\s*)?\{', '', text)
    text = re.sub(r'\)\s*(?:const )?(?:noexcept )?\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}', ');', text)
    text = re.sub(r'\}\s*\w*\s*;', ';', text)
    return [' '.join(part.split()) for part in text.split(';') if part.strip() not in ('', '}')]


def plain_members(body):
    return [part for part in members(body) if not WORD.match(part) and not BYTES.match(part) and '(' not in part]


def functions(listing):
    """Instructions of each function of `objdump -d`: (mnemonic, operands)."""
    found, current = {}, None
    for line in listing.splitlines():
        begin = FUNCTION.match(line)
        if begin:
            current = found.setdefault(begin[1], [])
            continue
        instruction = INSTRUCTION.match(line)
        if instruction and current is not None:
            current.append((instruction[1], instruction[2].strip()))
    return found


def loads(instructions, is_peers):
    """Memory operands that are loaded, where `is_peers` says so of their base register."""
    found = []
    for mnemonic, operands in instructions:
        if NO_LOAD.match(mnemonic):
            continue
        for memory in MEMORY.finditer(operands):
            is_stored = mnemonic.startswith(('mov', 'vmov', 'set')) and memory.end() == len(operands)
            if not is_stored and is_peers(memory[1]):
                found.append(memory[0])
    return found


def check_loads(report, where, instructions, is_peers, least):
    found = loads(instructions, is_peers)
    report.check(len(found) >= least, f'{where}: {len(found)} loads found, {least} expected: does the check see it?')
    for place in sorted(set(found)):
        report.check(found.count(place) == 1, f'{where}: {place} is loaded {found.count(place)} times')


def self_test(report):
    text = ('0000000000000000 <reader>:\n'
            '   0:\t48 8b 46 18          \tmov    0x18(%rsi),%rax\n'
            '   4:\t48 89 47 10          \tmov    %rax,0x10(%rdi)\n'
            '   8:\t48 81 7e 18 00 00 01 \tcmpq   $0x10000,0x18(%rsi)\n'
            '   c:\t48 8d 46 18          \tlea    0x18(%rsi),%rax\n'
            '  10:\tc3                   \tret\n')
    found = loads(functions(text)['reader'], lambda base: base == '%rsi')
    report.check(found == ['0x18(%rsi)'] * 2, f'self-test: finds {found}')
    report.check(plain_members('PeerWord<std::uint64_t> a; struct alignas(64) { std::uint32_t b; } c;'
                               ' [[nodiscard]] int f() const noexcept { return 1; } std::byte d[8];') ==
                 ['std::uint32_t b'], 'self-test: does not find a plain field')


def check_types(report, root):
    for name, types in SHARED.items():
        text = scan.blank((root / name).read_text(encoding='utf-8'))
        for wanted in types:
            found = [e for e in scan.scan(text)[0] if e.kind != 'function' and e.name == wanted and e.end > e.body]
            if report.check(len(found) == 1, f'{name}: {wanted} is not there'):
                body = text[found[0].body + 1:found[0].end].rstrip().rstrip('};')
                for part in plain_members(body):
                    report.check(False, f'{name}: {wanted}: "{part}" is no PeerWord: it could be loaded twice')
    for path in sorted((root / 'src').rglob('*.[ch]pp')):
        for number, line in enumerate(path.read_text(encoding='utf-8').splitlines(), 1):
            report.check(not CAST.search(line), f'{path.relative_to(root)}:{number}: use PeerWord, or load_peer_word')


def check_archive(report, archive):
    listing = run(['objdump', '-d', '-C', archive])
    report.check(listing.returncode == 0, f'objdump failed: {listing.stdout[-300:]}')
    found = functions(listing.stdout)
    for name, register in ARCHIVE_READERS.items():
        if report.check(name in found, f'{name} is not in the archive'):
            check_loads(report, name, found[name], lambda base, peer=register: base == peer, least=6)


def check_probe(report, root, compiler, variant, directory):
    source, made = directory / 'probe.cpp', directory / 'probe.o'
    source.write_text(PROBE, encoding='utf-8')
    command = [compiler, '-std=c++23', '-D_GNU_SOURCE', *variant, '-DNDEBUG', '-I', root / 'include',
               '-I', root / 'src', '-c', source, '-o', made]
    built = run(command)
    where = f'{pathlib.Path(compiler).name} {" ".join(variant)}'
    if not report.check(built.returncode == 0, f'{where}: {built.stdout[-1000:]}'):
        return
    found = functions(run(['objdump', '-d', made]).stdout)
    for name, private in PROBE_READERS.items():
        if report.check(name in found, f'{where}: {name} is not in the object'):
            check_loads(report, f'{where}: {name}', found[name], lambda base, own=private: base not in own, least=1)


def main():
    root, archive, compilers = pathlib.Path(sys.argv[1]), sys.argv[2], [c for c in sys.argv[3:] if c]
    if platform.machine() != 'x86_64' or not shutil.which('objdump'):
        skip('peer_memory', 'it reads the instructions of x86-64 with objdump')
    report = Report('peer_memory')
    self_test(report)
    check_types(report, root)
    check_archive(report, archive)
    with tempfile.TemporaryDirectory() as directory:
        for compiler in compilers:
            for variant in VARIANTS:
                check_probe(report, root, compiler, variant, pathlib.Path(directory))
    report.end()


main()
