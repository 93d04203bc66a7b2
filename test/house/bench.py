#!/usr/bin/env python3
"""The benchmarks' readers and table makers: what peers' tools print, whole, cut off and broken, and what the tables
make of figures. No figure is asserted that a machine could change."""

import contextlib
import io
import json
import os
import pathlib
import random
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
    report.end()


main()
