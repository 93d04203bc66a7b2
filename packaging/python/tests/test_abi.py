"""_abi.py and errors.py say what the headers say: calls, structs, values, version."""

import ctypes
import pathlib
import re
import unittest

import verbena
from verbena import Access, _abi, errors

ROOT = pathlib.Path(__file__).resolve().parents[3]
INTEGERS = {'int': ctypes.c_int, 'unsigned': ctypes.c_uint, 'uid_t': ctypes.c_uint, 'size_t': ctypes.c_size_t,
            'uint32_t': ctypes.c_uint32, 'uint64_t': ctypes.c_uint64, 'int64_t': ctypes.c_int64,
            'void': None}
ENUMS = ['RdmaBootstrap', 'RdmaRecvMode', 'RdmaMessageKind', 'RdmaOperation', 'conn_mode_t', 'kv_lookup_t',
         'kv_evict_t']


def plain(name):
    """A header as C sees it, without comments."""
    text = (ROOT / 'include' / 'verbena' / name).read_text()
    text = re.sub(r'/\*.*?\*/', '', text, flags=re.DOTALL)
    return re.sub(r'^#ifdef __cplusplus$.*?^#endif$', '', text, flags=re.MULTILINE | re.DOTALL)


HEADERS = ''.join(plain(name) for name in ('rdma.h', 'kv.h', 'version.h'))


def kind_in_c(declaration):
    """What a declaration without its name is: a ctypes integer, 'pointer', or 'bytes'."""
    declaration = declaration.replace('const ', '').strip()
    if declaration == 'unsigned char':
        return 'bytes'
    if '*' in declaration or declaration.endswith('Func'):
        return 'pointer'
    return ctypes.c_uint if declaration in ENUMS else INTEGERS[declaration]


def kind_in_python(kind):
    if kind in (ctypes.c_char_p, ctypes.c_void_p) or kind is not None and issubclass(kind, (ctypes._Pointer,
                                                                                            ctypes._CFuncPtr)):
        return 'pointer'
    return 'bytes' if kind is not None and issubclass(kind, ctypes.Array) else kind


def without_name(declaration):
    return re.match(r'(.*?)\w+(?:\[\w+\])?$', ' '.join(declaration.split()))


def enumerators(header):
    """Constants of enums with their values."""
    values = {}
    for body in re.findall(r'^(?:typedef )?enum(?: \w+)?\s*{(.*?)}', header, re.MULTILINE | re.DOTALL):
        value = -1
        for name, said in re.findall(r'(\w+)(?: = (-?\d+))?\s*(?:,|$)', body.strip()):
            value = int(said) if said else value + 1
            values[name] = value
    return values


class AbiTest(unittest.TestCase):
    def test_calls(self):
        prototypes = {name: (result, arguments) for result, name, arguments in re.findall(
            r'^(?!typedef)([\w *]+?)((?:rdma|verbena_|kv_)\w+)\(([^;{]*)\);', HEADERS, re.MULTILINE)}
        self.assertGreater(len(prototypes), 100)
        for name, (result, arguments) in _abi.FUNCTIONS.items():
            with self.subTest(name):
                of_c, given = prototypes[name]
                self.assertEqual(kind_in_python(result), kind_in_c(of_c))
                wanted = [] if given == 'void' else [kind_in_c(without_name(each)[1]) for each in given.split(',')]
                self.assertEqual([kind_in_python(each) for each in arguments], wanted)

    def test_structs(self):
        structs = [each for each in vars(_abi).values()
                   if isinstance(each, type) and issubclass(each, ctypes.Structure)]
        self.assertGreater(len(structs), 9)
        for struct in structs:
            with self.subTest(struct.__name__):
                body = re.search(rf'^typedef struct \w+ {{\n([^}}]*?)^}} {struct.__name__};', HEADERS, re.MULTILINE)[1]
                fields = [' '.join(each.split()) for each in body.split(';') if each.strip()]
                wanted = [(re.search(r'(\w+)(?:\[\w+\])?$', each)[1], kind_in_c(without_name(each)[1]))
                          for each in fields]
                self.assertEqual([(name, kind_in_python(kind)) for name, kind in struct._fields_], wanted)

    def test_values(self):
        values = enumerators(HEADERS)
        codes = {name.removeprefix('KV_ERR_'): value for name, value in values.items() if name.startswith('KV_ERR_')}
        self.assertEqual({name: code for name, (code, _) in errors.CODES.items()}, codes)
        for name in ('TIMED_OUT', 'NOT_FOUND', 'BUFFER_TOO_SMALL', 'BAD_ARGUMENT', 'BUSY', 'CLOSED', 'NO_MEMORY'):
            self.assertEqual(getattr(errors, name), codes[name])
        for prefix, table in (('RDMA_BOOTSTRAP_', _abi.RDMA_BOOTSTRAP), ('CONN_MODE_', _abi.CONN_MODE),
                              ('KV_LOOKUP_', _abi.KV_LOOKUP), ('KV_EVICT_', _abi.KV_EVICT)):
            self.assertEqual({prefix + name.upper(): value for name, value in table.items()},
                             {name: value for name, value in values.items() if name.startswith(prefix)})
        self.assertEqual({f'RDMA_ACCESS_{name}': value.value for name, value in Access.__members__.items()},
                         {name: value for name, value in values.items() if name.startswith('RDMA_ACCESS_')})
        self.assertEqual(ctypes.sizeof(_abi.kv_key_page_t), 8 + values['KV_KEY_PAGE_BYTES'])
        self.assertEqual((_abi.MESSAGE_SENT, _abi.MESSAGE_WRITTEN, _abi.RECV_QUEUE),
                         (values['RDMA_MESSAGE'], values['RDMA_WRITTEN'], values['RDMA_RECV_QUEUE']))

    def test_version(self):
        version = re.search(r'^#define VERBENA_VERSION "(.*)"$', HEADERS, re.MULTILINE)[1]
        self.assertEqual([verbena.version(), verbena.__version__], [version, version])
        project = (ROOT / 'packaging' / 'python' / 'pyproject.toml').read_text()
        self.assertIn(f'\nversion = "{version}"\n', project)
        self.assertEqual(_abi.VERSION, tuple(int(each) for each in version.split('.')[:2]))


if __name__ == '__main__':
    unittest.main()
