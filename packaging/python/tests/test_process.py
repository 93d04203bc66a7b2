"""How a process ends that leaves things open, forks, or lacks the library."""

import os
import pathlib
import subprocess
import sys
import textwrap
import unittest

from support import PATIENCE_S

SET_UP = '''
import os, sys
import verbena
from support import DEVICE
from verbena import errors, kv
server = kv.Server('127.0.0.1', device=DEVICE, memory_bytes=16 << 20, pin_workers=False)
client = kv.Client(f'127.0.0.1:{server.port}', device=DEVICE)
listener = verbena.Listener('127.0.0.1', device=DEVICE)
conn = verbena.connect('127.0.0.1', listener.port, device=DEVICE)
peer = listener.accept()
'''


def run(program, **environment):
    return subprocess.run([sys.executable, '-c', textwrap.dedent(program)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S,
                          cwd=pathlib.Path(__file__).parent, env={**os.environ, **environment}, check=False)


class ProcessTest(unittest.TestCase):
    def test_everything_is_left_open(self):
        ended = run(SET_UP + "client.put('key', b'1')\nprint('end')")
        self.assertEqual((ended.returncode, ended.stdout), (0, 'end\n'))

    def test_views_are_left(self):
        # Finalizers that run while the interpreter ends may still use them.
        ended = run(SET_UP + '''
class Reader:
    def __init__(self, view):
        self.view = view

    def __del__(self):
        self.view[:1] = b'x'

    readers = []

Reader.readers = [Reader(client.allocate(4096)), Reader(conn.window()), Reader(peer.register(4096).view()),
                  Reader(listener.register(4096).view())]
''')
        self.assertEqual((ended.returncode, ended.stdout), (0, ''))

    def test_a_fork_is_refused_and_harmless(self):
        ended = run(SET_UP + '''
client.put('key', b'1')
child = os.fork()
if child == 0:
    for call in (lambda: client.get('key'), lambda: client.put_many([('key', b'2')])):
        try:
            call()
        except errors.ResourceError as error:
            if error.code != errors.CODES['FORKED'][0]:
                sys.exit(1)
        else:
            sys.exit(2)
    sys.exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, client.get('key'))
''')
        self.assertEqual((ended.returncode, ended.stdout), (0, "0 b'1'\n"))

    def test_a_missing_library_is_named(self):
        ended = run('import verbena', VERBENA_LIBRARY='/no/such/library.so')
        self.assertEqual(ended.returncode, 1)
        self.assertIn('ImportError: verbena needs libverbena.so.0', ended.stdout)
        self.assertIn('/no/such/library.so', ended.stdout)


if __name__ == '__main__':
    unittest.main()
