#!/usr/bin/env python3
"""The benchmarks' readers and table makers: what peers' tools print, whole, cut off and broken, and compare.sh itself
between stand-ins for every program it runs. No figure is asserted that a machine could change."""

import contextlib
import io
import json
import os
import pathlib
import random
import stat
import sys
import tempfile
import xml.etree.ElementTree

from report import Report, run

UCX = '''[1795313547.659790] [vm:5379 :0]     ucp_context.c:1849 UCX  INFO  Version 1.13.1 (loaded from /lib/libucp.so)
iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
[1795313547.667900] [vm:5379 :0]      ucp_worker.c:1763 UCX  INFO    ep_cfg[0]: am(posix/memory)
200000,0.110,0.113,0.113,67.43,67.43,8837649,8837649
'''
FI = '''bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
8       100k    =100k    1.5m        0.07s     24.49       0.33       3.06
'''

# Stand-ins. The peers' tools: a server that listens until a client came, a client that prints what is in its variable.
TOOL = '''#!{python} -SE
import os, socket, sys
words = sys.argv[1:]
port = int(words[words.index('{port_option}' if '127.0.0.1' not in words else '{client_port}') + 1])
if '127.0.0.1' in words:
    socket.create_connection(('127.0.0.1', port)).close()
    sys.stdout.write(eval(os.environ['{variable}'])(words))
    sys.exit(int(os.environ.get('{variable}_STATUS', 0)))
with socket.create_server(('0.0.0.0', port)) as server:
    server.accept()
'''
OURS = '''#!/bin/sh
[ "$STAND_IN_OURS" = fails ] && exit 3
# In the second round.
if [ "$1$STAND_IN_OURS" = message-bwfailslate ]; then
  if rm moved 2>/dev/null; then exit 3; else touch moved; fi
fi
if [ "$1$STAND_IN_OURS" = pa-readunprivileged ]; then echo 'rejected: no "CAP_SYS_ADMIN"' >&2; exit 3; fi
one_way=false ns=50
case $1 in line | pingpong | message) one_way=true ;; esac
# Each second time a cache-line transfer takes twice as long.
if [ "$1$STAND_IN_OURS" = linemoves ]; then if rm moved 2>/dev/null; then ns=100; else touch moved; fi; fi
latency='{"one_way":'$one_way',"median_ns":'$ns'}'
echo '{"operations_per_s":1e7,"bytes_per_s":8e7,"latency":'$latency',"server_percent":0.5,'\
  '"environment":{"cpu":"a stand-in"}}'
'''
# A store: serves until it is told to end, with a port in a file; its benches take 100 ns, or 500 by message.
KV = """#!/bin/sh
[ "$1" = serve ] || {
  echo "$*" >>"$STAND_IN_KV_LOG"
  [ "$STAND_IN_KV" != fails ] || exit 3
  ns=100; case "$*" in *message*) ns=500 ;; esac
  echo '{"ops_per_s":1e7,"get":{"count":1,"p50_ns":'$ns',"bytes_per_s":5e7},"put":{"count":0,"p50_ns":0},'\
    '"memcpy":{"get_bytes_per_s":1e8,"put_bytes_per_s":2e8},"overhead_bytes":32}'
  exit 0
}
while [ "$1" != --port-file ]; do shift; done
echo "verbena-kv: serving; poller cores: $(set -- $(python3 "$STAND_IN_CPUS" --cpus); echo ${STAND_IN_CORE:-$2})"
echo 7470 >"$2"
trap 'exit 0' TERM
while :; do sleep 0.01; done
"""
# The driver of slices, and what builds its libraries. Each second slice is twice as long, and UCX's are half of ours.
SLICES = """#!{python} -SE
import json, os, sys
words = sys.argv[1:]
if os.environ.get('STAND_IN_OURS') == 'fails-slices':
    sys.exit(3)
for i in range(int(words[words.index('--rotations') + 1])):
    for variant in [word.split('=')[0] for word in words if '=' in word] + ['bare']:
        for operation in ('message 8 B', 'read 8 B', 'write 8 B seen', 'PUT 64 B'):
            ns = {{'now': 100, 'ucx': 50, 'bare': 80}}[variant] * (1 + i % 2)
            print(json.dumps({{'rotation': i, 'variant': variant, 'operation': operation, 'ns': ns, 'before': 90,
                               'after': 110}}))
"""
COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
touch "$2"
"""
PKG_CONFIG = """#!/bin/sh
[ "$*" != '--exists ucx' ] || [ -z "$STAND_IN_NO_UCX" ]
"""
# Listens on a Unix socket until it is ended.
SOCKET_SERVER = """#!{python} -SE
import os, signal, socket, sys
words = sys.argv[1:]
if os.environ.get('STAND_IN_SERVER') == os.path.basename(sys.argv[0]):
    sys.exit('no such option')
server = socket.socket(socket.AF_UNIX)
server.bind(words[words.index('{option}') + 1])
server.listen()
signal.pause()
"""
# One at a time 20 us, of memcached 10; by 32, 2 M/s. Full, memcached holds half of what ours does.
PEER_CLIENT = """#!/bin/sh
if [ "$3" = held ]; then
  echo "$*" >>"$STAND_IN_KV_LOG"
  [ "$STAND_IN_CLIENT" != "$1" ] || { echo 'peer_client: it said "ERROR"' >&2; exit 3; }
  held=80; [ "$1" = verbena ] || held=40
  echo '{"items":9,"held_percent":'$held'}'
  exit 0
fi
ns=20000
[ "$1" = redis ] || ns=10000
[ "$7" = 1 ] || ns=500
[ "$STAND_IN_CLIENT" != "$1" ] || { echo 'peer_client: it said "ERROR"' >&2; exit 3; }
echo "$*" >>"$STAND_IN_KV_LOG"
echo '{"ops_per_s":1,"p50_ns":'$ns'}'
"""
# As the tools would print 100 ns, for the size and the count that they are asked for.
UCX_GOOD = ('''lambda w: 'iterations,avg_lat,overall_lat,overall_bw,overall_mr\\n%s,0.1,0.100,%.2f,10000000\\n' % '''
            '''(w[w.index('-n') + 1], int(w[w.index('-s') + 1]) * 1e7 / 2**20)''')
FI_GOOD = ('''lambda w: 'bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\\n'''
           '''8       400k    =400k    6m          0.08s     80.00       0.10      10.00\\n\'''')


# Draws into the directory that it is given; prints the files that it wrote.
DRAW = '''import pathlib, sys
sys.path.insert(0, sys.argv[1])
import plots
out = pathlib.Path(sys.argv[2])
curves = {'ours, $1 to $2': [(8, [3.0, 1.0, 2.0]), (1 << 20, [4e6])], 'a < b': [(8, [7.0])], 'nothing': []}
bars = [('a row of 5 %', [0.5, 1.5], 1.0, False), ('a faster row', [2.0], None, True)]
for name, plot in (('lines', plots.by_size('Title & co', 'a machine', curves)),
                   ('ratios', plots.ratios('Bars', '', bars)),
                   ('none', plots.by_number('', '', {'nothing': []}, 'keys')), ('no-bars', plots.ratios('', '', []))):
    if plots.write(plot, out / f'{name}.svg'):
        print(name)
'''


def refuses(peers, tool, text, size, count):
    try:
        tool(text, size, count)
    except peers.Unreadable:
        return True
    return False


def check_peers(report, peers):
    figure = peers.ucx_perftest(UCX, 8, 200000)
    report.check(abs(figure['ns'] - 113.15) < 0.1, f'ucx_perftest: reads {figure}')
    report.check(figure['transport'] == 'am(posix/memory)' and figure['version'] == '1.13.1',
                 f'ucx_perftest: reads {figure}')
    figure = peers.fi_pingpong(FI, 8, 100000)
    report.check(abs(figure['ns'] - 326.7) < 0.1, f'fi_pingpong: reads {figure}')
    for size, text in ((8, '8'), (1500, '1.4k'), (4096, '4k'), (10240, '10k'), (1 << 20, '1m')):
        report.check(peers.fi_size(size) == text, f'fi_pingpong: {size} is {peers.fi_size(size)}')

    for name, tool, text, count in (('ucx_perftest', peers.ucx_perftest, UCX, 200000),
                                    ('fi_pingpong', peers.fi_pingpong, FI, 100000)):
        for length in range(len(text)):
            report.check(refuses(peers, tool, text[:length], 8, count), f'{name}: takes its first {length} characters')
        for number in (0, count - 1, count * 2):
            report.check(refuses(peers, tool, text, 8, number), f'{name}: takes {count} iterations for {number}')
        for size in (7, 16, 1 << 20):
            report.check(refuses(peers, tool, text, size, count), f'{name}: takes 8 B for {size}')
        last = text.splitlines()[-1]
        report.check(refuses(peers, tool, text + last + '\n', 8, count), f'{name}: takes two results of one run')
        report.check(refuses(peers, tool, text.replace('24.49', '0.00').replace('8837649', '0'), 8, count),
                     f'{name}: takes nothing a second')
        dice = random.Random(1)
        for _ in range(200):
            garbage = ''.join(chr(dice.randrange(32, 256)) if dice.random() < 0.9 else '\n' for _ in range(200))
            report.check(refuses(peers, tool, garbage, 8, count), f'{name}: takes {garbage!r}')
    for wrong in ('am(cma/memory)', 'am(posix/memory cma/memory)', 'rma(tcp/eth0)',
                  'am(posix/memory) rma(sysv/memory)'):
        report.check(refuses(peers, peers.ucx_perftest, UCX.replace('am(posix/memory)', wrong), 8, 200000),
                     f'ucx_perftest: takes a run over {wrong}')
    for wrong in ('0.213', '0.1130.113', '-0.113', 'nan', 'inf', ''):
        report.check(refuses(peers, peers.ucx_perftest, UCX.replace('0.113,67.43', f'{wrong},67.43'), 8, 200000),
                     f'ucx_perftest: takes {wrong} for a latency')
    for wrong in ('+1k     ', '-1k     ', '=99k    ', ''):
        report.check(refuses(peers, peers.fi_pingpong, FI.replace('=100k   ', wrong), 8, 100000),
                     f'fi_pingpong: takes {wrong} acknowledged of 100k')
    for wrong in ('0.55', '0.', 'nan', ''):
        report.check(refuses(peers, peers.fi_pingpong, FI.replace('0.33', wrong), 8, 100000),
                     f'fi_pingpong: takes {wrong} for a latency')


def check_table(report, compare):
    def ours(per_s):
        return {'operations_per_s': per_s, 'bytes_per_s': 8 * per_s,
                'latency': {'one_way': True, 'median_ns': 5e8 / per_s}}

    report.check(compare.normal(ours(1e7))['ns'] == 50, 'half of a round trip is not one way')
    report.check(compare.normal({**ours(1e7), 'latency': None})['ns'] == 100, 'a stream has no ways')
    # The median of the rounds' ratios, not the ratio of medians; a round that lacks its peer does not shift the next.
    figures = compare.Figures({
        'mesh-ping-pong:64': [ours(1e7), ours(2e7), ours(0.5e7)],
        'ucp_am_lat:64': [{'ns': 100, 'per_s': 1e7, 'bytes_per_s': 8e7}, {'missing': 'why'},
                          {'ns': 400, 'per_s': 1e7, 'bytes_per_s': 8e7}],
    })
    found = {row.peer: values for values, row in compare.rows(figures) if row.group[:3] != 'kv-'}
    report.check(found['ucp_am_lat:64']['ratios'] == [0.5, 0.25], f'ratios are {found["ucp_am_lat:64"]["ratios"]}')
    report.check(found['ucp_am_lat:64']['met'] is True, 'a ratio of 0.375 does not meet at most 1')
    report.check(found['ucp_am_bw:8']['ratio'] is None and found['ucp_am_bw:8']['met'] is False,
                 'what was not measured has met its target')
    report.check(found['fi_pingpong:8']['met'] is None, 'a row without a target has met it')
    report.check(list(figures.missing()) == ['ucp_am_lat:64'], f'missing are {figures.missing()}')
    report.check('`ucp_am_lat:64` in 1 of 3 rounds: why' in compare.markdown(list(compare.rows(figures)), figures, []),
                 'the table does not say what is missing')
    text = compare.markdown(list(compare.rows(figures)), figures, [])
    better = [line.split(' | ')[1] for line in text.splitlines() if line.startswith('| ')]
    report.check(better == ['better', *('higher' if row.more else 'lower' for row in compare.ROWS)],
                 f'what is better is {better}')
    report.check([values['rounds'] for values, row in compare.rows(figures) if row.peer == 'ucp_am_lat:64'] == [2],
                 'a round that lacks its peer is counted')
    def after(median_ns):
        return {**ours(500), 'latency': {'one_way': True, 'median_ns': median_ns}, 'server_percent': 0.5}

    idle = {'woken': after(15500.0), 'awake': after(500.0), 'idle': after(17000.0)}
    wake = after(20000.0)
    figures = compare.Figures({'idle:8': [idle], 'wake:8': [wake], 'connections-1:8': [ours(4e6)],
                               'connections-64:8': [ours(3e6)]})
    found = [(values['ours'], values['ratio'], values['met'])
             for values, row in compare.rows(figures) if row.group in ('connections', 'idle')]
    report.check([tuple(map(lambda v: v if v is None else round(v, 3), each)) for each in found] ==
                 [(3, 0.75, True), (30, 1.5, False), (30, 1.5, None), (0.5, 0.5, True)], f'rows are {found}')
    names = [row.name for row in compare.ROWS]
    report.check(len(set(names)) == len(names), 'two rows have one name')


def check_store_rows(report, compare):
    """Rows with several peers, and with one that is a part of our own figure."""
    def ours(ns, kind='get'):
        other = 'put' if kind == 'get' else 'get'
        return {'ops_per_s': 1e9 / ns, kind: {'count': 9, 'p50_ns': ns, 'bytes_per_s': 4e9},
                other: {'count': 0, 'p50_ns': 0, 'bytes_per_s': 0}, 'overhead_bytes': 48,
                'memcpy': {'get_bytes_per_s': 8e9, 'put_bytes_per_s': 5e9}}

    def peer(ns):
        return {'ops_per_s': 1e9 / ns, 'p50_ns': ns}

    mib = compare.MIB
    figures = compare.Figures({
        'kv-known:64': [ours(100)] * 3, 'kv-put:64': [ours(300, 'put')],
        'redis-get:64': [peer(20000), peer(40000), peer(1)], 'memcached-get:64': [peer(40000), peer(10000),
                                                                                  {'missing': 'why'}],
        'kv-gets-one-sided:64': [ours(50)], 'redis-get32:64': [peer(1000)], 'redis-mget32:64': [peer(400)],
        'memcached-get32:64': [peer(500)], f'kv-get-one:{mib}': [ours(9)], f'kv-put-one:{mib}': [ours(9, 'put')],
        f'kv-get-many:{mib}': [{**ours(9), 'memcpy': None}], 'kv-memory:64': [ours(9)],
    })
    found = {row.ours: values for values, row in compare.rows(figures)}
    report.check(found['kv-known:64']['ratios'] == [0.005, 0.01], f'to the better: {found["kv-known:64"]}')
    report.check(found['kv-known:64']['met'] is True, 'a hundred times faster is not met')
    report.check(found['kv-put:64']['ratio'] is None, 'without a peer there is a ratio')
    report.check([round(each, 3) for each in found['kv-gets-one-sided:64']['ratios']] == [8],
                 f'to the best of three: {found["kv-gets-one-sided:64"]}')
    report.check(found[f'kv-get-one:{mib}']['ratios'] == [0.5] and found[f'kv-put-one:{mib}']['ratios'] == [0.8],
                 f'to memcpy: {found[f"kv-get-one:{mib}"]}, {found[f"kv-put-one:{mib}"]}')
    report.check(found[f'kv-get-many:{mib}']['ratio'] is None, 'to no memcpy there is a ratio')
    report.check(found['kv-memory:64']['ratios'] == [0.75], f'memory: {found["kv-memory:64"]}')
    report.check(not any('/' in name for names in compare.plan().values() for name in names),
                 'a part of a figure is measured')


def check_keys(report, keys_table):
    def figure(ns):
        return {'ops_per_s': 1e9 / ns, 'p50_ns': ns}

    noted = {f'{operation}:{keys}': [figure(ns), figure(ns)] for operation in keys_table.OPERATIONS
             if operation != 'chase' for keys, ns in ((1000, 100), (10**7, 300))}
    noted |= {'chase:1000': [{'ns': 10}], 'chase:10000000': [{'ns': 60}], 'filling:1000': [figure(1)],
              'put:3000': [figure(1)], 'rounds': [2]}
    figures = keys_table.Figures(noted)
    rows = keys_table.table(keys_table.costs(figures))
    report.check([row['keys'] for row in rows] == [1000, 10**7], f'rows of what is not whole: {rows}')
    report.check(rows[1]['misses']['put'] == 4 and rows[0]['misses']['put'] is None, f'misses are {rows}')
    text = keys_table.markdown(rows, figures, False)
    report.check('| 10,000,000 | 300 (4.0) |' in text and '\n| *better* | lower |' in text,
                 f'the table of keys is {text}')


def check_slices(report, slices_table):
    """Each state of the machine has a table of its own; a slice in which it changed counts nowhere."""
    def slices(rotations, variant, operation, ns, before, after=None):
        return ''.join(json.dumps({'rotation': i, 'variant': variant, 'operation': operation, 'ns': ns + i % 3,
                                   'before': before, 'after': after or before}) + '\n' for i in range(rotations))

    lines = (slices(9, 'now', 'write 8 B seen', 100, 40) + slices(9, 'ucx', 'write 8 B seen', 50, 40)
             + slices(9, 'bare', 'two lines', 80, 40) + slices(9, 'bare', 'one line', 90, 40)
             + slices(9, 'now', 'write 8 B seen', 999, 40, 150) + slices(3, 'now', 'read 8 B', 30, 500))
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()) as printed:
        path = pathlib.Path(name) / 'slices'
        path.write_text(lines)
        slices_table.main([path])
    text = printed.getvalue()
    report.check('| write 8 B seen | 101 | 51.00 | 1.98 | 1.25 |' in text, f'the table of slices is {text}')
    report.check('48 slices, 9 of them left out' in text and 'bare: two lines, the floor | 81.00' in text
                 and 'Ring 75 to 300 ns: 0 slices' in text and 'Ring over 300 ns: 3 slices' in text,
                 f'the states are {text}')

    # The targets: by state, of what was seen there. One way of the ring is half of there and back, around the slice.
    def of(operation, ns, ring):
        return {(variant, operation): {i: slices_table.Slice(each, ring / 2) for i in range(count)}
                for variant, each, count in (('now', ns, 9), ('ucx', 100, 9), ('bare', 50, 9))}

    shared, middle, slow = (name for name, _ in slices_table.STATES)
    states = {shared: of('message 8 B', 80, 40), middle: of('message 8 B', 80, 100) | of('PUT 64 B', 200, 100),
              slow: of('PUT 64 B', 200, 500)}
    found = {row['name']: (row['ratio'], row['target'], row['met']) for row in slices_table.targets(states)}
    report.check(found == {
        f'message 8 B, to UCX (ring {shared})': (0.8, 0.95, True),
        f'message 8 B, to UCX (ring {middle})': (0.8, 0.7, False),
        f'PUT 64 B, to one way of a bare ring (ring {middle})': (4, 5.5, True),
        f'PUT 64 B, to one way of a bare ring (ring {slow})': (0.8, None, None)}, f'the targets are {found}')


def check_printed(report, kv_table, softroce_table):
    """The tables that are only printed say of each row which figures are better."""
    each = {'p50_ns': 100, 'p99_ns': 200, 'p50_lines': 2.5, 'bytes_per_s': 4e9}
    copy = {'cached_bytes_per_s': 8e9, 'memory_bytes_per_s': 5e9}
    store = {'get': each, 'put': each, 'memcpy': copy, 'line': {'one_way_ns': 40}, 'ops_per_s': 1e7, 'p50_ns': 500}
    kv = {name: {**store, 'environment': {'cpu': 'any'}} for name in (
        'get', 'put', 'get32', 'put32', 'get1m', 'put1m', 'memcached_get', 'memcached_set')}
    kv |= {'start_ms': 50, 'peer_loss_ms': 20, 'idle_server_percent': 1, 'idle_client_percent': 1}
    ours = {'latency': {'median_ns': 2000}, 'bytes_per_s': 1e9, 'nic': 'rxe0', 'path': 'any', 'environment': {}}
    softroce = {name: ours for name in ('read', 'pingpong', 'write', 'message', 'write-bw')}
    softroce |= {name: [0, 0, 0, 8, 2] for name in ('ib_read_lat', 'ib_write_lat', 'ib_send_lat', 'ib_write_bw',
                                                    'ib_write_bw_uc')}
    softroce |= {'bare_write': {'median_ns': 1000}, 'uchan': 900}
    for table, figures, lower, higher in ((kv_table, kv, 12, 14), (softroce_table, softroce, 4, 2)):
        with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()) as printed:
            path = pathlib.Path(name) / 'figures'
            path.write_text(''.join(f'{name} {json.dumps(value)}\n' for name, value in figures.items()))
            table.main(path)
        text = printed.getvalue()
        found = tuple(sum(f' {word} ' in line for line in text.splitlines()) for word in ('lower', 'higher'))
        report.check(found == (lower, higher) and ' better ' in text, f'{table.__name__} prints {found}:\n{text}')


def check_plots(report, root):
    # Debian's matplotlib is for Debian's interpreter.
    found = [python for python in (sys.executable, '/usr/bin/python3')
             if pathlib.Path(python).exists() and run([python, '-c', 'import matplotlib']).returncode == 0]
    if not found:
        print('bench: no plot is drawn: no interpreter has matplotlib (Debian, Fedora: python3-matplotlib)')
        return
    made = []
    with tempfile.TemporaryDirectory() as name:
        # A user's settings change nothing, nor does the order of a set.
        (pathlib.Path(name) / 'matplotlibrc').write_text('lines.linewidth: 9\naxes.facecolor: black\n')
        for seed, settings in (('1', {}), ('2', {'MATPLOTLIBRC': name})):
            out = pathlib.Path(name) / seed
            out.mkdir()
            done = run([found[0], '-c', DRAW, root / 'bench', out],
                       env={**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONDONTWRITEBYTECODE': '1', **settings})
            report.check(done.returncode == 0 and done.stdout.split()[-2:] == ['lines', 'ratios'],
                         f'the plots: ended with {done.returncode}:\n{done.stdout}')
            made.append({path.name: path.read_text() for path in out.iterdir()})
    report.check(sorted(made[0]) == ['lines.svg', 'ratios.svg'], f'drawn are {sorted(made[0])}')
    report.check(made[0] == made[1], 'the same figures make two files')
    for name, words in (('lines.svg', ('Title & co', 'a machine', 'ours, $1 to $2', 'a < b', 'bytes', '1 Mi',
                                       'ns, lower is better')),
                        ('ratios.svg', ('Bars', 'a row of 5 %', 'a faster row', 'target', 'median, lower is better',
                                        'median, higher is better'))):
        text = made[0].get(name, '<svg/>')
        texts = [''.join(each.itertext()) for each in xml.etree.ElementTree.fromstring(text).iter(
            '{http://www.w3.org/2000/svg}text')]
        report.check(set(words) <= set(texts), f'{name} has the texts {texts}')
        report.check('nothing' not in texts and '<dc:date>' not in text, f'{name} has what it should not')
        report.check('fill: #ffffff' in text[:text.find('axes_1')], f'{name} has no white page for dark viewers')


def check_cpus(report, compare):
    with tempfile.TemporaryDirectory() as name:
        for cpu, siblings in enumerate(('0-1', '0-1', '2-3', '2-3')):
            topology = pathlib.Path(name) / f'cpu{cpu}/topology'
            topology.mkdir(parents=True)
            (topology / 'thread_siblings_list').write_text(siblings + '\n')
        for allowed, expected in (({0, 1, 2, 3}, [0, 2]), ({1, 2}, [1, 2]), ({2, 3}, [2, 3, 'siblings']), ({3}, [3])):
            found = compare.two_cpus(allowed, pathlib.Path(name))
            report.check(found == expected, f'of the cpus {allowed}, {found} are chosen')


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def check_script(report, root):
    if len(os.sched_getaffinity(0)) < 2:
        print('bench: compare.sh is not run: it needs two cpus')
        return
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        executable(work / 'build/src/programs/verbena-perf', OURS.replace('moved', str(work / 'moved')))
        (work / 'build/build.ninja').write_text(
            'build src/programs/verbena-perf src/programs/verbena-kv bench/peer_client bench/slices/slices '
            'src/libverbena.a: phony\n')
        executable(work / 'build/bench/slices/slices', SLICES.format(python=sys.executable))
        executable(work / 'bin/g++', COMPILER)
        executable(work / 'bin/pkg-config', PKG_CONFIG)
        executable(work / 'build/src/programs/verbena-kv', KV)
        executable(work / 'build/bench/peer_client', PEER_CLIENT)
        for name, option in (('redis-server', '--unixsocket'), ('memcached', '-s')):
            executable(work / f'bin/{name}', SOCKET_SERVER.format(python=sys.executable, option=option))
        log = work / 'log'
        executable(work / 'bin/ucx_perftest', TOOL.format(python=sys.executable, port_option='-p', client_port='-p',
                                                          variable='STAND_IN_UCX'))
        executable(work / 'bin/fi_pingpong', TOOL.format(python=sys.executable, port_option='-B', client_port='-P',
                                                         variable='STAND_IN_FI'))

        def compare(*options, **variables):
            environment = {**os.environ, 'PATH': f'{work / "bin"}:{os.environ["PATH"]}', 'STAND_IN_UCX': UCX_GOOD,
                           'STAND_IN_FI': FI_GOOD, 'STAND_IN_CPUS': str(root / 'bench/compare_table.py'),
                           'STAND_IN_KV_LOG': str(log), **variables}
            for stale in ('rows.json', 'out/compare.md', 'log'):
                (work / stale).unlink(missing_ok=True)
            done = run([root / 'bench/compare.sh', '--rounds', 1, '--build', work / 'build', '--no-packages', '--out',
                        work / 'out', '--json', 'rows.json', *options], cwd=work, env=environment)
            rows = work / 'rows.json'
            return done, json.loads(rows.read_text()) if rows.exists() else None

        done, rows = compare('--groups', 'message,rate')
        # Without matplotlib there are no plots, which is not what this is about.
        report.check(done.returncode in (0, 4) and rows is not None,
                     f'compare.sh ended with {done.returncode}:\n{done.stdout}')
        for row in rows or []:
            report.check({'name', 'ours', 'peer', 'ratio', 'target', 'met', 'unit'} <= row.keys(), f'a row is {row}')
        report.check([row['ratio'] for row in rows or []][:2] == [0.5, 1], f'wrong ratios: {rows}')
        report.check((work / 'out/compare.md').exists(), 'compare.sh wrote no compare.md')
        check_slices_script(report, compare)

        # A matplotlib that does not load, like none at all, costs only the plots.
        executable(work / 'broken/matplotlib/__init__.py', 'raise ImportError("it is broken")\n')
        done, rows = compare('--groups', 'message,rate', PYTHONPATH=str(work / 'broken'))
        report.check(done.returncode == 4 and [row['ratio'] for row in rows or []][:2] == [0.5, 1] and
                     '`plots` in 1 of 1 rounds: it is broken (apt-get install python3-matplotlib)' in done.stdout,
                     f'without matplotlib: ended with {done.returncode}:\n{done.stdout}')

        for what, variables in (('garbage', {'STAND_IN_UCX': 'lambda w: "Connection refused"'}),
                                ('half an output', {'STAND_IN_UCX': f'lambda w: ({UCX_GOOD})(w)[:-4]'}),
                                ('a failure', {'STAND_IN_UCX_STATUS': '7'})):
            done, rows = compare('--groups', 'message,rate', **variables)
            report.check(done.returncode == 4, f'{what} of ucx_perftest: ended with {done.returncode}:\n{done.stdout}')
            report.check(rows and rows[0]['ratio'] == 0.5 and rows[1]['ratio'] is None and rows[1]['met'] is False,
                         f'{what} of ucx_perftest: rows are {rows}')
            report.check('`ucp_am_bw:8` in 1 of 1 rounds' in done.stdout, f'{what} is not told:\n{done.stdout}')

        done, rows = compare('--groups', 'message', STAND_IN_OURS='moves')
        report.check(done.returncode == 4 and rows and rows[0]['ratio'] is None and
                     'moved: cache-line transfers in 12 attempts; 1 groups left out of a round' in done.stdout,
                     f'cache-line transfers that move: ended with {done.returncode}:\n{done.stdout}')
        done, rows = compare('--groups', 'message', STAND_IN_OURS='fails')
        report.check(done.returncode == 1 and rows is None,
                     f'a failure of ours: ended with {done.returncode}:\n{done.stdout}')
        done, rows = compare('--groups', 'rate', '--rounds', '2', STAND_IN_OURS='failslate')
        report.check(done.returncode == 1 and rows and [row['rounds'] for row in rows[:2]] == [0, 1] and
                     'broken: in round 2, by a failure of ours' in done.stdout,
                     f'a late failure of ours: ended with {done.returncode}:\n{done.stdout}')
        done, rows = compare('--groups', 'physical')
        report.check(done.returncode in (0, 4) and rows is not None and
                     [row['ratio'] for row in rows if 'physical' in row['name']] == [1, 1],
                     f'physical addresses: ended with {done.returncode}:\n{done.stdout}')
        for groups in ('physical', 'physical,message'):
            done, rows = compare('--groups', groups, STAND_IN_OURS='unprivileged')
            report.check(done.returncode in (0, 4) and rows is not None and
                         [row['ratio'] for row in rows if 'physical' in row['name']] == [None, None] and
                         (rows[0]['ratio'] is not None) == ('message' in groups) and
                         '- group physical: rejected: no CAP_SYS_ADMIN' in done.stdout,
                         f'without the privilege: ended with {done.returncode}:\n{done.stdout}')
        check_store(report, compare, log)
        for wrong in (['--rounds', '0'], ['--rounds'], ['--groups', 'none'], ['--nothing', '1'], ['more']):
            done, _ = compare(*wrong)
            report.check(done.returncode == 2, f'{wrong}: ended with {done.returncode}:\n{done.stdout}')


def check_slices_script(report, compare):
    done, rows = compare('--groups', 'slices', '--rounds', '2')
    found = [(row['name'].split(' (')[0], row['ratio'], row['slices']) for row in rows or [] if 'slices' in row]
    report.check(done.returncode in (0, 4) and found == [
        ('message 8 B, to UCX', 2, 80), ('read 8 B, to UCX', 2, 80), ('write 8 B seen, to UCX', 2, 80),
        ('write 8 B seen, to the best bare exchange', 1.25, 80), ('PUT 64 B, to one way of a bare ring', 3, 80)],
        f'slices: ended with {done.returncode}, {found}:\n{done.stdout}')
    done, rows = compare('--groups', 'slices', STAND_IN_NO_UCX='1')
    found = {row['name'].split(' (')[0]: row['met'] for row in rows or [] if 'slices' in row}
    report.check(done.returncode == 4 and '`slices` in 1 of 1 rounds: UCX is not installed' in done.stdout and
                 found.get('message 8 B, to UCX') is False and
                 found.get('write 8 B seen, to the best bare exchange') is True,
                 f'slices without UCX: ended with {done.returncode}, {found}:\n{done.stdout}')
    done, rows = compare('--groups', 'slices', STAND_IN_OURS='fails-slices')
    report.check(done.returncode == 1 and rows is None,
                 f'slices that fail: ended with {done.returncode}:\n{done.stdout}')


def check_store(report, compare, log):
    groups = 'kv-get,kv-put,kv-batch,kv-bulk,kv-trusted,kv-memory'
    done, rows = compare('--groups', groups)
    report.check(done.returncode in (0, 4) and rows is not None,
                 f'the store: ended with {done.returncode}:\n{done.stdout}')
    found = [row['ratio'] for row in rows or [] if row['name'].startswith(('GET', 'PUT', 'multi', 'memory'))]
    report.check(found == [0.01, 0.01, 0.05, 0.01, 5, 1, 5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.5],
                 f'the store: ratios are {found}')
    calls = [line.split() for line in log.read_text().splitlines()]
    benches = [words for words in calls if words[0] == 'bench']
    # Of small values and of large ones, and one that its own figure is measured of.
    report.check([words for words in benches if '--no-fill' not in words and '--no-erase' in words] ==
                 [['bench', '-p', '7470', '--value-size', size, '--rounds', '1', '--json', '--keys', keys, '--count',
                   '1', '--no-erase'] for size, keys in (('64', '100000'), ('1048576', '64'), ('1048576', '64'))],
                 f'the keys are stored by {benches}')
    peers = [words for words in calls if words[0] in ('redis', 'memcached')]
    report.check(len(peers) == 10 and sum(words[-1] != 'filled' for words in peers) == 2,
                 f'the peers are asked {peers}')
    report.check({(words[0], words[2], words[6]) for words in peers} ==
                 {('redis', 'get', '1'), ('redis', 'set', '1'), ('memcached', 'get', '1'), ('memcached', 'set', '1'),
                  ('redis', 'get', '32'), ('redis', 'mget', '32'), ('memcached', 'get', '32'), ('redis', 'set', '32'),
                  ('redis', 'mset', '32'), ('memcached', 'set', '32')}, f'the peers are asked {peers}')

    done, rows = compare('--groups', 'kv-held')
    held = [row['ratio'] for row in rows or [] if 'in a full store' in row['name']]
    memory = [row['ratio'] for row in rows or [] if row['name'].startswith('resident memory')]
    report.check(done.returncode in (0, 4) and held == [2] * 5 and len(memory) == 5 and all(memory),
                 f'full stores: ended with {done.returncode}, {held} and {memory}:\n{done.stdout}')
    calls = [line.split() for line in log.read_text().splitlines()]
    report.check({(words[0], words[3]) for words in calls if words[2] == 'held' and words[4:] == ['64']} ==
                 {(server, size) for server in ('verbena', 'memcached')
                  for size in ('64', '100', '1000', '10000', '70000')}, f'full stores are filled by {calls}')
    done, rows = compare('--groups', 'kv-held', STAND_IN_CLIENT='memcached')
    report.check(done.returncode == 4 and 'peer_client: it said "ERROR"' in done.stdout and
                 not any(row['ratio'] for row in rows or [] if 'in a full store' in row['name']),
                 f'a full memcached that fails: ended with {done.returncode}:\n{done.stdout}')
    done, rows = compare('--groups', 'kv-held', STAND_IN_CLIENT='verbena')
    report.check(done.returncode == 1 and rows is None,
                 f'a full store of ours that fails: ended with {done.returncode}:\n{done.stdout}')

    for what, variables, why in (
            ('a server that does not start', {'STAND_IN_SERVER': 'redis-server'},
             'redis does not serve: no such option'),
            ('a client that fails', {'STAND_IN_CLIENT': 'redis'}, 'peer_client: it said "ERROR"')):
        done, rows = compare('--groups', 'kv-put', **variables)
        found = [row for row in rows or [] if row['name'].startswith('PUT 64 B')]
        report.check(done.returncode == 4 and [row['ratio'] for row in found] == [None] and why in done.stdout,
                     f'{what}: ended with {done.returncode}, {found}:\n{done.stdout}')
    done, rows = compare('--groups', 'kv-put', STAND_IN_CORE='77')
    report.check(done.returncode == 1 and rows is None and 'is another server running?' in done.stdout,
                 f'a store on another core: ended with {done.returncode}:\n{done.stdout}')
    done, rows = compare('--groups', 'kv-put', STAND_IN_KV='fails')
    report.check(done.returncode == 1 and rows is None,
                 f'a store that fails: ended with {done.returncode}:\n{done.stdout}')


def main():
    root = pathlib.Path(sys.argv[1])
    sys.path.insert(0, str(root / 'bench'))
    import compare_table  # pylint: disable=import-outside-toplevel
    import keys_table  # pylint: disable=import-outside-toplevel
    import kv_table  # pylint: disable=import-outside-toplevel
    import peers  # pylint: disable=import-outside-toplevel
    import slices_table  # pylint: disable=import-outside-toplevel
    import softroce_table  # pylint: disable=import-outside-toplevel

    report = Report('bench')
    check_peers(report, peers)
    check_table(report, compare_table)
    check_store_rows(report, compare_table)
    check_keys(report, keys_table)
    check_slices(report, slices_table)
    check_printed(report, kv_table, softroce_table)
    check_plots(report, root)
    check_cpus(report, compare_table)
    check_script(report, root)
    report.end()


main()
