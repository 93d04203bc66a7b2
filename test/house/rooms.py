#!/usr/bin/env python3
"""Each room under src/ includes only itself, the rooms above it, and the third-party code that it may see."""

import pathlib
import re
import sys

from report import Report

ROOMS = ['base', 'host', 'nic', 'link', 'engine', 'channel', 'session', 'node', 'mesh', 'kv', 'api', 'programs']

# A public header belongs to the lowest room that may include it: the one that implements it. A name with its suffix
# counts before one without.
PUBLIC = {'status': 'base', 'counters': 'base', 'error': 'base', 'deadline': 'base', 'transport': 'link', 'kv': 'kv',
          'kv_statistics': 'kv', 'rdma_types': 'session', 'rdma': 'api', 'kv.h': 'api', 'mesh.h': 'api',
          'compat/kvstore': 'api', 'compat/key_versions': 'api', 'compat/kv_store': 'api',
          'compat/rdma_common': 'api', 'compat/memory_pool': 'api', 'compat/hash_table': 'api',
          'wait_policy': 'base', 'mesh': 'mesh', 'mesh_pmix': 'mesh', 'log': 'base',
          'version': 'base', 'slab_manager': 'host', 'queue_pair': 'api', 'typed': 'api', 'typed_memory': 'api',
          'coroutine_loop': 'api', 'coroutine_task': 'api', 'coroutines': 'api', 'coroutines_kv': 'api',
          'coroutines_queue_pair': 'api', 'coroutines_mesh': 'api', 'typed_mesh': 'api'}

# Third-party headers by prefix, and the rooms that may include them. The verbs structs are the vocabulary of the data
# path above the seam, so they are seen from `nic` on; that no function of libibverbs is called there is symbols.py's.
FROM_NIC_ON = ROOMS[ROOMS.index('nic'):]
THIRD_PARTY = {
    'fmt/': ['base', 'programs'],
    'hwloc': ['host'],
    'numa': ['host'],
    'infiniband/': FROM_NIC_ON,
    'rdma/': ['link'],
    'sodium': ['base'],
    'xxh': ['base', 'kv'],  # base/hash.hpp is what the rooms between them call
    'CLI/': ['programs'],
    'nlohmann/': ['programs'],
    'histedit': ['programs'],
    'editline/': ['programs'],
    'microhttpd': ['programs'],
    'pmix': ['mesh'],
    'mpi.h': [],
    'readline/': [],
    'boost/': [],
    'gtest/': [],
    'gmock/': [],
    'benchmark/': [],
}
# Third-party headers that one directory of their room alone sees: its archive is one apart.
APART = {'pmix': 'mesh/pmix/'}
# The headers of ours that alone ask users for it: with the ABI of their MPI, or as the type of a callback of RDMALib.
COMPILED_BY_USERS = {'mpi.h': ['mesh_mpi.hpp', 'mpi.h'], 'infiniband/verbs.h': ['compat/nova.hpp']}
# Behind the seam, but pure: a table goes in and a choice comes out, so that verbena-info prints the library's own.
PURE_BEHIND_SEAM = {'nic/verbs/gid.hpp': ['programs']}
# What users can call is measured through <verbena/...>; these rooms help to start and to place threads.
MEASURES_USERS_CALLS = re.compile(r'programs/perf(_\w+)?\.[ch]pp$')
ROOMS_BESIDE_THE_API = ('base', 'host', 'programs')
SYSTEM_DIRECTORIES = ('sys/', 'linux/', 'net/', 'netinet/', 'arpa/', 'asm/', 'bits/', 'sanitizer/', 'verbena/')

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def third_party(header):
    for prefix, rooms in THIRD_PARTY.items():
        if header.startswith(prefix):
            return prefix, rooms
    return None


def violations(path, text):
    """Failures of one file; `path` is relative to src/."""
    room = path.parts[0]
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        where = f'src/{path}:{number}'
        known = third_party(header)
        if quote == '"':
            other = header.split('/')[0]
            if '/' not in header or other not in ROOMS:
                found.append(f'{where}: "{header}" does not name its room, as in "host/arena.hpp"')
            elif ROOMS.index(other) > ROOMS.index(room):
                found.append(f'{where}: room {room} may not use room {other}, which is below it')
            elif MEASURES_USERS_CALLS.match(path.as_posix()) and other not in ROOMS_BESIDE_THE_API:
                found.append(f'{where}: verbena-perf measures what users can call, not room {other}')
            elif (other == 'nic' and room != 'nic' and header.count('/') > 1 and
                  room not in PURE_BEHIND_SEAM.get(header, [])):
                found.append(f'{where}: "{header}" is behind the NIC seam; only src/nic may see it')
        elif header.startswith('verbena/'):
            name = header[len('verbena/'):]
            stem = name.rsplit('.', 1)[0]
            owner = PUBLIC.get(name, PUBLIC.get(stem, stem))
            if owner not in ROOMS:
                found.append(f'{where}: <{header}> is in no room; name its room in PUBLIC of test/house/rooms.py')
            elif ROOMS.index(owner) > ROOMS.index(room):
                found.append(f'{where}: room {room} may not use <{header}>, which is of room {owner} below it')
        elif known:
            if room not in known[1] or not path.as_posix().startswith(APART.get(known[0], '')):
                found.append(f'{where}: room {room} may not see <{header}>')
        elif '/' in header and not header.startswith(SYSTEM_DIRECTORIES):
            found.append(f'{where}: <{header}> is third-party code that the house does not know')
    return found


def public_violations(path, text):
    """Failures of one public header; `path` is relative to include/verbena/."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quote, header = match.groups()
        if quote == '"':
            found.append(f'include/verbena/{path}:{number}: "{header}" is private')
        elif third_party(header) and path.as_posix() not in COMPILED_BY_USERS.get(header, []):
            found.append(f'include/verbena/{path}:{number}: <{header}> would be forced on consumers')
    return found


def self_test(report):
    def finds(path, line):
        return len(violations(pathlib.PurePath(path), line)) == 1

    planted = [('base/a.cpp', '#include "host/arena.hpp"'), ('channel/a.cpp', '#include "kv/x.hpp"'),
               ('channel/a.cpp', '#include "session/session.hpp"'), ('engine/a.cpp', '#include "nic/soft/ring.hpp"'),
               ('nic/a.cpp', '# include <hwloc.h>'), ('host/a.cpp', '#include <infiniband/verbs.h>'),
               ('kv/a.cpp', '#include <rdma/rdma_cma.h>'), ('host/a.cpp', '#include "arena.hpp"'),
               ('channel/a.cpp', '#include <verbena/kv.hpp>'), ('kv/a.cpp', '#include <absl/x.h>'),
               ('engine/a.cpp', '#include "nic/verbs/gid.hpp"'), ('programs/a.cpp', '#include "nic/verbs/device.hpp"'),
               ('programs/perf_a.cpp', '#include "channel/connection.hpp"'),
               ('programs/perf.hpp', '#include "nic/nic.hpp"'), ('mesh/mesh.cpp', '#include <pmix.h>'),
               ('kv/pmix/a.cpp', '#include <pmix.h>'), ('mesh/mesh.cpp', '#include <mpi.h>')]
    for path, line in planted:
        report.check(finds(path, line), f'self-test: does not find {line} in {path}')
    for path, line in [('session/a.cpp', '#include "channel/x.hpp"'), ('kv/a.cpp', '#include <verbena/kv.hpp>'),
                       ('nic/soft/a.cpp', '#include "nic/soft/ring.hpp"'), ('host/a.cpp', '#include <numaif.h>'),
                       ('programs/a.cpp', '#include "nic/verbs/gid.hpp"'),
                       ('programs/perf_a.cpp', '#include "base/relax.hpp"'),
                       ('mesh/pmix/pmix_carrier.cpp', '#include <pmix.h>'),
                       ('programs/performance.cpp', '#include "nic/nic.hpp"'),
                       ('kv/a.cpp', '#include <sys/mman.h>'), ('kv/a.cpp', '// #include <hwloc.h>')]:
        report.check(not violations(pathlib.PurePath(path), line), f'self-test: refuses {line} in {path}')
    for name, line in [('a.hpp', '#include <infiniband/verbs.h>'), ('mesh.hpp', '#include <mpi.h>'),
                       ('mesh_pmix.hpp', '#include <pmix.h>')]:
        report.check(public_violations(pathlib.PurePath(name), line), f'self-test: {line} in public {name}')
    report.check(not public_violations(pathlib.PurePath('mesh_mpi.hpp'), '#include <mpi.h>'),
                 'self-test: refuses MPI in mesh_mpi.hpp')


def main():
    root = pathlib.Path(sys.argv[1])
    report = Report('rooms')
    self_test(report)
    source = root / 'src'
    for path in sorted(source.rglob('*')):
        if path.suffix not in ('.hpp', '.cpp', '.h', '.c'):
            continue
        relative = path.relative_to(source)
        if report.check(relative.parts[0] in ROOMS, f'src/{relative}: {relative.parts[0]} is not a room'):
            found = violations(relative, path.read_text())
            report.check(not found, '\n  '.join(found))
    public = root / 'include' / 'verbena'
    for path in sorted(public.rglob('*.h*')):
        found = public_violations(path.relative_to(public), path.read_text())
        report.check(not found, '\n  '.join(found))
    report.end()


main()
