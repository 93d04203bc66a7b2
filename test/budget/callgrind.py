"""Reads what callgrind and objdump write: instructions, and those among them that lock or call indirectly."""

import collections
import re
import subprocess

# --compress-strings=no --compress-pos=no --dump-instr=yes: "0x124320 0 2048" is the address in the object, the line and
# the count. After `calls=` comes one more such line, with what the callee cost.
COST = re.compile(r'^(0x[0-9a-f]+) \d+ (\d+)$')
CALLS = re.compile(r'^calls=\d+ ')
SIDE = re.compile(r'^desc: Trigger: Client Request: (\w+)$', re.MULTILINE)
SUMMARY = re.compile(r'^summary: (\d+)$', re.MULTILINE)
OBJECT = re.compile(r'^ob=(.*)$')

SECTION = re.compile(r'^Disassembly of section (\S+):')
INSTRUCTION = re.compile(r'^\s*([0-9a-f]+):\s+(.*?)\s*$')
# An exchange with memory locks by itself.
LOCKED = re.compile(r'^lock\b|^xchg\b.*\(')
# Through a register or memory; not through the table by which a shared library's function is found.
INDIRECT = re.compile(r'^(?:(?:bnd|notrack) )*(call|jmp)q?\s+\*(?!.*\(%rip\))')


class Profile:
    """One dump: which side, how many instructions, and how often each one of an object was executed."""

    def __init__(self, text):
        self.side = SIDE.search(text)[1]
        self.instructions = int(SUMMARY.search(text)[1])
        self.executed = collections.defaultdict(collections.Counter)
        # Instructions that call, or jump into another function. callgrind counts the calls also where it does not
        # collect, so their number says nothing.
        self.leaving = collections.defaultdict(set)
        counts, is_call = None, False
        for line in text.splitlines():
            if found := OBJECT.match(line):
                counts = found[1]
            elif CALLS.match(line):
                is_call = True
            elif found := COST.match(line):
                address = int(found[1], 16)
                if is_call:
                    self.leaving[counts].add(address)
                    is_call = False
                else:
                    self.executed[counts][address] += int(found[2])

    def count(self, code):
        """Locked instructions and indirect calls, by `code(object)`. Jumps count only if they leave their function:
        the others are tables of a switch."""
        locked = indirect = 0
        for name, counts in self.executed.items():
            found = code(name)
            locked += sum(counts[address] for address in found.locked)
            indirect += sum(counts[address] for address in found.calls | (found.jumps & self.leaving[name]))
        return locked, indirect


class Code:
    """Addresses of the instructions of an object that count."""

    def __init__(self, disassembly):
        self.locked, self.calls, self.jumps = set(), set(), set()
        is_linkage = False
        for line in disassembly.splitlines():
            if found := SECTION.match(line):
                is_linkage = found[1].startswith('.plt')
            elif not is_linkage and (found := INSTRUCTION.match(line)):
                address, instruction = int(found[1], 16), found[2]
                if LOCKED.match(instruction):
                    self.locked.add(address)
                if indirect := INDIRECT.match(instruction):
                    (self.calls if indirect[1] == 'call' else self.jumps).add(address)

    @staticmethod
    def of(name):
        """Objects without a file (the kernel's page, unknown code) have none."""
        if not name.startswith('/'):
            return Code('')
        return Code(subprocess.run(['objdump', '-d', '--no-show-raw-insn', name], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout)


def check(report):
    """Finds what is planted."""
    code = Code('\n'.join([
        'Disassembly of section .plt:', '  10:\tjmp    *0x1(%rip)', '  11:\tcall   *%rax',
        'Disassembly of section .text:', '  20:\tlock cmpxchg %rdx,(%rdi)', '  21:\txchg   %eax,(%rdi)',
        '  22:\txchg   %ax,%ax', '  23:\tcall   *0x18(%rax)', '  24:\tcall   *0x2fe2(%rip)        # 3000 <x@GLIBC>',
        '  25:\tjmp    *%rcx', '  26:\tnotrack jmp *%rdx', '  27:\tcall   40 <clock>', '  28:\tbnd jmp *%rdx']))
    report.check(code.locked == {0x20, 0x21}, f'locked instructions: {code.locked}')
    report.check(code.calls == {0x23}, f'indirect calls: {code.calls}')
    report.check(code.jumps == {0x25, 0x26, 0x28}, f'indirect jumps: {code.jumps}')
    profile = Profile('\n'.join([
        'desc: Trigger: Client Request: server', 'summary: 32', 'ob=/a', 'fn=f', '0x20 0 10', '0x23 0 7',
        'cob=/b', 'cfn=g', 'calls=9 0x90 0', '0x23 0 4000', '0x25 0 3', 'cfn=h', 'calls=4 0x98 0', '0x25 0 60',
        '0x26 0 5', 'ob=/b', 'fn=g', '0x20 0 7']))
    report.check((profile.side, profile.instructions) == ('server', 32), 'side and sum of a dump')
    report.check(profile.count(lambda name: code if name == '/a' else Code('')) == (10, 10),
                 f'counts of a dump: {profile.count(lambda name: code if name == "/a" else Code(""))}')
