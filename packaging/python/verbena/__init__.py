"""One-sided memory access, messages and a key-value store for HPC codes, over libverbena.so.0 (docs/python.md).

    import verbena
    from verbena import kv

    with kv.Client('host:7470') as store:
        store['greeting'] = b'hello'
"""

from . import errors, kv
from ._abi import calls as _calls
from .errors import VerbenaError
from .rdma import Access, Connection, Listener, Memory, Message, Operation, Window, connect

__all__ = ['Access', 'Connection', 'Listener', 'Memory', 'Message', 'Operation', 'VerbenaError', 'Window', 'connect',
           'errors', 'kv', 'version']
__version__ = '0.1.0'


def version() -> str:
    """The version of the loaded library."""
    return _calls.verbena_version().decode()
