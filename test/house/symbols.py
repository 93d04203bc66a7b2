#!/usr/bin/env python3
"""What our archives ask of others and put into a program: no verbs call outside its rooms, no clash, no surprise."""

import re
import sys

from report import Report, run

# Objects are named after their path below src/, with '_' for '/'.
VERBS_CALLERS = ('nic_verbs_', 'link_')
LINE = re.compile(r'^(?:[0-9a-f]+)?\s+([A-Za-z?])\s+(.+)$')
# Every call looks at the first, which the fork handler alone writes, and every reading of the clock at the second.
WRITABLE = {'verbena::detail::is_forked', 'verbena::detail::counter_serves'}


def failures(member, kind, symbol):
    """What is wrong with one line of `nm -C`."""
    found = []
    plain = symbol.split('@')[0]
    if kind == 'U' and re.match(r'(ibv|rdma)_\w+$', plain) and not member.startswith(VERBS_CALLERS):
        found.append(f'{member} calls {plain}: only nic/verbs and link may (it crashes on a soft context)')
    if kind == 'U' and re.match(r'(exit|_exit|quick_exit)$', plain):
        found.append(f'{member} calls {plain}: a library never ends its process')
    # Strong symbols of ours must be in the namespace or carry the prefix, so that nothing clashes in a static link.
    if kind in 'TDBRGSC' and 'verbena' not in symbol:
        found.append(f'{member} defines {symbol}, outside of namespace verbena')
    if kind in 'DBGSC' and symbol not in WRITABLE:
        found.append(f'{member} exports the writable global {symbol}')
    if symbol.startswith('_GLOBAL__sub_I'):
        found.append(f'{member} runs code before main ({symbol}): make it constinit or a function-local static')
    return found


def self_test(report):
    planted = [('engine_engine.cpp.o', 'U', 'ibv_create_qp'), ('kv_server.cpp.o', 'U', 'rdma_connect@RDMACM_1.0'),
               ('base_base.cpp.o', 'T', 'helper(int)'), ('base_base.cpp.o', 'B', 'verbena::counter'),
               ('base_base.cpp.o', 't', '_GLOBAL__sub_I_base.cpp'), ('base_base.cpp.o', 'U', 'exit')]
    for case in planted:
        report.check(failures(*case), f'self-test: does not find {case}')
    for case in [('nic_verbs_device.cpp.o', 'U', 'ibv_create_qp'), ('link_cm.cpp.o', 'U', 'rdma_connect'),
                 ('base_base.cpp.o', 'T', 'verbena::ticks_per_us()'),
                 ('kv_a.cpp.o', 'W', 'std::vector<int>::~vector()'),
                 ('base_base.cpp.o', 'b', 'verbena::ticks_per_us()::measured')]:
        report.check(not failures(*case), f'self-test: refuses {case}')


def check_archive(report, archive):
    listing = run(['nm', '-C', archive])
    report.check(listing.returncode == 0, f'nm failed: {listing.stdout}')
    member = ''
    defined = 0
    for line in listing.stdout.splitlines():
        if line.endswith('.o:'):
            member = line[:-1]
            continue
        match = LINE.match(line)
        if not match:
            continue
        kind, symbol = match.groups()
        defined += kind == 'T'
        found = failures(member, kind, symbol)
        report.check(not found, '\n  '.join(found))
    report.check(defined > 0, f'{archive} defines nothing')


def main():
    report = Report('symbols')
    self_test(report)
    for archive in sys.argv[1:]:
        check_archive(report, archive)
    report.end()


main()
