"""Prints the figures that softroce_rounds.sh noted as a table of medians, with the targets beside them.

usage: softroce_table.py FILE         each line of FILE is a name and a JSON value
"""

import statistics
import sys

from table import better, bound, number, ratios, read, verdict

# Columns of perftest's lines.
TYPICAL_US, AVERAGE_GBIT = 4, 3


def main(path):
    figures = read(path)

    def ours(name):
        return [run['latency']['median_ns'] for run in figures[name]]

    def theirs(name):
        return [run[TYPICAL_US] * 1000 for run in figures[name]]

    bandwidth = [run['bytes_per_s'] * 8e-9 for run in figures['write-bw']]
    rows = [
        ('blocking read 8 B, to ib_read_lat', 'ns', ours('read'), theirs('ib_read_lat'), 1.1, False),
        ('write ping-pong 8 B, to ib_write_lat', 'ns', ours('pingpong'), theirs('ib_write_lat'), 1.1, False),
        ('blocking write 8 B, to a bare loop', 'ns', ours('write'),
         [run['median_ns'] for run in figures['bare_write']], 1.1, False),
        ('message ping-pong 8 B, to ib_send_lat', 'ns', ours('message'), theirs('ib_send_lat'), None, False),
        ('bandwidth of 64 KiB, to ib_write_bw', 'Gbit/s', bandwidth,
         [run[AVERAGE_GBIT] for run in figures['ib_write_bw']], 0.95, True),
        ('unreliable 64 KiB, to ib_write_bw -c UC', 'Gbit/s', [each * 8e-3 for each in figures['uchan']],
         [run[AVERAGE_GBIT] for run in figures['ib_write_bw_uc']], None, True),
    ]
    print(f"{'medians of rounds':39} {'better':6} {'ours':>10} {'theirs':>10} {'':7} {'ratio':>6}  {'range':13} "
          f"{'target':>7}  met")
    for name, unit, our, their, target, more in rows:
        found = ratios(our, their)
        middle = statistics.median(found)
        print(f'{name:39} {better(more):6} {number(statistics.median(our)):>10} '
              f'{number(statistics.median(their)):>10} {unit:7} {middle:6.3f}  {min(found):.3f}-{max(found):.3f}   '
              f'{bound(target, more):>7}  {verdict(middle, target, more)}')
    print(f'\n{len(bandwidth)} interleaved rounds')
    run = figures['read'][0]
    print(f"on {run['nic']}: {run['path']}")
    for name, value in run['environment'].items():
        print(f'  {name}: {value}')


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
