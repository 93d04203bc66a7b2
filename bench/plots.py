"""Scripts for gnuplot, data included, and the SVG files it makes of them."""

import statistics
import subprocess

HEAD = """set terminal svg size {width},{height} dynamic background rgb 'white' font 'sans-serif,12'
set title "{title}" noenhanced
set label "{where}" at screen 0.01, screen 0.025 left font 'sans-serif,9' noenhanced
set grid
set border 3
set tics nomirror
"""


def head(title, where, width, height):
    return HEAD.format(title=quoted(title), where=quoted(where), width=width, height=height)


def quoted(text):
    return text.replace('\\', '\\\\').replace('"', '\\"')


def short(size):
    for shift, unit in ((20, ' Mi'), (10, ' Ki')):
        if size >= 1 << shift:
            return f'{size >> shift}{unit}'
    return str(size)


def decimal(count):
    for least, unit in ((10**6, ' million'), (10**3, ' thousand')):
        if count >= least:
            return f'{count // least}{unit}'
    return str(count)


def by_size(title, where, curves):
    """Label to pairs of a size and its values in ns. Medians, with the range of the rounds."""
    return lines(title, where, curves, 'bytes', 2, short)


def by_number(title, where, curves, what):
    """The same of a number of something."""
    return lines(title, where, curves, what, 10, decimal)


def lines(title, where, curves, what, base, name, unit='ns'):
    script = [head(title, where, 720, 460), f'set logscale x {base}', 'set logscale y 10', f'set xlabel "{what}"',
              f'set ylabel "{unit}"', 'set bmargin 5', 'set key top left noenhanced']
    sizes = sorted({size for points in curves.values() for size, _ in points})
    script.append('set xtics (' + ', '.join(f'"{name(size)}" {size}' for size in sizes) + ')')
    drawn = []
    for i, (label, points) in enumerate(curves.items()):
        if not points:
            continue
        script.append(f'$curve{i} << EOD')
        script += [f'{size} {statistics.median(values):.3f} {min(values):.3f} {max(values):.3f}'
                   for size, values in points]
        script.append('EOD')
        drawn.append(f'$curve{i} using 1:2:3:4 with yerrorlines linetype {i + 1} pointtype 7 pointsize 0.5 '
                     f'title "{quoted(label)}"')
    return '\n'.join(script + ['plot ' + ', '.join(drawn)]) + '\n' if drawn else ''


def ratios(title, where, bars):
    """Name, the ratios of its rounds, and the target or None; the first row is on top."""
    if not bars:
        return ''
    names = ', '.join(f'"{quoted(name)}" {i}' for i, (name, _, _) in enumerate(bars, 1))
    script = [head(title, where, 960, 140 + 32 * len(bars)), 'set xlabel "ratio"',
              f'set yrange [{len(bars) + 0.5}:0.5]', 'set bmargin 5', 'set logscale x 2',
              'set key outside top right horizontal',
              'set arrow from 1, graph 0 to 1, graph 1 nohead dashtype 2', f'set ytics ({names}) noenhanced',
              '$rounds << EOD']
    script += [f'{value:.4f} {i}' for i, (_, values, _) in enumerate(bars, 1) for value in values]
    script += ['EOD', '$medians << EOD']
    script += [f'{statistics.median(values):.4f} {i}' for i, (_, values, _) in enumerate(bars, 1)]
    script += ['EOD', '$targets << EOD']
    script += [f'{target:.4f} {i}' for i, (_, _, target) in enumerate(bars, 1) if target is not None]
    script += ['EOD', "plot $rounds with points pointtype 6 linecolor rgb '#888888' title 'rounds', "
               "$medians with points pointtype 7 linecolor rgb '#0060ad' title 'median'"]
    if any(target is not None for _, _, target in bars):
        script[-1] += ", $targets with points pointtype 2 linewidth 2 linecolor rgb '#c00000' title 'target'"
    return '\n'.join(script) + '\n'


def write(script, path):
    """False when there is nothing to draw; what gnuplot says of a script is an error."""
    if not script:
        return False
    done = subprocess.run(['gnuplot'], input=script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60, check=False)
    if done.returncode != 0 or not done.stdout.rstrip().endswith('</svg>'):
        raise RuntimeError(f'gnuplot ended with {done.returncode}: {done.stderr.strip()[-300:]}')
    path.write_text(done.stdout, encoding='utf-8')
    return True
