"""The rows of compare.sh: which figures it measures, and the table, the JSON and the plots that it makes of them.

usage: compare_table.py --plan [--groups NAMES]             groups to measure: a name and its figures in each line
       compare_table.py --cpus                              two cpus of two cores; `siblings` behind those of one
       compare_table.py FIGURES --out DIR [--json FILE] [--slices FILE...]
                                                            FIGURES: in each line a figure's name and a JSON value

Ends with 4 when a peer's figure is missing; the table says which and why. A figure is called KIND:BYTES, or KIND:NUMBER
of peers or processes. KIND:BYTES/A/B is what that figure's JSON has as B of A. The group `slices` has no figures: it is
what bench/slices.sh measures, whose files `--slices` gives.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import plots
import slices_table
from table import better, bound, median, met, number, ratios, read, verdict

MIB = 1 << 20
MISSING_STATUS = 4


@dataclasses.dataclass(frozen=True)
class Row:
    """One comparison. To add one, add a line here; a new KIND also needs a case in compare.sh's `measure`."""
    group: str              # Measured close together, while a cache-line transfer takes as long as before.
    name: str
    ours: str               # A figure.
    peer: str | float | tuple[str, ...]     # A figure, a constant in `unit`, or the best of several figures.
    unit: str               # Of UNITS.
    target: float | None    # Of ours to the peer's; None: shown only.
    more: bool = False      # Whether more is better.


# Of a key-value store. One at a time, and pipelined by 32: what each peer's protocol does best is among them.
GET_PEERS = ('redis-get:64', 'memcached-get:64')
PUT_PEERS = ('redis-set:64', 'memcached-set:64')
GETS_PEERS = ('redis-get32:64', 'redis-mget32:64', 'memcached-get32:64')
PUTS_PEERS = ('redis-set32:64', 'redis-mset32:64', 'memcached-set32:64')
PEERS = 'the better of Redis and memcached'

# Values in a full store of 64 MiB, with keys of 16 B.
HELD_SIZES = (64, 100, 1000, 10_000, 70_000)

ROWS = (
    Row('message', 'message 8 B, one way, to libfabric shm', 'message:8', 'fi_pingpong:8', 'ns', None),
    Row('rate', 'message rate, one producer, 8 B, to UCX ucp_am_bw', 'message-bw:8', 'ucp_am_bw:8', 'M/s', 1.0, True),
    Row('physical', 'blocking read 8 B by physical address, to a plain one', 'pa-read:8', 'plain-read:8', 'ns', None),
    Row('physical', 'blocking write 8 B by physical address, to a plain one', 'pa-write:8', 'plain-write:8', 'ns',
        None),
    Row('bulk', 'read 1 MiB, to memcpy', f'read:{MIB}', f'memcpy:{MIB}', 'GB/s', 0.95, True),
    Row('bulk', 'write 1 MiB, to memcpy', f'write:{MIB}', f'memcpy:{MIB}', 'GB/s', 0.95, True),
    Row('bulk', 'read 1 MiB, to UCX ucp_get', f'read:{MIB}', f'ucp_get:{MIB}', 'GB/s', None, True),
    Row('bulk', 'write 1 MiB, to UCX ucp_put_bw', f'write:{MIB}', f'ucp_put_bw:{MIB}', 'GB/s', None, True),
    Row('connections', 'message rate, 64 connections of a thread to one listener, 8 B, to 1', 'connections-64:8',
        'connections-1:8', 'M/s', 0.667, True),
    Row('idle', 'what waking a sleeping receiver adds to a message, to 20 us', 'idle:8', 20.0, 'us', 1.0),
    Row('idle', 'what waking a sleeping receiver adds to a message, to a bare eventfd wake', 'idle:8', 'wake:8', 'us',
        None),
    Row('idle', 'share of a core that an idle receiver uses, to one percent', 'idle:8', 1.0, '%', 1.0),
    Row('kv-get', f'GET 64 B, one-sided, location known, to {PEERS}', 'kv-known:64', GET_PEERS, 'ns', 0.01),
    Row('kv-get', f'GET 64 B, one-sided, through the index, to {PEERS}', 'kv-index:64', GET_PEERS, 'ns', 0.01),
    Row('kv-get', f'GET 64 B, by message, to {PEERS}', 'kv-message:64', GET_PEERS, 'ns', 0.01),
    Row('kv-put', f'PUT 64 B, to {PEERS}', 'kv-put:64', PUT_PEERS, 'ns', 0.01),
    Row('kv-batch', f'multi-get 64 B, one-sided, batches of 32, to {PEERS} by 32', 'kv-gets-one-sided:64', GETS_PEERS,
        'M/s', 4.0, True),
    Row('kv-batch', f'multi-get 64 B, by message, batches of 32, to {PEERS} by 32', 'kv-gets-message:64', GETS_PEERS,
        'M/s', 2.0, True),
    Row('kv-batch', f'multi-put 64 B, batches of 32, to {PEERS} by 32', 'kv-puts:64', PUTS_PEERS, 'M/s', None, True),
    Row('kv-bulk', 'GET 1 MiB of one key, to memcpy', f'kv-get-one:{MIB}', f'kv-get-one:{MIB}/memcpy/get_bytes_per_s',
        'GB/s', 0.9, True),
    Row('kv-bulk', 'GET 1 MiB of 64 keys, to memcpy from 64 blocks', f'kv-get-many:{MIB}',
        f'kv-get-many:{MIB}/memcpy/get_bytes_per_s', 'GB/s', 0.9, True),
    Row('kv-bulk', 'PUT 1 MiB of one key, to memcpy', f'kv-put-one:{MIB}', f'kv-put-one:{MIB}/memcpy/put_bytes_per_s',
        'GB/s', 0.85, True),
    Row('kv-bulk', 'PUT 1 MiB of 64 keys, to memcpy into 64 blocks', f'kv-put-many:{MIB}',
        f'kv-put-many:{MIB}/memcpy/put_bytes_per_s', 'GB/s', 0.85, True),
    Row('mesh', 'mesh message 64 B, one way, to UCX ucp_am_lat', 'mesh-ping-pong:64', 'ucp_am_lat:64', 'ns', 1.0),
    Row('mesh-exchange', 'mesh all-to-all of 4 processes, 64 B, to MPI_Alltoall of Open MPI', 'mesh-exchange:64',
        'mpi-alltoall:64', 'ns', 1.0),
    Row('mesh-bulk', 'mesh all-to-all of 4 processes, 64 KiB, to MPI_Alltoall of Open MPI', 'mesh-exchange:65536',
        'mpi-alltoall:65536', 'ns', 1.0),
    Row('mesh-batch', 'mesh message rate between two, 64 B, batches of 32, to one by one', 'mesh-batched:64',
        'mesh-stream:64', 'M/s', 3.0, True),
    Row('mesh-poll', 'mesh poll with 64 idle peers, to 1', 'mesh-poll:64', 'mesh-poll:1', 'ns a poll', 1.5),
    Row('mesh-poll', 'mesh poll with 64 idle peers, to a sweep of 64 completion queues', 'mesh-poll:64',
        'mesh-sweep:64', 'ns a poll', None),
    Row('mesh-bring-up', 'bring-up of a mesh of 32 processes by PMIx, to PMIx init, fence and get', 'bring-up-mesh:32',
        'bring-up-pmix:32', 'ms', 2.0),
    Row('kv-memory', 'memory of an item of 64 B besides key and value, to 64 B', 'kv-memory:64', 64.0, 'B', 1.0),
    *(Row('kv-held', f'keys and values of {size:,} B in a full store of 64 MiB, to memcached', f'held-verbena:{size}',
          f'held-memcached:{size}', '% of it', None, True) for size in HELD_SIZES),
    *(Row('kv-held', f'resident memory of a server full of values of {size:,} B, to memcached',
          f'held-verbena:{size}', f'held-memcached:{size}', 'MiB', None) for size in HELD_SIZES),
)

# What a unit is of a figure, and the factor.
UNITS = {'ns': ('ns', 1), 'M/s': ('per_s', 1e-6), 'GB/s': ('bytes_per_s', 1e-9), 'us': ('wake_ns', 1e-3),
         '%': ('idle_percent', 1), 'B': ('overhead_bytes', 1), 'ns a poll': ('median_ns', 1), 'ms': ('ms', 1),
         'join ms': ('join_ms', 1), 'KiB a peer': ('kib_each_peer', 1), '% of it': ('held_percent', 1),
         'MiB': ('resident_kib', 1 / 1024)}

# Curves: file, title, and what is drawn; by bytes of an operation.
SIZES = tuple(8 << shift for shift in range(0, 16, 2)) + (MIB,)
LEAST_BYTES = {'memcpy': 2048}  # Below, it is the clock that takes the time.
MOST_BYTES = {'message': 16 << 10}
CURVES = (
    ('write', 'Write seen by a polling peer, one way', {'Verbena': 'pingpong', 'UCX ucp_put_lat': 'ucp_put_lat'}),
    ('message', 'Message, one way',
     {'Verbena': 'message', 'UCX ucp_am_lat': 'ucp_am_lat', 'libfabric shm': 'fi_pingpong'}),
    ('read', 'Blocking read', {'Verbena': 'read', 'UCX ucp_get': 'ucp_get', 'memcpy': 'memcpy'}),
)
# Of the mesh: file, title, and the unit of UNITS; by number of processes.
PROCESSES = (2, 4, 8, 16, 32, 64)
MESH_CURVES = (
    ('mesh-join', 'Time until all processes of a mesh have joined', 'join ms'),
    ('mesh-memory', 'Memory of each process of a mesh, for each peer', 'KiB a peer'),
)


def plan():
    """Group to its figures. Those of the curves that no row measures come behind, a group for each size; and one for
    the curves of the mesh."""
    groups = {'slices': []}
    for row in ROWS:
        for name in (row.ours, *(row.peer if isinstance(row.peer, tuple) else (row.peer,))):
            if isinstance(name, str) and (name := name.split('/')[0]) not in groups.setdefault(row.group, []):
                groups[row.group].append(name)
    measured = {name for names in groups.values() for name in names}
    for size in SIZES:
        names = [f'{kind}:{size}' for _, _, curves in CURVES for kind in curves.values()
                 if LEAST_BYTES.get(kind, 0) <= size <= MOST_BYTES.get(kind, size) and f'{kind}:{size}' not in measured]
        if names:
            groups[f'{size}-bytes'] = names
    groups['mesh-processes'] = [f'mesh-join:{processes}' for processes in PROCESSES]
    return groups


def cpus(allowed, sys_cpus=pathlib.Path('/sys/devices/system/cpu')):
    """One cpu of each core of those allowed: hyper-threads of one core would share its caches."""
    chosen, taken = [], set()
    for cpu in sorted(allowed):
        siblings = sys_cpus / f'cpu{cpu}/topology/thread_siblings_list'
        core = siblings.read_text(encoding='ascii').strip() if siblings.exists() else str(cpu)
        if core not in taken:
            taken.add(core)
            chosen.append(cpu)
    return chosen


def two_cpus(allowed, sys_cpus=pathlib.Path('/sys/devices/system/cpu')):
    """The words of --cpus. Threads of one core where there is no second: a figure with a note instead of none."""
    found = cpus(allowed, sys_cpus)
    if len(found) == 1 and len(allowed) > 1:
        return [*sorted(allowed)[:2], 'siblings']
    return found[:2]


def normal(value):
    """As peers.py prints, of verbena-perf's JSON too: means, as the peers' tools say nothing else of all of them."""
    if 'ops_per_s' in value:
        # Of verbena-kv bench and peer_client: medians for an operation. Means would tell which of the two needs both
        # cpus while something else runs.
        both = [value[kind] for kind in ('get', 'put') if kind in value]
        latency = max(both, key=lambda each: each['count']) if both else value
        ns = latency['p50_ns']
        return {'ns': ns, 'per_s': 1e9 / ns if ns else None, 'bytes_per_s': latency.get('bytes_per_s'),
                'overhead_bytes': value.get('overhead_bytes')}
    if 'woken' in value:
        # What silence adds to the median round trip. The receiver that idles is the server's process.
        woken, awake = (value[run]['latency']['median_ns'] for run in ('woken', 'awake'))
        return {'wake_ns': 2 * (woken - awake), 'idle_percent': value['idle']['server_percent']}
    if 'operations_per_s' not in value:
        return value
    latency = value['latency'] or {}
    ways = 2 if latency.get('one_way') else 1
    per_s = value['operations_per_s']
    mine = {'ns': 1e9 / per_s / ways if per_s else None, 'per_s': per_s, 'bytes_per_s': value['bytes_per_s'],
            'wake_ns': latency.get('median_ns'), 'median_ns': latency.get('median_ns')}
    if 'join_seconds' in value:
        mine |= {'join_ms': 1e3 * value['join_seconds'],
                 'kib_each_peer': value['memory_bytes'] / 1024 / (value['processes'] - 1)}
    return mine


class Figures:
    def __init__(self, noted):
        self.noted = noted

    def values(self, name, unit):
        """Round by round; None where it is missing."""
        key, factor = UNITS[unit]
        name, *path = name.split('/')
        found = []
        for value in self.noted.get(name, []):
            if path:
                for step in path:
                    value = value and value.get(step)
            else:
                value = normal(value).get(key)
            found.append(value and value * factor)
        return found

    def peers(self, row, rounds):
        """What a row is measured against, in each of so many rounds."""
        if isinstance(row.peer, float):
            return [row.peer] * rounds
        if isinstance(row.peer, str):
            return self.values(row.peer, row.unit)
        # No better of several while one of them is missing: it could be that one.
        best = max if row.more else min
        return [None if None in each else best(each)
                for each in zip(*(self.values(name, row.unit) for name in row.peer))]

    def missing(self):
        """Figure to the reasons that it is missing in some round."""
        reasons = {}
        for name, values in self.noted.items():
            for value in values:
                if isinstance(value, dict) and 'missing' in value:
                    reasons.setdefault(name, []).append(value['missing'])
        return reasons


def rows(figures):
    """Of each row what --json has, and the ratios of its rounds."""
    for row in ROWS:
        ours = figures.values(row.ours, row.unit)
        peer = figures.peers(row, len(ours))
        found = ratios(ours, peer)
        middle = median(found)
        yield {'name': row.name, 'ours': median(ours), 'peer': median(peer), 'ratio': middle, 'target': row.target,
               'met': met(middle, row.target, row.more), 'unit': row.unit, 'bound': '>=' if row.more else '<=',
               'ratios': found, 'rounds': len(found)}, row


def said(*command):
    """The first line that a command prints; None when it cannot."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, errors='replace', timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def system():
    try:
        release = pathlib.Path('/etc/os-release').read_text(encoding='utf-8')
    except OSError:
        return None
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', release, re.MULTILINE)
    return found[1] if found else None


def environment(figures):
    """Pairs of a name and a text: the machine, as verbena-perf sees it, and whose figures these are."""
    ours = next((value for values in figures.noted.values() for value in values
                 if isinstance(value, dict) and 'environment' in value), {})
    ucx = [value for values in figures.noted.values() for value in values
           if isinstance(value, dict) and 'transport' in value]
    lanes = sorted({lane for value in ucx for lane in value['transport'].split(', ') if lane})
    pairs = {
        'date': time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime()),
        'system': system(),
        'verbena': said('git', 'describe', '--always', '--dirty'),
        'UCX': f"{ucx[0]['version']}, over {', '.join(lanes) or 'what UCX_TLS=posix allows'}" if ucx else None,
        'libfabric': said('fi_info', '--version'),
        'Redis': said('redis-server', '--version'),
        'memcached': said('memcached', '-V'),
        'Open MPI': next((value['mpi'] for values in figures.noted.values() for value in values
                          if isinstance(value, dict) and 'mpi' in value), None),
        'load average at the end': ' '.join(f'{load:.2f}' for load in os.getloadavg()),
        **ours.get('environment', {}),
    }
    for note in ('cpus', 'rounds', 'moved', 'broken'):
        if note in figures.noted:
            pairs[note] = figures.noted[note][-1]
    return {name: text for name, text in pairs.items() if text is not None}


def markdown(table, figures, drawn, states=None):
    text = ['# The soft NIC beside UCX and libfabric, the store beside Redis and memcached', '',
            'Written by `bench/compare.sh`; what each row means is in [README.md](README.md). Medians of interleaved',
            'rounds; the ratio is the median of the rounds\' ratios, with the range behind it. *Better* says which',
            'figures and ratios are better. Absolute figures move with the machine: compare ratios.', '',
            '| what | better | ours | peer | unit | ratio | range | rounds | target | met |',
            '|---|---|--:|--:|---|--:|---|--:|---|---|']
    for values, row in table:
        found = values['ratios']
        spread = f'{min(found):.3f} to {max(found):.3f}' if found else '-'
        middle = f"{values['ratio']:.3f}" if found else '-'
        text.append(f"| {row.name} | {better(row.more)} | {number(values['ours'])} | {number(values['peer'])} "
                    f"| {row.unit} | {middle} | {spread} | {len(found)} | {bound(row.target, row.more)} "
                    f"| {verdict(values['ratio'], row.target, row.more)} |")
    if states:
        text += ['', '## Below a microsecond', '',
                 'In slices of 300 us, by state of the machine: what a bare ring of cache lines takes there and back',
                 'around a slice ([slices.md](slices.md)). Medians, and where half of the ratios are.', '',
                 slices_table.targets_table(states)]
    missing = figures.missing()
    if missing:
        text += ['', '## Missing', '']
        text += [f'- `{name}` in {len(reasons)} of {len(figures.noted[name])} rounds: {reasons[0]}'
                 for name, reasons in missing.items()]
    if 'skipped' in figures.noted:
        text += ['', '## Left out', ''] + [f'- group {skipped}' for skipped in figures.noted['skipped']]
    if drawn:
        text += ['', '## Plots', '', 'Medians of the rounds, with their ranges.', '']
        text += [f'![{title}]({name})\n' for name, title in drawn]
    text += ['', '## Environment', ''] + [f'- {name}: {value}' for name, value in environment(figures).items()]
    return '\n'.join(text).replace('\n\n\n', '\n\n') + '\n'


def draw(table, figures, out):
    """The plots, with what they came from; the files written, with their titles."""
    told = environment(figures)
    where = ', '.join([str(told[name]) for name in ('cpu', 'kernel', 'date') if name in told])
    made = []
    for name, title, kinds in CURVES:
        curves = {label: [(size, found) for size in SIZES
                          if (found := [v for v in figures.values(f'{kind}:{size}', 'ns') if v is not None])]
                  for label, kind in kinds.items()}
        made.append((name, title, plots.by_size(title, where, curves)))
    for name, title, unit in MESH_CURVES:
        points = [(processes, found) for processes in PROCESSES
                  if (found := [v for v in figures.values(f'mesh-join:{processes}', unit) if v is not None])]
        made.append((name, title, plots.lines(title, where, {'Verbena': points}, 'processes', 2, str, unit)))
    bars = [(f'{row.name} ({bound(row.target, row.more)})' if row.target else row.name, values['ratios'], row.target,
             row.more) for values, row in table if values['ratios']]
    title = 'Ours to the peer, a point a round'
    made.insert(0, ('ratios', title, plots.ratios(title, where, bars)))
    return [(f'{name}.svg', title) for name, title, plot in made if plots.write(plot, out / f'{name}.svg')]


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--plan', action='store_true')
    parser.add_argument('--groups', type=lambda text: text.split(','))
    parser.add_argument('--cpus', action='store_true')
    parser.add_argument('figures', nargs='?')
    parser.add_argument('--out', type=pathlib.Path)
    parser.add_argument('--json', type=pathlib.Path)
    parser.add_argument('--slices', nargs='+', default=[])
    options = parser.parse_args(arguments)
    if options.plan:
        groups = plan()
        for group in options.groups or groups:
            if group not in groups:
                parser.error(f"no group {group}; there are {', '.join(groups)}")
            print(group, *groups[group])
        return 0
    if options.cpus:
        found = two_cpus(os.sched_getaffinity(0))
        print(*found)
        return 0 if len(found) >= 2 else 1
    if not options.figures or not options.out:
        parser.error('takes FIGURES and --out DIR, or --plan or --cpus')
    figures = Figures(read(options.figures))
    table = list(rows(figures))
    states, _, slices = slices_table.read(options.slices)
    if slices and not any(variant == slices_table.PEER for found in states.values() for variant, _ in found):
        figures.noted['slices'] = [{'missing': 'UCX is not installed (apt-get install libucx-dev)'}]
    options.out.mkdir(parents=True, exist_ok=True)
    lacking = plots.missing()
    if lacking:
        figures.noted['plots'] = [{'missing': lacking}]
    drawn = [] if lacking else draw(table, figures, options.out)
    text = markdown(table, figures, drawn, states if slices else None)
    (options.out / 'compare.md').write_text(text, encoding='utf-8')
    print(text)
    if options.json:
        told = [values for values, _ in table] + list(slices_table.targets(states))
        options.json.write_text(json.dumps(told, indent=2) + '\n', encoding='utf-8')
    return MISSING_STATUS if figures.missing() else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
