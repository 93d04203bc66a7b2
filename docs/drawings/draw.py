#!/usr/bin/env python3
"""The drawings of docs/, as SVG.

    draw.py            writes docs/drawings/*.svg
    draw.py --check    fails where a committed file differs from what this script makes

Either way it fails where a label leaves its box or the page, or meets another label, a line or the border of a box."""

import html
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
FONT = 'DejaVu Sans, Verdana, sans-serif'
MONO = 'DejaVu Sans Mono, Menlo, monospace'
INK, FAINT = '#1f2933', '#52606d'
# What a box is, by its fill and border.
KINDS = {
    'plain': ('#ffffff', '#7b8794'),
    'user': ('#dbeafe', '#2563eb'),
    'library': ('#eef2f6', '#52606d'),
    'nic': ('#dcfce7', '#15803d'),
    'memory': ('#fef3c7', '#b45309'),
    'peer': ('#fde8e8', '#b91c1c'),
    'core': ('#f5f3ff', '#6d28d9'),
}


class Unreadable(Exception):
    """A label that leaves its box or the page, or meets something else."""


def width_of(text, size, mono=False, bold=False):
    """An upper estimate, in pixels, for the fonts named above."""
    if mono:
        return len(text) * size * 0.605
    wide = sum({'m': 0.98, 'w': 0.82, 'M': 0.87, 'W': 0.99}.get(c, 0.34 if c in "il.,:;'|! tfjr()" else 0.63)
               for c in text)
    return wide * size * (1.09 if bold else 1)


class Drawing:
    """A page of boxes, arrows and labels. Labels are kept with their extents, lines with their ends, for `check`."""

    def __init__(self, name, width, height, title):
        self.name, self.width, self.height, self.title = name, width, height, title
        self.parts, self.labels, self.lines, self.covered = [], [], [], 0

    def label(self, x, y, text, size=13, anchor='start', bold=False, mono=False, color=INK, inside=None):
        """One line of text whose baseline is at y. `inside` is the box (x, y, w, h) that it must not leave. The box
        covers what was drawn before it."""
        width = width_of(text, size, mono, bold)
        left = x - {'start': 0, 'middle': width / 2, 'end': width}[anchor]
        self.labels.append((left, y - size * 0.8, left + width, y + size * 0.22, text, inside,
                            self.covered if inside else 0))
        style = ' font-weight="bold"' if bold else ''
        family = f' font-family="{MONO}"' if mono else ''
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" fill="{color}"{style}'
                          f'{family}>{html.escape(text, quote=False)}</text>')

    def box(self, x, y, w, h, lines=(), kind='plain', size=13, bold_first=False, mono=False, dashed=False):
        """A box with lines of text in its middle."""
        fill, border = KINDS[kind]
        dash = ' stroke-dasharray="5 4"' if dashed else ''
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" fill="{fill}" '
                          f'stroke="{border}"{dash}/>')
        self.covered = len(self.lines)
        self.lines += [(x, y, x + w, y), (x, y + h, x + w, y + h), (x, y, x, y + h), (x + w, y, x + w, y + h)]
        step = size * 1.35
        top = y + h / 2 - step * (len(lines) - 1) / 2 + size * 0.35
        for number, line in enumerate(lines):
            self.label(x + w / 2, top + number * step, line, size, 'middle', bold_first and number == 0, mono,
                       inside=(x, y, w, h))

    def arrow(self, points, label=None, at=None, dashed=False, color=INK, anchor='middle', size=12, both=False):
        """A line through points with a head at its end. The label's baseline is at `at`, else above the first piece."""
        path = ' '.join(f'{x:g},{y:g}' for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ''
        start = ' marker-start="url(#head)"' if both else ''
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.4"{dash}{start} '
                          'marker-end="url(#head)"/>')
        self.lines += [(*one, *other) for one, other in zip(points, points[1:])]
        if label:
            (x0, y0), (x1, y1) = points[:2]
            where = at or ((x0 + x1) / 2, (y0 + y1) / 2 - 6)
            self.label(*where, label, size, anchor, color=FAINT)

    def line(self, x0, y0, x1, y1, dashed=False, color='#9aa5b1'):
        dash = ' stroke-dasharray="3 4"' if dashed else ''
        self.lines.append((x0, y0, x1, y1))
        self.parts.append(f'<line x1="{x0:g}" y1="{y0:g}" x2="{x1:g}" y2="{y1:g}" stroke="{color}"{dash}/>')

    def check(self):
        for left, top, right, bottom, text, inside, covered in self.labels:
            x, y, w, h = inside or (0, 0, self.width, self.height)
            if left < x or right > x + w or top < y or bottom > y + h:
                raise Unreadable(f'{self.name}: "{text}" leaves {"its box" if inside else "the page"}')
            for x0, y0, x1, y1 in self.lines[covered:]:
                if min(x0, x1) < right and left < max(x0, x1) + 1 and min(y0, y1) < bottom and top < max(y0, y1) + 1:
                    raise Unreadable(f'{self.name}: a line crosses "{text}"')
        for number, one in enumerate(self.labels):
            for other in self.labels[number + 1:]:
                if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]:
                    raise Unreadable(f'{self.name}: "{one[4]}" overlaps "{other[4]}"')

    def svg(self):
        head = ('<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
                f'orient="auto-start-reverse"><path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker></defs>')
        body = '\n'.join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                f'viewBox="0 0 {self.width} {self.height}" font-family="{FONT}" role="img">\n'
                f'<title>{html.escape(self.title, quote=False)}</title>\n{head}\n'
                f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>\n{body}\n</svg>\n')


def layers():
    d = Drawing('layers', 900, 596, 'The layers of Verbena, from a program to the NIC')
    d.box(20, 20, 590, 52, ['Your program, in C, C++ or Fortran, with or without MPI',
                            'verbena-kv, verbena-perf, verbena-info'], 'user')
    d.label(630, 42, 'includes only <verbena/...>', 12, color=FAINT)
    d.label(630, 60, 'and links one archive', 12, color=FAINT)
    rooms = [
        ('api', 'C and C++ calls: arguments, codes, error sentences', 'library'),
        ('kv, mesh', 'key-value store; N processes connected to each other', 'library'),
        ('node', 'NICs, polling threads (shards), listeners', 'library'),
        ('session', 'messages, windows by name, registered memory', 'library'),
        ('channel', 'one connection: flow control, transfers, how it ends', 'library'),
        ('engine', 'polls completion queues, sleeps, wakes', 'library'),
        ('link', 'which NIC; handshake; whether the peer is alive', 'library'),
    ]
    y = 92
    for name, what, kind in rooms:
        d.box(20, y, 590, 40, (), kind)
        d.label(34, y + 25, name, 14, bold=True, inside=(20, y, 590, 40))
        d.label(130, y + 25, what, 13, inside=(20, y, 590, 40))
        y += 48
    d.line(20, y + 2, 880, y + 2, True)
    d.label(640, y - 28, 'above this line nobody asks which', 12, color=FAINT)
    d.label(640, y - 10, 'NIC it is, only what it can do', 12, color=FAINT)
    y += 12
    d.box(20, y, 285, 56, ['nic/soft', 'a NIC made of software'], 'nic', bold_first=True)
    d.box(325, y, 285, 56, ['nic/verbs', 'RDMA devices, by libibverbs'], 'nic', bold_first=True)
    d.arrow([(162, y + 56), (162, y + 88)])
    d.arrow([(467, y + 56), (467, y + 88)])
    d.box(20, y + 90, 285, 44, ['memory shared with processes', 'of the same host'], 'memory')
    d.box(325, y + 90, 285, 44, ['an RDMA network', 'to other hosts'], 'peer')
    d.box(640, 92, 240, 232, (), 'plain', dashed=True)
    for number, text in enumerate(['Two rooms serve all the others:', '', 'host: cores, NUMA nodes,', 'pages, arenas',
                                   '', 'base: Status, Error, clock,', 'deadlines, log']):
        if text:
            d.label(656, 130 + number * 24, text, 13, inside=(640, 92, 240, 232))
    return d


def put_and_notice():
    d = Drawing('put-and-notice', 900, 580, 'A write and a notice, in time')
    lanes = {'origin': 110, 'nic': 340, 'memory': 560, 'target': 780}
    for lane, lines, kind in (('origin', ["origin's thread"], 'user'), ('nic', ["origin's NIC"], 'nic'),
                              ('memory', ["target's window"], 'memory'), ('target', ["target's thread"], 'user')):
        d.box(lanes[lane] - 85, 16, 170, 34, lines, kind, 14)
        for top, bottom in ((50, 66), (92, 290), (316, 524)):
            d.line(lanes[lane], top, lanes[lane], bottom, True)
    origin, nic, memory, target = lanes.values()
    d.label(20, 82, '1  put: write(bytes, offset)', 13, bold=True)
    d.arrow([(origin, 106), (nic, 106)], 'one work request')
    d.arrow([(nic, 136), (memory, 136)], 'bytes')
    d.arrow([(memory, 166), (nic, 166)], 'acknowledgement')
    d.arrow([(nic, 196), (origin, 196)], 'completion')
    d.box(20, 210, 250, 46, ['the call returns: the buffer is free,', 'the bytes are in the window'], 'plain', 12)
    d.box(target - 95, 84, 190, 172, ['sleeps in receive()', '', 'no CPU of the target', 'takes part in the put'],
          'plain', 12, dashed=True)
    d.line(20, 280, 880, 280)
    d.label(20, 308, '2  notice: write_with_immediate(bytes, 7)', 13, bold=True)
    d.arrow([(origin, 332), (nic, 332)], 'a WRITE, then a message')
    d.box(20, 348, 250, 46, ['the call returns: the buffer is free,', 'the bytes may be on their way'], 'plain', 12)
    d.arrow([(nic, 362), (memory, 362)], 'bytes first')
    d.arrow([(nic, 402), (target, 402)], 'then the message with 7', at=(670, 396))
    d.arrow([(target, 438), (memory, 438)], 'reads the window')
    d.box(target - 110, 458, 220, 46, ['receive() returns 7: the', 'bytes before it are there'], 'plain', 12)
    d.label(450, 548, "On the software NIC the origin's thread does the NIC's work itself: it copies into the window,",
            12, 'middle', color=FAINT)
    d.label(450, 566, 'which it has mapped. Messages and writes of one connection arrive in the order of the calls.',
            12, 'middle', color=FAINT)
    return d


def which_nic():
    d = Drawing('which-nic', 900, 560, 'Which NIC a program takes')
    rows = [
        (['Is a device named?', '(-d, RdmaOptions::device, Transport::device)'],
         ['that one, or an error', '"soft" is the software NIC'], 'nic'),
        (['RDMA CM, and a loopback address', 'such as 127.0.0.1?'],
         ['the software NIC:', 'no RDMA device has such an address'], 'memory'),
        (['RDMA CM, and any other address?'],
         ['server: the device that has the address', 'client: the device that leads to it'], 'nic'),
        (['no address, or socket mode (-S)'],
         ['the first device with an active port', 'and a usable GID'], 'nic'),
    ]
    for number, (question, answer, kind) in enumerate(rows):
        y = 20 + number * 104
        d.box(30, y, 330, 58, question, 'library')
        d.box(500, y, 370, 58, answer, kind)
        last = number == len(rows) - 1
        d.arrow([(360, y + 29), (500, y + 29)], None if last else 'yes')
        if not last:
            d.arrow([(195, y + 58), (195, y + 104)], 'no', at=(205, y + 86), anchor='start')
    d.arrow([(870, 257), (886, 257), (886, 466), (870, 466)], dashed=True)
    d.arrow([(685, 390), (685, 440)], 'no such device', at=(676, 420), anchor='end', dashed=True)
    d.box(500, 440, 370, 52, ['the software NIC; the description', 'and errors give the reason'], 'memory')
    d.label(450, 526, 'Both ends choose the same. The software NIC joins processes of one host: another host is an',
            12, 'middle', color=FAINT)
    d.label(450, 544, 'error that says so. verbena-info prints what this host would take, and why.', 12, 'middle',
            color=FAINT)
    return d


def cells(d, x, y, widths, texts, kind, size=12, height=34):
    for width, text in zip(widths, texts):
        d.box(x, y, width, height, [text] if text else [], kind, size)
        x += width


def store():
    d = Drawing('store', 960, 636, "The store's index and items, and how the server READs a large value")
    d.label(20, 30, 'One GET through the index: READ two buckets, then the item', 15, bold=True)
    d.label(20, 62, 'index: buckets of 64 B with 8 entries of 8 B; a key is in one of two buckets', 12, color=FAINT)
    for y, chosen, name in ((74, 2, 'bucket b'), (122, None, 'the other')):
        d.label(20, y + 22, name, 12)
        for entry in range(8):
            here = entry == chosen
            d.box(110 + entry * 46, y, 46, 34, ['entry'] if here else [], 'memory' if here else 'plain', 11)
    d.arrow([(225, 108), (225, 116), (520, 116), (520, 91), (548, 91)])
    d.label(550, 62, 'the entry, 64 bits', 12, color=FAINT)
    cells(d, 550, 74, [96, 134, 160], ['tag, 23 bits', 'cache lines, 7 bits', 'first of them, 34 bits'], 'memory')
    d.arrow([(860, 108), (860, 190), (62, 190), (62, 214)])
    d.label(200, 184, 'the item, at a multiple of 64 B in the same window', 12, color=FAINT)
    whole = [130, 80, 100, 120, 80, 130, 270]
    cells(d, 20, 216, whole,
          ['state | version', 'private', 'checksum', 'lengths, flags', 'key', 'expiry, 8 B',
           'value under 4096 B, or: offset, checksum'],
          'memory')
    d.label(20 + sum(whole[:5]) + 65, 272, 'only with a time to live', 11, 'middle', color=FAINT)
    d.label(20, 272, 'building, live or superseded', 11, color=FAINT)
    d.label(230, 290, 'seeded by the version: one READ proves a small value', 11, color=FAINT)
    d.arrow([(800, 250), (800, 290)])
    d.box(600, 292, 330, 34, ['a larger value, in a block of its own'], 'memory', 12)
    d.line(20, 352, 940, 352)
    d.label(20, 382, 'PUT READ: the server READs a large value out of memory from allocate, which is the only copy', 15,
            bold=True)
    d.box(20, 400, 180, 206, ['client'], 'user', 14)
    d.box(760, 400, 180, 206, ['server'], 'library', 14)
    d.arrow([(200, 434), (760, 434)], '1  PUT READ: key, address, length, rkey', at=(480, 428))
    d.arrow([(760, 489), (200, 489)], '2  RDMA READs of 256 KiB, into a block that no client can write', at=(480, 483))
    d.arrow([(760, 544), (200, 544)], '3  the item is published over the block; the reply has its version', at=(480, 538))
    d.label(480, 588, 'Values in other memory are streamed through the lease of the connection.', 12, 'middle', color=FAINT)
    return d


def ring():
    d = Drawing('ring', 960, 520, 'The ring of messages of the software NIC')
    d.box(20, 20, 620, 420, (), 'plain', dashed=True)
    d.label(34, 44, "the sender's memory; the receiver maps it read-only", 13, bold=True)
    d.label(34, 78, 'slots of two cache lines (128 B)', 12, color=FAINT)
    for number in range(6):
        full = number in (1, 2, 3)
        d.box(34 + number * 98, 88, 98, 62, [f'slot {number}', f'header {number + 1}' if full else 'header old'],
              'nic' if full else 'plain', 12)
    d.arrow([(181, 178), (181, 150)], 'the receiver takes the next', at=(34, 194), anchor='start')
    d.arrow([(475, 178), (475, 150)], 'the sender fills the next', at=(412, 194), anchor='start')
    cells(d, 34, 226, [150, 190, 140, 108], ['free', 'of slot 2', 'of slot 3', 'free'], 'plain', height=40)
    d.arrow([(279, 150), (279, 226)], dashed=True)
    d.label(34, 286, 'data ring: what is longer than 112 B, in segments of 4096 B', 12, color=FAINT)
    lengths = [('up to 48 B', 'one cache-line transfer'), ('up to 112 B', 'two, in the slot'),
               ('up to 4096 B', 'the slot holds the position in the data ring'), ('longer', 'several segments')]
    for number, (length, how) in enumerate(lengths):
        d.label(34, 322 + number * 22, length, 12)
        d.label(160, 322 + number * 22, how, 12, color=FAINT)
    d.label(34, 420, 'A slot is valid when the low half of its header is its index + 1: there is no tail to read.', 12)
    d.box(690, 20, 250, 420, (), 'plain', dashed=True)
    d.label(704, 44, "the receiver's memory;", 13, bold=True)
    d.label(704, 62, 'the sender maps it read-only', 13, bold=True)
    for y, lines in ((88, ['how much it has', 'copied out']), (162, ['receives posted', 'and their lengths']),
                     (236, ['"I sleep: ring the bell"'])):
        d.box(704, y, 222, 56, lines, 'memory', 12)
    d.box(704, 350, 222, 56, ['bell: an eventfd', "of the receiver's process"], 'nic', 12)
    d.arrow([(815, 292), (815, 350)], 'set', at=(825, 326), anchor='start')
    d.label(480, 472,
            'Each shared word has one writer: a hostile peer can lie about its own words and change none of ours.', 12,
            'middle', color=FAINT)
    d.label(480, 494, 'Two sides that poll make no system call; a sender makes one to wake a receiver that sleeps.', 12,
            'middle', color=FAINT)
    return d


def threads():
    d = Drawing('threads', 960, 560, 'The threads of a process and the cores they take')
    d.label(20, 32,
            'Threads that poll take cores of their own, the last core first; one core is left to the application.', 13,
            bold=True)
    cores = [
        ('your threads', 'user', ["the program's threads", 'and clients without', 'a handler:', 'the calling thread',
                                  'polls, then sleeps']),
        ('a shard of a node', 'library', ['verbena-rdma', '', 'connections in turn,', "other threads' calls"]),
        ("a listener's shard", 'library', ['verbena-rdma', '', 'polls, takes calls,', 'calls handlers']),
        ('a worker of the store', 'library', ['verbena-kv-0', '', 'its share of the keys']),
    ]
    for number, (whose, kind, lines) in enumerate(cores):
        x = 20 + number * 232
        d.box(x, 52, 222, 236, (), 'core', dashed=True)
        d.label(x + 12, 74, f'core {number}', 13, bold=True)
        d.label(x + 210, 74, whose, 12, 'end', color=FAINT)
        d.box(x + 14, 90, 194, 182, lines, kind, 13)
    d.label(20, 326, 'These threads have no core of their own, and sleep unless something comes:', 13, bold=True)
    asleep = [('verbena-nic', 'software NIC: descriptors'), ('verbena-peers', 'has a peer gone?'),
              ('verbena-accept', 'all handshakes'), ('verbena-events', 'device: its events'),
              ('verbena-cm', 'device: RDMA CM'), ('verbena-mesh', 'dials missing peers')]
    for number, (name, what) in enumerate(asleep):
        x, y = 20 + number % 3 * 309, 342 + number // 3 * 62
        d.box(x, y, 299, 54, [name, what], 'plain', 12, bold_first=True)
    d.label(20, 494, 'A poller without a core of its own sleeps until something comes, which costs some microseconds.',
            12, color=FAINT)
    d.label(20, 514, 'Other processes see the claim of a core, so ranks of one job do not choose the same one.', 12,
            color=FAINT)
    d.label(20, 534, 'A connection has no thread of its own; a process opens each NIC once.', 12, color=FAINT)
    return d


DRAWINGS = [layers, put_and_notice, which_nic, store, ring, threads]


def self_test():
    """The check finds what it is for."""
    def planted(draw):
        d = Drawing('planted', 200, 100, 'planted')
        draw(d)
        try:
            d.check()
        except Unreadable:
            return True
        return False
    spoilt = [lambda d: d.label(150, 50, 'leaves the page'), lambda d: d.box(0, 0, 30, 40, ['leaves the box']),
              lambda d: (d.label(10, 50, 'one'), d.label(12, 52, 'other')),
              lambda d: (d.label(10, 50, 'one'), d.arrow([(0, 46), (100, 46)])),
              lambda d: (d.label(10, 50, 'one'), d.box(20, 20, 40, 40))]
    if not all(map(planted, spoilt)) or planted(lambda d: d.label(10, 50, 'well')):
        sys.exit('drawings: self-test: the check does not find what it is for')


def main():
    check = sys.argv[1:] == ['--check']
    if sys.argv[1:] and not check:
        sys.exit(__doc__)
    self_test()
    stale = []
    for draw in DRAWINGS:
        drawing = draw()
        drawing.check()
        path = HERE / f'{drawing.name}.svg'
        if not check:
            path.write_text(drawing.svg())
        elif not path.exists() or path.read_text() != drawing.svg():
            stale.append(path.name)
    unknown = {path.name for path in HERE.glob('*.svg')} - {f'{draw().name}.svg' for draw in DRAWINGS}
    if stale or unknown:
        sys.exit(f'drawings: {sorted(stale)} differ from what {__file__} makes; it does not know {sorted(unknown)}')
    print(f'drawings: {len(DRAWINGS)} drawings')


if __name__ == '__main__':
    main()
