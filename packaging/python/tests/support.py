"""What the tests share."""

import os
import time

DEVICE = os.environ.get('VERBENA_NIC', 'soft')
PATIENCE_S = 60


def numpy_or_skip(test):
    try:
        import numpy
    except ImportError:
        test.skipTest('numpy is not there (Debian: python3-numpy)')
    return numpy


def waits_for(condition):
    """Yields to other threads until the condition holds. False: it never did."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0)
    return True
