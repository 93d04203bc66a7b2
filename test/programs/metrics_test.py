#!/usr/bin/env python3
"""What Prometheus would find at `verbena-kv serve --metrics-port`, and what `verbena-kv stats` says of the same.

usage: metrics_test.py VERBENA_KV
"""

import http.client
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'house'))
from report import Report

KV = sys.argv[1]
TIMEOUT_S = 60
SCRAPES = 100
# Of these, for a scraper that loses its core between its connection and its request. With 16 places it was 7 to 10.
MOST_LOST = 3
NAME = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*')
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="([^"\\]*)"')


class Serving:
    """A server with metrics, ended with the block."""

    def __init__(self, *more):
        self.process = subprocess.Popen([KV, 'serve', '-p', '0', '-m', '64', '--metrics-port', '0', *more],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        found = re.match(r'verbena-kv: serving on \S*?:(\d+);.*; metrics at http://(\S+):(\d+)/metrics$', line.strip())
        if not found:
            self.process.kill()
            raise SystemExit(f'no ready line with metrics: {line!r}')
        self.port, self.host, self.metrics = found[1], found[2].strip('[]'), int(found[3])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=TIMEOUT_S)

    def kv(self, *arguments, **options):
        return subprocess.run([KV, arguments[0], '-p', self.port, *arguments[1:]], capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False, **options)

    def ask(self, path='/metrics', method='GET', **options):
        connection = http.client.HTTPConnection(self.host, self.metrics, timeout=TIMEOUT_S)
        connection.request(method, path, **options)
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response, body


def parse(report, text):
    """{(name, labels): value} of an exposition, each line of which is checked."""
    samples, types, helped = {}, {}, set()
    report.check(text.endswith('\n'), 'the last line has no end')
    for line in text.splitlines():
        if line.startswith('# HELP '):
            name = line.split()[2]
            report.check(name not in helped and len(line.split()) > 3, f'help twice, or without text: {line}')
            helped.add(name)
        elif line.startswith('# TYPE '):
            _, _, name, kind = line.split()
            report.check(name in helped and name not in types, f'a type without help, or a second one: {line}')
            report.check(kind in ('counter', 'gauge', 'histogram'), line)
            types[name] = kind
        else:
            found = SAMPLE.fullmatch(line)
            if not report.check(found, f'no sample: {line}'):
                continue
            name, labels, value = found.groups()
            pairs = LABEL.findall(labels or '')
            report.check(','.join(f'{k}="{v}"' for k, v in pairs) == (labels or ''), f'labels: {line}')
            family = re.sub(r'_(bucket|sum|count)$', '', name)
            family = family if types.get(family) == 'histogram' else name
            report.check(family in types, f'a sample before its type: {line}')
            report.check(family == list(types)[-1], f'samples of a family are not together: {line}')
            report.check((types.get(family) == 'counter') == name.endswith('_total'), f'name and type: {line}')
            key = (name, tuple(sorted(pairs)))
            report.check(key not in samples, f'the same sample twice: {line}')
            samples[key] = float(value)
    check_histograms(report, samples, [name for name, kind in types.items() if kind == 'histogram'])
    return samples


def check_histograms(report, samples, names):
    report.check(names, 'no histogram')
    for name in names:
        series = {}
        for (sample, labels), value in samples.items():
            if sample == f'{name}_bucket':
                rest = tuple(pair for pair in labels if pair[0] != 'le')
                series.setdefault(rest, []).append((float(dict(labels)['le']), value))
        for labels, buckets in series.items():
            bounds, counts = zip(*buckets)
            report.check(list(bounds) == sorted(set(bounds)) and bounds[-1] == float('inf'), f'bounds of {labels}')
            report.check(list(counts) == sorted(counts), f'buckets of {labels} are not cumulative')
            report.check(samples[f'{name}_count', labels] == counts[-1], f'count of {labels}')
            total = samples[f'{name}_sum', labels]
            report.check((total > 0) == (counts[-1] > 0) or counts[-1] <= 1, f'sum of {labels}')


def value_of(samples, name, **labels):
    """The sum of all samples of that name with those labels."""
    return sum(value for (sample, its), value in samples.items()
               if sample == f'verbena_kv_{name}' and set(labels.items()) <= set(its))


def test_counts(report):
    with Serving('-w', '2') as server:
        response, text = server.ask()
        report.check(response.status == 200, f'status {response.status}')
        report.check(response.getheader('Content-Type', '').startswith('text/plain; version=0.0.4'), 'content type')
        before = parse(report, text)
        report.check(value_of(before, 'requests_total') == 0, 'requests before there were any')
        for i in range(8):
            server.kv('put', f'key{i}', 'value')
        server.kv('put', 'large', '-f', '-', input='x' * 20_000)
        server.kv('cas', 'key0', '0', 'other')
        server.kv('del', 'key1')
        server.kv('get', 'none')
        told = json.loads(server.kv('stats', '--json').stdout)
        samples = parse(report, server.ask()[1])

        def check(name, expected, **labels):
            found = value_of(samples, name, **labels)
            report.check(found == expected, f'{name} {labels} is {found}, not {expected}')

        check('requests_total', 8, operation='put')
        check('requests_total', 1, operation='large_put')
        check('requests_total', 1, operation='cas')
        check('requests_total', 1, operation='erase')
        check('requests_total', 0, operation='cell')
        check('workers', 2)
        check('items', 8)
        check('last_version', 9)
        # On a busy machine the server may hear a goodbye only after its client has gone.
        lost = value_of(samples, 'clients_lost_total')
        report.check(0 <= lost <= 12, f'{lost} of 12 clients lost')
        check('failures_total', 0)
        check('denied_total', 0)
        check('over_quota_total', 0)
        check('memory_capacity_bytes', 64 << 20)
        check('memory_blocks', 1, block_bytes=str(32 << 10), state='used')
        check('memory_class_bytes', value_of(samples, 'memory_capacity_bytes'))
        # One in 16 is timed, and the first; every large put.
        report.check(1 <= value_of(samples, 'service_seconds_count', operation='put') <= 8, 'timed puts')
        check('service_seconds_count', 1, operation='large_put')
        # The same as by message, but for the one who asked.
        for name in ('items', 'max_items', 'index_entries', 'last_version', 'failures'):
            check(name if name != 'failures' else 'failures_total', told[name])
        check('requests_total', told['operations']['put']['requests'], operation='put')
        # Those before it count for up to a second after they left, and worker 1 may not have looked at it yet.
        report.check(told['clients'] >= 1 and told['sessions'] >= 1, 'who asked is a client')
        report.check(told['operations']['large put']['timed'] == 1, 'a large put is timed')
        report.check(0 < told['operations']['large put']['p50_ns'] < 60e9, 'its time')


def test_stats(report):
    with Serving() as server:
        server.kv('put', 'key', 'value')
        text = server.kv('stats').stdout
        report.check(re.search(r'^items 1, of \d+ at most, index 0.0 % full, last version 1$', text, re.M), text)
        report.check(re.search(r'^  put +1 +1 +[\d.]+ \w+ +[\d.]+ \w+ +[\d.]+ \w+ +[\d.]+ \w+$', text, re.M), text)
        report.check(not re.search(r'^  large put', text, re.M), 'a line of what never was')
        report.check(re.search(r'^  64 B +1 +64 B +\d+ +[\d.]+ K?i?B$', text, re.M), text)
        watch = subprocess.Popen([KV, 'stats', '-p', server.port, '--watch', '1', '--json'], stdout=subprocess.PIPE,
                                 text=True)
        first, second = (json.loads(watch.stdout.readline()) for _ in range(2))
        report.check(first['items'] == second['items'] == 1, 'watched items')
        watch.terminate()
        watch.communicate(timeout=TIMEOUT_S)
        watch = subprocess.Popen([KV, 'stats', '-p', server.port, '--watch', '1'], stdout=subprocess.PIPE, text=True)
        lines = []
        while lines.count('\n') < 1:
            lines.append(watch.stdout.readline())
        server.kv('put', 'key', 'value')
        while lines.count('\n') < 2:
            lines.append(watch.stdout.readline())
        report.check(any('per second' in line for line in lines), ''.join(lines))
        watch.terminate()
        watch.communicate(timeout=TIMEOUT_S)


def test_bad_requests(report):
    with Serving() as server:
        for path in ('/', '/metric', '/metrics/', '/metrics/x', '//metrics', '/' + 'x' * 4000, '/%00metrics'):
            report.check(server.ask(path)[0].status == 404, f'{path[:20]} is not 404')
        report.check(server.ask('/metrics?x=y')[0].status == 200, 'a query does no harm')
        for method in ('POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH', 'NONSENSE'):
            response = server.ask(method=method)[0]
            report.check(response.status == 405, f'{method} is {response.status}')
            report.check(response.getheader('Allow') == 'GET, HEAD', f'{method}: {response.getheader("Allow")}')
        report.check(server.ask(method='POST', body=b'x' * 500_000)[0].status == 405, 'POST with a body')
        response, body = server.ask(method='HEAD')
        report.check(response.status == 200 and body == '' and int(response.getheader('Content-Length')) > 1000, 'HEAD')
        for garbage in (b'', b'\0' * 100, b'GET\r\n\r\n', b'GET /metrics HTTP/9.9\r\n\r\n', b'x' * 100_000,
                        b'GET /metrics HTTP/1.1\r\n' + b'a: b\r\n' * 20_000 + b'\r\n'):
            with socket.create_connection((server.host, server.metrics), timeout=TIMEOUT_S) as stranger:
                try:
                    stranger.sendall(garbage)
                except OSError:
                    pass  # Closed already: as good an answer as any.
        report.check(server.ask()[0].status == 200, 'after all that')


def test_ports(report):
    def refused(*arguments):
        run = subprocess.run([KV, 'serve', '-p', '0', '-m', '16', *arguments], capture_output=True, text=True,
                             timeout=TIMEOUT_S, check=False)
        report.check(run.returncode in (2, 3) and run.stderr.count('\n') == 1, f'{arguments}: {run.stderr}')
        return run.stderr

    with Serving() as server:
        said = refused('--metrics-port', str(server.metrics))
        report.check(f'127.0.0.1:{server.metrics} is in use' in said and '--metrics-port' in said, said)
        report.check(server.ask()[0].status == 200, 'the first one goes on')
    report.check('not a numeric address' in refused('--metrics-port', '0', '--metrics-address', 'localhost'), 'a name')
    refused('--metrics-port', '0', '--metrics-address', '192.0.2.1')
    refused('--metrics-port', '70000')
    refused('--metrics-address', '127.0.0.1')
    with Serving('--metrics-address', '0.0.0.0') as server:
        server.host = '127.0.0.1'
        report.check(server.ask()[0].status == 200, 'on all addresses')


def test_nobody_waits(report):
    """Peers of the endpoint that stall, more than it takes at a time, or that ask all the time: the store serves."""
    with Serving('-w', '2') as server:
        stop = threading.Event()
        scrapes = []

        def scrape():
            while not stop.is_set():
                scrapes.append(server.ask()[0].status)

        thread = threading.Thread(target=scrape)
        thread.start()
        bench = server.kv('bench', '--count', '20000', '--seconds', '30', '--rounds', '1', '--json', '--depth', '8')
        stop.set()
        thread.join()
        report.check(bench.returncode == 0, bench.stderr)
        report.check(scrapes and set(scrapes) == {200}, f'{len(scrapes)} scrapes meanwhile: {set(scrapes)}')
        stalled = [socket.create_connection((server.host, server.metrics), timeout=TIMEOUT_S) for _ in range(300)]
        for i, one in enumerate(stalled):
            if i % 2 == 0:
                one.sendall(b'GET /metrics HT')
        report.check(server.kv('put', 'key', 'value').returncode == 0, 'put beside stalled peers')
        report.check(server.kv('get', 'key').stdout == 'value', 'get beside stalled peers')
        report.check(server.kv('stats').returncode == 0, 'stats beside stalled peers')
        for one in stalled:
            one.close()
        report.check(server.ask()[0].status == 200, 'once they are gone')


def test_tricklers_take_turns(report):
    """Peers that never stall for long, and never end their request either: whoever asks is answered beside them."""
    with Serving() as server:
        stop = threading.Event()
        stalled = [socket.create_connection((server.host, server.metrics), timeout=TIMEOUT_S) for _ in range(300)]
        gone = set()

        def trickle():
            said = b'GET /metrics HTTP/1.1\r\nName: '
            while not stop.wait(0.05):
                for one in stalled:
                    try:
                        one.sendall(said)
                    except OSError:
                        gone.add(one)
                said = b'x'

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            for _ in range(10):
                report.check(server.ask()[0].status == 200, 'beside tricklers')
        except OSError as error:
            report.check(False, f'no answer beside tricklers: {error}')
        stop.set()
        thread.join()
        # 310 peers, 256 places.
        report.check(len(gone) < len(stalled), 'all were turned away, where there are places')
        for one in stalled:
            one.close()


# Connects as fast as it can, at least 1,200 times a second on an idle machine; keeps the latest 500 connections, silent
# or with half a request, or hangs up at once. Prints how many it made when it is told to end.
FLOOD = """
import collections, socket, struct, sys, threading
host, port, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
kept, made = collections.deque(), 0
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
print('begun', flush=True)
while not stop.is_set():
    try:
        one = socket.create_connection((host, port), timeout=10)
        if kind == 'half':
            one.sendall(b'GET /metrics HTTP/1.1')
    except OSError:
        continue
    made += 1
    if kind == 'reset':
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        one.close()
        continue
    kept.append(one)
    if len(kept) == 500:
        kept.popleft().close()
print(made, flush=True)
"""


def test_floods(report):
    """Whoever connects all the time and asks for nothing keeps no scrape from its answer."""
    for kind in ('silent', 'half', 'reset'):
        with Serving() as server:
            flood = subprocess.Popen([sys.executable, '-c', FLOOD, server.host, str(server.metrics), kind],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            flood.stdout.readline()
            answered = 0
            begun = time.monotonic()
            for _ in range(SCRAPES):
                try:
                    answered += server.ask()[0].status == 200
                except (OSError, http.client.HTTPException):
                    pass
            taken = time.monotonic() - begun
            made = flood.communicate(timeout=TIMEOUT_S)[0]
            print(f'metrics: {answered} of {SCRAPES} scrapes in {taken:.2f} s beside {int(made)} connections ({kind})')
            report.check(answered >= SCRAPES - MOST_LOST, f'{answered} of {SCRAPES} answered beside {kind} connections')
            report.check(server.kv('put', 'key', 'value').returncode == 0, f'put after {kind} connections')


def main():
    report = Report('metrics')
    for test in (test_counts, test_stats, test_bad_requests, test_ports, test_nobody_waits,
                 test_tricklers_take_turns, test_floods):
        test(report)
    report.end()


main()
