"""The plots of the tables, as SVG, by matplotlib. They are optional: `missing` says why there are none."""

import functools
import importlib
import io
import itertools
import statistics

# Told apart on white by colour and by marker, by readers who see no red or green, too (Okabe and Ito).
LOOKS = (('#0072b2', 'o'), ('#d55e00', 's'), ('#009e73', '^'), ('#cc79a7', 'D'), ('#e69f00', 'v'), ('#56b4e9', 'P'))
INK, FAINT, GRID = '#1f2933', '#52606d', '#d5dae0'
PIXELS_AN_INCH = 72  # An SVG of matplotlib counts in points.
# Texts stay texts, and names are hashed with a constant: one table makes one file, byte by byte. The white page is
# drawn, so that a dark viewer shows dark ink on white as well.
SETTINGS = {'svg.fonttype': 'none', 'svg.hashsalt': 'verbena', 'savefig.facecolor': '#ffffff', 'font.size': 11,
            'text.color': INK, 'axes.labelcolor': INK, 'xtick.color': INK, 'ytick.color': INK, 'axes.edgecolor': FAINT,
            'axes.spines.top': False, 'axes.spines.right': False, 'axes.grid': True, 'axes.axisbelow': True,
            'grid.color': GRID, 'axes.titlesize': 13, 'legend.frameon': False, 'legend.fontsize': 10}


def missing():
    """Why there are no plots; None where matplotlib draws them."""
    try:
        importlib.import_module('matplotlib.figure')
    except ImportError as error:
        return f'{error} (apt-get install python3-matplotlib)'
    return None


def literal(text):
    """Without this, matplotlib sets what is between two dollars as a formula."""
    return text.replace('$', r'\$')


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


def plain(value, _=None):
    return f'{value:,.0f}' if value >= 1 else f'{value:g}'


def by_size(title, where, curves):
    """Label to pairs of a size and its values in ns. Medians, with the range of the rounds."""
    return lines(title, where, curves, 'bytes', 2, short)


def by_number(title, where, curves, what):
    """The same of a number of something."""
    return lines(title, where, curves, what, 10, decimal)


def lines(title, where, curves, what, base, name, unit='ns'):
    """A plot for `write`, of a unit of which less is better; None when there is nothing to draw."""
    curves = {label: sorted(points) for label, points in curves.items() if points}
    if not curves:
        return None
    return functools.partial(draw_lines, title, where, curves, what, base, name, unit)


def ratios(title, where, bars):
    """The same of rows: name, the ratios of the rounds, the target or None, and whether more is better. The first row
    is on top."""
    return functools.partial(draw_ratios, title, where, bars) if bars else None


def write(draw, path):
    """False when there is nothing to draw."""
    if draw is None:
        return False
    matplotlib = importlib.import_module('matplotlib')
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # A user's own matplotlibrc makes no other file.
        matplotlib.rcParams.update(SETTINGS)
        made = io.StringIO()
        title, figure = draw()
        figure.savefig(made, format='svg', metadata={'Title': title, 'Date': None, 'Creator': None})
    path.write_text(''.join(line.rstrip() + '\n' for line in made.getvalue().splitlines()), encoding='utf-8')
    return True


def page(title, where, width, height):
    """A figure with its only axes; sizes in pixels. `where` the figures are from is in small print below."""
    figure = importlib.import_module('matplotlib.figure').Figure(
        (width / PIXELS_AN_INCH, height / PIXELS_AN_INCH), dpi=PIXELS_AN_INCH, layout='constrained')
    axes = figure.subplots()
    figure.suptitle(literal(title), fontsize=13)
    figure.supxlabel(literal(where), x=0.01, ha='left', fontsize=8, color=FAINT)
    return figure, axes


def tick_plainly(axis, least, most):
    """Numbers instead of powers, and some between the powers of 10 where there are few."""
    ticker = importlib.import_module('matplotlib.ticker')
    axis.set_major_locator(ticker.LogLocator(10, subs=(1, 2, 5) if most < 1000 * least else (1,)))
    axis.set_major_formatter(ticker.FuncFormatter(plain))
    axis.set_minor_locator(ticker.NullLocator())


def draw_lines(title, where, curves, what, base, name, unit):
    figure, axes = page(title, where, 720, 460)
    axes.set_xscale('log', base=base)
    axes.set_yscale('log')
    for (label, points), (color, marker) in zip(curves.items(), itertools.cycle(LOOKS)):
        middles = [statistics.median(values) for _, values in points]
        spans = [[middle - min(values) for middle, (_, values) in zip(middles, points)],
                 [max(values) - middle for middle, (_, values) in zip(middles, points)]]
        axes.errorbar([size for size, _ in points], middles, spans, label=literal(label), color=color, marker=marker,
                      markersize=4, linewidth=1.4, elinewidth=1, capsize=3)
    sizes = sorted({size for points in curves.values() for size, _ in points})
    axes.set_xticks(sizes, [name(size) for size in sizes], fontsize=9)
    axes.xaxis.set_minor_locator(importlib.import_module('matplotlib.ticker').NullLocator())
    measured = [value for points in curves.values() for _, values in points for value in values]
    tick_plainly(axes.yaxis, min(measured), max(measured))
    axes.set_xlabel(what)
    axes.set_ylabel(f'{unit}, lower is better')
    if len(curves) > 1:
        axes.legend(loc='lower left', bbox_to_anchor=(0, 1), ncol=3 if len(curves) < 4 else 2, borderaxespad=0.2)
    return title, figure


def draw_ratios(title, where, bars):
    figure, axes = page(title, where, 960, 150 + 24 * len(bars))
    axes.set_xscale('log', base=2)
    measured = [value for _, values, _, _ in bars for value in values]
    axes.axvline(1, color=FAINT, linewidth=1, linestyle='--', label='as the peer')
    rounds = [(value, at) for at, (_, values, _, _) in enumerate(bars) for value in values]
    axes.plot(*zip(*rounds), 'o', color=FAINT, markerfacecolor='none', markersize=4, label='a round')
    for more, marker, color in ((False, '<', LOOKS[0][0]), (True, '>', LOOKS[2][0])):
        medians = [(statistics.median(values), at) for at, (_, values, _, each) in enumerate(bars) if each == more]
        if medians:
            axes.plot(*zip(*medians), marker, color=color, markersize=7,
                      label=f'median, {"higher" if more else "lower"} is better')
    targets = [(target, at) for at, (_, _, target, _) in enumerate(bars) if target is not None]
    if targets:
        axes.plot(*zip(*targets), '|', color=LOOKS[1][0], markersize=14, markeredgewidth=2.5,
                  label='target')
    axes.set_yticks(range(len(bars)), [literal(name) for name, _, _, _ in bars], fontsize=9.5)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    tick_plainly(axes.xaxis, min(measured), max(measured))
    axes.set_xlabel('ratio of ours to the peer')
    axes.legend(loc='lower right', bbox_to_anchor=(1, 1), ncol=5, borderaxespad=0.2)
    return title, figure
