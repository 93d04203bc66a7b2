#!/usr/bin/env python3
"""Sets a setting of the machine until its standard input ends, and then puts it back: also when the program that has
the other end of that pipe is killed.

usage: setting.py FILE VALUE      (FILE such as /proc/sys/vm/nr_hugepages)

Says what the file holds once it is set. Ends with 77 and a reason when it may not be set."""

import os
import pathlib
import signal
import sys

SKIP_CODE = 77


def main():
    if len(sys.argv) != 3:
        print('usage: setting.py FILE VALUE', file=sys.stderr)
        return 2
    file, value = pathlib.Path(sys.argv[1]), sys.argv[2]
    # The signals that end what waits for it: this one ends after it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        before = file.read_text(encoding='ascii').strip()
        file.write_text(value, encoding='ascii')
    except OSError as error:
        print(f'setting: {error}', flush=True)
        return SKIP_CODE
    try:
        print(file.read_text(encoding='ascii').strip(), flush=True)
        while os.read(0, 4096):
            pass
    finally:
        file.write_text(before, encoding='ascii')
    return 0


if __name__ == '__main__':
    sys.exit(main())
