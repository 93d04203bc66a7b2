"""Prints the figures that kv.sh noted as a table of medians, with the targets beside them.

usage: kv_table.py FILE         each line of FILE is a name and a JSON value
"""

import sys

from table import better, bound, median, number, ratio, ratios, read, verdict


def rows(figures):
    """Name, value, unit, target, and whether more is better."""
    def each(name, pick):
        return [pick(run) for run in figures.get(name, [])]

    def lines(name, kind):
        return median([run[kind]["p50_lines"] or None for run in figures.get(name, [])])

    def to_memcached(name, kind):
        return median(ratios(each(name, lambda run: run["ops_per_s"]),
                             each(f"memcached_{kind}", lambda run: run["ops_per_s"])))

    def to_memcpy(name, kind, which):
        return median([ratio(run[kind]["bytes_per_s"], run["memcpy"][which]) for run in figures.get(name, [])])

    yield "GET 64 B, one outstanding, p50", lines("get", "get"), "cache-line transfers", 8, False
    yield "PUT 64 B, one outstanding, p50", lines("put", "put"), "cache-line transfers", 8, False
    yield "GET 64 B, depth 32, to memcached get", to_memcached("get32", "get"), "x", 40, True
    yield "PUT 64 B, depth 32, to memcached set", to_memcached("put32", "set"), "x", 40, True
    yield "GET 1 MiB, to memcpy in caches", to_memcpy("get1m", "get", "cached_bytes_per_s"), "x", 0.5, True
    yield "PUT 1 MiB, to memcpy in caches", to_memcpy("put1m", "put", "cached_bytes_per_s"), "x", 0.5, True
    yield "GET 1 MiB, to memcpy through memory", to_memcpy("get1m", "get", "memory_bytes_per_s"), "x", 0.5, True
    yield "PUT 1 MiB, to memcpy through memory", to_memcpy("put1m", "put", "memory_bytes_per_s"), "x", 0.5, True
    yield "server with 1 GiB ready after", median(figures.get("start_ms", [])), "ms", 1000, False
    yield "a pending call after its server's SIGKILL", median(figures.get("peer_loss_ms", [])), "ms", 100, False
    yield "idle server, 4 idle clients", median(figures.get("idle_server_percent", [])), "% of a core", 2, False
    yield "an idle client", median(figures.get("idle_client_percent", [])), "% of a core", 2, False


def absolute(figures):
    def of(name, *path):
        values = figures.get(name, [])
        for step in path:
            values = [value[step] for value in values if value]
        return median(values)

    yield "cache-line transfer, one way", of("get", "line", "one_way_ns"), "ns"
    yield "GET 64 B p50", of("get", "get", "p50_ns"), "ns"
    yield "GET 64 B p99", of("get", "get", "p99_ns"), "ns"
    yield "PUT 64 B p50", of("put", "put", "p50_ns"), "ns"
    yield "PUT 64 B p99", of("put", "put", "p99_ns"), "ns"
    yield "GET 64 B, depth 32", of("get32", "ops_per_s"), "ops/s"
    yield "PUT 64 B, depth 32", of("put32", "ops_per_s"), "ops/s"
    yield "memcached get", of("memcached_get", "ops_per_s"), "ops/s"
    yield "memcached get p50", of("memcached_get", "p50_ns"), "ns"
    yield "memcached set", of("memcached_set", "ops_per_s"), "ops/s"
    yield "GET 1 MiB", of("get1m", "get", "bytes_per_s"), "B/s"
    yield "PUT 1 MiB", of("put1m", "put", "bytes_per_s"), "B/s"
    yield "memcpy 1 MiB, caches", of("get1m", "memcpy", "cached_bytes_per_s"), "B/s"
    yield "memcpy 1 MiB, memory", of("get1m", "memcpy", "memory_bytes_per_s"), "B/s"


def main(path):
    figures = read(path)
    print(f"{'ratio or limit':41} {'better':6} {'measured':>12} {'unit':20} {'target':>12}  met")
    for name, value, unit, target, more in rows(figures):
        print(f"{name:41} {better(more):6} {number(value):>12} {unit:20} {bound(target, more):>12}  "
              f"{verdict(value, target, more)}")
    print(f"\n{'absolute, of this machine':41} {'better':6} {'median':>16}")
    for name, value, unit in absolute(figures):
        print(f"{name:41} {better(unit.endswith('/s')):6} {number(value):>16} {unit}")
    environment = figures["get"][0]["environment"]
    print(f"\n{len(figures['get'])} interleaved rounds on:")
    for name, value in environment.items():
        print(f"  {name}: {value}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
