"""Reads what the peers' tools print, and the figures that it stands for.

usage: peers.py ucx_perftest BYTES ITERATIONS FILE     FILE is the output of a client, for as many operations of a size
       peers.py fi_pingpong BYTES ITERATIONS FILE
       peers.py bring_up PROCESSES RUNS FILE           FILE is the output of so many processes, of one run
       peers.py missing REASON                         the figure of a tool that cannot be had

Prints JSON: `ns` of an operation or, of a ping-pong, of one way; `per_s` and `bytes_per_s`. Whatever is not what the
tool prints after a whole run ends with 1 and the reason: no figure is better than a wrong one.
"""

import json
import math
import re
import sys

MIB = 1 << 20
UCX_COLUMNS = ('iterations', 'overall_lat', 'overall_bw', 'overall_mr')


class Unreadable(ValueError):
    """An output that is not what the tool prints."""


def excerpt(text):
    lines = text.strip().splitlines()
    return repr('; '.join(lines[-3:])[-300:]) if lines else 'nothing'


def close(a, b, absolute):
    """Within one percent, and what the tool's digits round."""
    return math.isclose(a, b, rel_tol=0.01, abs_tol=absolute)


def figure(ns, bytes_each, **more):
    return {'ns': ns, 'per_s': 1e9 / ns, 'bytes_per_s': bytes_each * 1e9 / ns, **more}


def ucx_transports(text):
    """What its log says it uses, as `am(posix/memory)`; anything but posix shared memory is another measurement."""
    found = sorted(set(re.findall(r'\b[a-z0-9_]+\([a-z0-9_]+/[^)]*\)', ' '.join(
        line.split('UCX', 1)[1] for line in text.splitlines() if 'ep_cfg[' in line and 'UCX' in line))))
    for lane in found:
        if any(not device.startswith('posix/') for device in lane[lane.index('(') + 1:-1].split()):
            raise Unreadable(f'ucx_perftest went over {lane}')
    return ', '.join(found)


def ucx_perftest(text, bytes_each, iterations):
    """CSV of `ucx_perftest -f -v`. Its percentile covers the last 2048 operations only, in steps of the clock (10 ns on
    some machines), and its latencies have three digits: the message rate, which is of all operations, is the precise
    form of the mean. In a ping-pong both are of one way: the tool halves the time and doubles the rate."""
    rows = [line.split(',') for line in text.split('\n')[:-1]]  # The last piece is empty, or cut off.
    heads = [i for i, row in enumerate(rows) if all(name in row for name in UCX_COLUMNS)]
    if not heads:
        raise Unreadable(f'ucx_perftest printed no header: {excerpt(text)}')
    head = rows[heads[-1]]
    bodies = [row for row in rows[heads[-1] + 1:]
              if len(row) == len(head) and all(re.fullmatch(r' *[0-9]+(\.[0-9]+)?', cell) for cell in row)]
    if len(bodies) != 1:
        raise Unreadable(f'ucx_perftest printed {len(bodies)} results, not one: {excerpt(text)}')
    count, latency_us, mib_per_s, per_s = (float(bodies[0][head.index(name)]) for name in UCX_COLUMNS)
    if count != iterations:
        raise Unreadable(f'ucx_perftest ran {count:.0f} iterations of {iterations}')
    if per_s <= 0 or not close(1e6 / per_s, latency_us, 0.001):
        raise Unreadable(f'ucx_perftest contradicts itself: {per_s} messages/s, {latency_us} us each')
    if not close(per_s * bytes_each / MIB, mib_per_s, 0.01):
        raise Unreadable(f'ucx_perftest contradicts itself: {per_s} messages/s of {bytes_each} B, {mib_per_s} MiB/s')
    version = re.search(r'UCX +INFO +Version ([0-9.]+)', text)
    return figure(1e9 / per_s, bytes_each, version=version[1] if version else 'unknown', transport=ucx_transports(text))


def fi_size(size):
    """As fi_pingpong writes it."""
    for shift, letter in ((30, 'g'), (20, 'm'), (10, 'k')):
        if size >= 1 << shift:
            tenth = (size % (1 << shift)) * 10 >> shift if size >> shift < 10 else 0
            return f'{size >> shift}.{tenth}{letter}' if tenth else f'{size >> shift}{letter}'
    return str(size)


def fi_count(count):
    for least, letter in ((10**9, 'b'), (10**6, 'm'), (10**3, 'k')):
        if count >= least:
            return f'{count // least}{letter}'
    return str(count)


def fi_pingpong(text, bytes_each, iterations):
    """Its microseconds are of one transfer of two in a round trip, with two digits; its bytes in a microsecond say the
    same more precisely."""
    if not re.search(r'^bytes +#sent +#ack +total +time +MB/sec +usec/xfer +Mxfers/sec$', text, re.MULTILINE):
        raise Unreadable(f'fi_pingpong printed no header: {excerpt(text)}')
    found = re.findall(r'^(\S+) +(\S+) +([=+-]\S+) +\S+ +[0-9.]+s +([0-9.]+) +([0-9.]+) +[0-9.]+\n', text,
                       re.MULTILINE)
    if len(found) != 1:
        raise Unreadable(f'fi_pingpong printed {len(found)} results, not one: {excerpt(text)}')
    size, sent, acked, mb_per_s, latency_us = found[0]
    if size != fi_size(bytes_each) or sent != fi_count(iterations) or acked != f'={sent}':
        raise Unreadable(f'fi_pingpong ran {sent} ({acked}) of {size} B, not {iterations} of {bytes_each}')
    mb_per_s, latency_us = float(mb_per_s), float(latency_us)
    if mb_per_s <= 0 or not close(bytes_each / mb_per_s, latency_us, 0.006):
        raise Unreadable(f'fi_pingpong contradicts itself: {mb_per_s} MB/s of {bytes_each} B, {latency_us} us each')
    return figure(1e3 * bytes_each / mb_per_s, bytes_each)


def bring_up(text, processes, _runs):
    """The slowest process's time; each prints its own."""
    found = [float(ms) for ms in re.findall(r'^([0-9.]+) ms$', text, re.MULTILINE)]
    if len(found) != processes:
        raise Unreadable(f'{len(found)} of {processes} processes printed a time: {excerpt(text)}')
    return {'ms': max(found)}


def missing(reason):
    return {'missing': ' '.join(reason.split())}


TOOLS = {'ucx_perftest': ucx_perftest, 'fi_pingpong': fi_pingpong, 'bring_up': bring_up}


def main(arguments):
    if len(arguments) == 2 and arguments[0] == 'missing':
        print(json.dumps(missing(arguments[1])))
        return
    if len(arguments) != 4 or arguments[0] not in TOOLS:
        sys.exit(__doc__)
    tool, bytes_each, iterations, path = arguments
    with open(path, encoding='utf-8', errors='replace') as file:
        text = file.read()
    try:
        print(json.dumps(TOOLS[tool](text, int(bytes_each), int(iterations))))
    except Unreadable as error:
        sys.exit(str(error))


if __name__ == '__main__':
    main(sys.argv[1:])
