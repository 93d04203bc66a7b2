#!/usr/bin/env python3
"""Programs that are built outside of the tree against an installed Verbena, with compilers and pkg-config alone.

    consumers.py example FILE ROOT BUILD MESON      a program of examples/, by the commands of examples/README.md
    consumers.py TEST ROOT BUILD MESON              one of TESTS below
    consumers.py installed ROOT TEST...             some of TESTS with the Verbena that pkg-config finds (a package)
    consumers.py built BUILD                        runs again what `example` has built in BUILD, without compilers

Programs are left in BUILD/test/consumers, for the emulated machine of scripts/softroce.sh."""

import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'house'))
from report import Report, free_ports, free_ports_in_a_row, run, skip  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
# Callbacks need not look at all that they are given; numbers that were carried are the same to the last bit.
FORTRAN_FLAGS = ['-std=f2018', '-Wno-unused-dummy-argument', '-Wno-compare-reals']
COMPILERS = ['cc', 'c++', 'gfortran', 'mpicc', 'mpicxx']
SECTION = re.compile(r'^## (?P<title>.+)$', re.MULTILINE)
PROGRAM = re.compile(r'^`(?P<file>[\w.]+)`:\n\n```\w+\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r'^\[`(?P<file>[\w.]+)`\]\((?P=file)\):$', re.MULTILINE)
COMMANDS = re.compile(r'^```sh\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
SAID = re.compile(r'^```sh\n(?P<text>.*?)^```\n[^`]*```text\n(?P<said>.*?)^```$', re.MULTILINE | re.DOTALL)


class Section:
    """A program of examples/, as examples/README.md tells how to build and run it."""

    def __init__(self, file, commands):
        self.file, self.commands = file, commands

    def compilations(self):
        return [line for line in self.commands if line.split()[0] in COMPILERS]

    def runs(self):
        return [line for line in self.commands if line.split()[0] not in COMPILERS]


def sections(root):
    """By the programs' files."""
    text = (root / 'examples' / 'README.md').read_text()
    starts = [match.start() for match in SECTION.finditer(text)]
    found = {}
    for begin, end in zip(starts, [*starts[1:], len(text)]):
        example_of, commands = EXAMPLE.search(text, begin, end), COMMANDS.search(text, begin, end)
        if example_of:
            lines = commands['text'].splitlines() if commands else []
            found[example_of['file']] = Section(example_of['file'], lines)
    return found


def state_of(build):
    """A text that differs once a file of the installation does."""
    text = ''
    for source in sorted(json.loads((build / 'meson-info' / 'intro-installed.json').read_text())):
        if os.path.isfile(source):
            text += f'{source} {os.stat(source).st_mtime_ns} {os.stat(source).st_size}\n'
    return text


PREFIX = re.compile('^prefix=(.*)$', re.MULTILINE)


def prefix_of(pc):
    return PREFIX.search(pc.read_text())[1]


def move(pc, prefix):
    pc.write_text(PREFIX.sub(lambda _: f'prefix={prefix}', pc.read_text(), count=1))


def install(report, build, meson, where):
    """Installs into `where` as `meson install` would with a prefix there."""
    shutil.rmtree(where, ignore_errors=True)
    installed = run([meson, 'install', '--no-rebuild', '--tags', 'devel', '-C', build],
                    env={**os.environ, 'DESTDIR': str(where)})
    if not report.check(installed.returncode == 0, f'meson install failed:\n{installed.stdout}'):
        return
    for pc in where.rglob('verbena*.pc'):
        move(pc, f'{where}{prefix_of(pc)}')
    (where / 'state').write_text(state_of(build))


def stage(report, build, meson):
    """The installation that all tests of a build share, made by the first one. Returns what pkg-config needs, or
    None."""
    where = build / 'test' / 'consumers' / 'stage'
    where.parent.mkdir(parents=True, exist_ok=True)
    with open(where.parent / 'stage.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (where / 'state').exists() or (where / 'state').read_text() != state_of(build):
            install(report, build, meson, where)
    pcs = list(where.rglob('verbena.pc'))
    if not report.check(len(pcs) == 1, f'{len(pcs)} files verbena.pc are installed'):
        return None
    environment = {k: v for k, v in os.environ.items() if not k.startswith('PKG_CONFIG')}
    path = f'{build}/src/programs:{os.environ["PATH"]}'
    # Open MPI asks for these of root, as who runs in a container is.
    return {**environment, 'PKG_CONFIG_PATH': str(pcs[0].parent), 'PATH': path, 'VERBENA_BUILD': str(build),
            'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}


def shell(lines, directory, environment):
    """Runs lines of a shell, up to the first that fails, and ends what they left. Returns exit code and output."""
    process = subprocess.Popen(['bash', '-euo', 'pipefail', '-c', '\n'.join(lines)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=directory, env=environment,
                               text=True, errors='replace', start_new_session=True)
    output, _ = process.communicate()
    code = process.returncode
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return code, output


def lack(lines, environment):
    """Which command of `lines` the machine lacks, or None."""
    packages = {'cmake': 'cmake', 'gfortran': 'gfortran', 'mpicc': 'libopenmpi-dev', 'mpicxx': 'libopenmpi-dev',
                'mpirun': 'openmpi-bin', 'patch': 'patch', 'cc': 'gcc', 'c++': 'g++'}
    for line in lines:
        tool = line.split()[0]
        if (tool in packages or tool == 'verbena-kv') and not shutil.which(tool, path=environment['PATH']):
            return f'{tool} is not there ({packages.get(tool, "-Dprograms=enabled makes it")})'
        if 'verbena-pmix' in line and run(['pkg-config', '--exists', 'verbena-pmix'], env=environment).returncode != 0:
            return 'libverbena-pmix.a is not built (libpmix-dev, -Dpmix)'
    return None


def need(name, lines, environment):
    """Skips the test where the machine lacks a command of `lines`."""
    if reason := lack(lines, environment):
        skip(name, reason)


def with_free_ports(text):
    """The text with ports that nobody has for 7471 to 7479, which somebody may have."""
    named = sorted(set(re.findall(r'\b747[1-9]\b', text)))
    ports = dict(zip(named, free_ports(len(named))))
    return re.sub(r'\b747[1-9]\b', lambda match: str(ports[match[0]]), text)


def example(report, file, root, build, meson):
    """A program, by its section's commands, as a reader would paste them."""
    section = sections(root).get(file)
    if not report.check(section is not None, f'examples/README.md has no program {file}'):
        return
    if not report.check(section.commands and section.compilations() and section.runs(), f'{file}: no commands'):
        return
    environment = stage(report, build, meson)
    if environment is None:
        return
    need(report.name, section.commands, environment)
    section.commands = with_free_ports('\n'.join(section.commands)).splitlines()
    work = build / 'test' / 'consumers' / file
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    shutil.copy(root / 'examples' / file, work)
    code, output = shell(section.commands, work, environment)
    print(output)
    report.check(code == 0, f'{file}: ended with {code}')
    report.check(output.strip(), f'{file}: printed nothing')
    # For `built`.
    (work / 'commands').write_text('\n'.join(section.runs()) + '\n')


def compile_in(work, environment, compiler, source, program, flags=()):
    """Compiles as users do who want warnings to be errors. Returns the program, or None."""
    fortran = '$(pkg-config --variable=fortran verbena)' if compiler == 'gfortran' else ''
    code, output = shell([f'{compiler} -Wall -Wextra -Werror {shlex.join(flags)} {fortran} {source} '
                          f'$(pkg-config --cflags --libs verbena) -o {program}'], work, environment)
    if code != 0:
        print(output)
        return None
    return work / program


def languages(report, root, work, environment):
    """A server in each language serves clients in each: what is installed is one library."""
    need(report.name, ['cc', 'c++', 'gfortran'], environment)
    examples = root / 'examples'
    c = compile_in(work, environment, 'cc', examples / 'pingpong.c', 'pingpong_c', ['-std=gnu11'])
    cxx = compile_in(work, environment, 'c++', examples / 'pingpong.cpp', 'pingpong_cxx', ['-std=c++23'])
    fortran = compile_in(work, environment, 'gfortran', examples / 'hello.f90', 'hello_f', FORTRAN_FLAGS)
    if not report.check(c and cxx and fortran, 'an example does not compile'):
        return
    for server in (c, cxx):
        for client in (c, cxx, fortran):
            code, output = shell([f'{server} serve | (read port; {client} $port)'], work, environment)
            print(output, end='')
            report.check(code == 0, f'{client.name} with {server.name} ended with {code}:\n{output}')


# The types of C in the interfaces of verbena.f90.
FORTRAN = {
    'int': 'integer(c_int)', 'unsigned': 'integer(c_int)', 'size_t': 'integer(c_size_t)',
    'uint32_t': 'integer(c_int32_t)', 'uint64_t': 'integer(c_int64_t)', 'RdmaConn *': 'type(rdma_conn)',
    'RdmaListener *': 'type(rdma_listener)', 'RdmaNode *': 'type(rdma_node)', 'void *': 'type(c_ptr)',
    'char *': 'type(c_ptr)', 'unsigned *': 'type(c_ptr)', 'RdmaMemory *': 'type(c_ptr)',
    'RdmaMessageKind': 'integer(c_int)', 'RdmaBootstrap': 'integer(c_int)', 'RdmaRecvMode': 'integer(c_int)',
    'RdmaOperation': 'integer(c_int)', 'verbena_log_level': 'integer(c_int)', 'void': None,
    'mesh_t *': 'type(mesh_t)', 'mesh_lane_t *': 'type(mesh_lane_t)', 'mesh_carrier_t *': 'type(mesh_carrier_t)',
    'uid_t *': 'type(c_ptr)', 'mesh_kind_t': 'integer(c_int)', 'mesh_which_t': 'integer(c_int)',
    'mesh_wait_policy_t': 'integer(c_int)', 'kv_client_t *': 'type(kv_client_t)', 'kv_server_t *': 'type(kv_server_t)',
    'conn_mode_t': 'integer(c_int)', 'kv_lookup_t': 'integer(c_int)',
    'kv_evict_t': 'integer(c_int)', 'uid_t': 'integer(c_int)',
    'kv_grant_t *': 'type(c_ptr)', 'int64_t': 'integer(c_int64_t)', 'unsigned char': 'character(kind=c_char)',
}
STRUCTS = {'RdmaOptions': 'c_options', 'RdmaNodeOptions': 'c_node_options', 'RdmaMessage': 'rdma_incoming',
           'RdmaMemory': 'rdma_memory', 'RdmaWindow': 'rdma_window', 'RdmaCompletion': 'rdma_completion',
           'mesh_options_t': 'c_mesh_options', 'mesh_window_t': 'mesh_window_t',
           'mesh_completion_t': 'mesh_completion_t', 'mesh_counters_t': 'mesh_counters_t',
           'kv_client_options_t': 'c_kv_client_options', 'kv_server_options_t': 'c_kv_server_options',
           'kv_grant_t': 'c_kv_grant', 'kv_cell_t': 'kv_cell_t', 'kv_get_item_t': 'kv_get_item_t',
           'kv_put_item_t': 'kv_put_item_t', 'kv_cursor_t': 'kv_cursor_t', 'kv_key_page_t': 'kv_key_page_t'}
HANDLES = {'RdmaListener': 'rdma_listener', 'RdmaConn': 'rdma_conn', 'RdmaNode': 'rdma_node', 'mesh_t': 'mesh_t',
           'mesh_lane_t': 'mesh_lane_t', 'mesh_carrier_t': 'mesh_carrier_t', 'kv_client_t': 'kv_client_t',
           'kv_server_t': 'kv_server_t'}
# Arguments that a call reads before it changes them. `expected` may be the same variable as one of them; gfortran would
# take it for undefined if the other were intent(out).
CHANGED = {'kv_client_get.len', 'kv_client_get_version.len', 'kv_client_get_items.items', 'kv_client_put_items.items',
           'kv_client_put_items_ttl.items', 'kv_client_batch_get.vlens', 'kv_client_cas.version',
           'kv_client_cell_compare_swap.old',
           'rdmaSyncCompareSwap.old', 'rdmaPASyncCompareSwap.old', 'kv_client_keys.cursor', 'kv_key_page_next.at'}
# Their text has another name in Fortran, or an owner: rdmaErrorText, mesh_error_text, kv_error_text, kv_get.
HIDDEN = {'rdmaErrorString', 'mesh_error_string', 'kv_error_string', 'kv_release'}
# They have other names there: Fortran ignores the case of names, and mesh_send is a call.
RENAMED = re.compile(r'^MESH_(SEND|WRITE|READ|ATOMIC|RECEIVE|WRITTEN|JOINED|LEFT)$')
VARIABLE = re.compile(r'^(?:const )?((?:unsigned char\b|\w+) ?\**)\s*?(\w+(?:\[\w+\])?)$')


def variable(text):
    """Type, whether it is const, and name of a C declaration."""
    kind, name = VARIABLE.match(' '.join(text.split())).groups()
    return kind.strip(), text.strip().startswith('const '), name


def argument(call, name, kind, is_const):
    """How an interface of verbena.f90 declares an argument of C's."""
    intent = f'intent({"in" if is_const else "inout" if f"{call}.{name}" in CHANGED else "out"})'
    if kind == 'char *' and call not in HIDDEN:
        return f'character(kind=c_char), {intent}'
    if kind.lower().endswith('func') or kind == 'mesh_all_gather_t':
        return 'type(c_funptr), value ::'
    if kind in ('void **', 'char **'):
        return f'type(c_ptr), {intent} ::'
    if kind.endswith(' **'):
        return f'type({HANDLES[kind[:-3]]}), intent(out) ::'
    if kind.endswith(' *') and kind[:-2] in STRUCTS:
        return f'type({STRUCTS[kind[:-2]]}), {intent}'
    if kind in ('uint64_t *', 'int64_t *', 'size_t *'):
        return f'{FORTRAN[kind[:-2]]}, {intent}'
    return f'{FORTRAN[kind]}, value ::'


def struct_variables(header, struct):
    """`variable` of each field of a C struct."""
    text = re.search(rf'^typedef struct {struct.removesuffix("_t")} {{\n(.*?)^}} {struct};', header,
                     re.MULTILINE | re.DOTALL)[1]
    return [variable(line) for line in text.replace('\n', ' ').split(';') if line.strip()]


def struct_fields(header, struct):
    return [name.split('[')[0] for _, _, name in struct_variables(header, struct)]


def fields(header, module, struct):
    """Fields of a struct in C and of its type in Fortran, each as (Fortran's type, name)."""
    of_c = struct_variables(header, struct)
    f = re.search(rf'^ *type, bind\(C\)(?:, public)? :: {STRUCTS[struct]}\n(.*?)^ *end type', module,
                  re.MULTILINE | re.DOTALL)[1]
    return ([(FORTRAN[kind], name.replace('[', '(').replace(']', ')')) for kind, _, name in of_c],
            [tuple(line.strip().split(' = ')[0].split(' :: ')) for line in f.splitlines()])


def layouts_in_c(header):
    """A C program that prints the size of each struct and the offset of each of its fields."""
    lines = []
    for struct in STRUCTS:
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        lines += [f'printf("{struct}.{name} %zu\\n", offsetof({struct}, {name}));'
                  for name in struct_fields(header, struct)]
    lines += [f'printf("{handle} %zu\\n", sizeof({handle}*));' for handle in HANDLES]
    return ('#include <stddef.h>\n#include <stdio.h>\n#include <verbena/kv.h>\n#include <verbena/mesh.h>\n'
            '#include <verbena/rdma.h>\n\nint main(void) {\n'
            + '\n'.join(lines) + '\nreturn 0;\n}\n')


def layouts_in_fortran(header):
    """The same in Fortran. It reads the module's private types, so it needs a module without `private`."""
    types = [f'type({name}), target :: {name}_' for name in [*STRUCTS.values(), *HANDLES.values()]]
    lines = []
    for struct, name in STRUCTS.items():
        lines.append(f"print '(a, i0)', '{struct} ', c_sizeof({name}_)")
        lines += [f"print '(a, i0)', '{struct}.{field} ', address(c_loc({name}_%{field})) - address(c_loc({name}_))"
                  for field in struct_fields(header, struct)]
    lines += [f"print '(a, i0)', '{handle} ', c_sizeof({name}_)" for handle, name in HANDLES.items()]
    return '\n'.join(['program layouts', 'use verbena', 'use, intrinsic :: iso_c_binding', 'implicit none', *types,
                      *lines, 'contains', 'function address(pointer)', 'type(c_ptr), intent(in) :: pointer',
                      'integer(c_int64_t) :: address', 'address = transfer(pointer, address)', 'end function',
                      'end program', ''])


def layouts(report, root, work, environment):
    """The compilers lay out the types of verbena.f90 as the C compiler lays out the structs of the headers."""
    need(report.name, ['cc', 'gfortran'], environment)
    header = ''.join(plain_header(root, name) for name in ('rdma.h', 'mesh.h', 'kv.h'))
    module = (root / 'include' / 'verbena' / 'verbena.f90').read_text()
    (work / 'open.f90').write_text(re.sub(r'^  private$', '', module, count=1, flags=re.MULTILINE))
    (work / 'layouts.c').write_text(layouts_in_c(header))
    (work / 'layouts.f90').write_text(layouts_in_fortran(header))
    printed = []
    for commands in (['cc -std=c11 -Wall -Werror layouts.c $(pkg-config --cflags verbena) -o layouts_c', './layouts_c'],
                     ['gfortran -ffree-line-length-none open.f90 layouts.f90 $(pkg-config --libs verbena) '
                      '-o layouts_f', './layouts_f']):
        code, output = shell(commands, work, environment)
        if not report.check(code == 0, f'{commands} ended with {code}:\n{output}'):
            return
        printed.append(output.split('\n'))
    report.check(len(printed[0]) > 40, f'C prints only {printed[0]}')
    for of_c, of_fortran in zip(*printed, strict=True):
        report.check(of_c == of_fortran, f'C has "{of_c}", Fortran "{of_fortran}"')


def with_shared(work, environment):
    """A copy of the installation in `work`, where the shared library lies beside the archive, as
    -Ddefault_library=both installs it. Returns what pkg-config needs for it."""
    pkgconfig = pathlib.Path(environment['PKG_CONFIG_PATH'])
    prefix = prefix_of(pkgconfig / 'verbena.pc')
    shutil.copytree(prefix, work / 'both', symlinks=True)
    pkgconfig = work / 'both' / pkgconfig.relative_to(prefix)
    for pc in pkgconfig.glob('verbena*.pc'):
        move(pc, work / 'both')
    libdir = pkgconfig.parent
    for library in (pathlib.Path(environment['VERBENA_BUILD']) / 'src').glob('libverbena.so*'):
        if not library.is_dir():
            shutil.copy(library, libdir, follow_symlinks=False)
    return {**environment, 'PKG_CONFIG_PATH': str(pkgconfig)}


def static(report, _, work, environment):
    """With both libraries installed `verbena-static` links the archive, as it stands, by each compiler that is there;
    `verbena` takes the shared one."""
    environment = with_shared(work, environment)
    library = pathlib.Path(run(['pkg-config', '--variable=libdir', 'verbena-static'], env=environment).stdout.strip())
    if not report.check(library.is_dir(), f'verbena-static names no libdir: {library}'):
        return
    soname = re.search(r'SONAME.*\[(.*)\]', run(['readelf', '-d', library / 'libverbena.so']).stdout)[1]
    (work / 'version.c').write_text('#include <stdio.h>\n#include <verbena/rdma.h>\n#include <verbena/version.h>\n'
                                    'int main(void) { return puts(verbena_version()) < 0; }\n')
    shutil.copy(work / 'version.c', work / 'version.cpp')
    shutil.copy(HERE / 'windows.f90', work)
    module = '$(pkg-config --variable=fortran verbena)'
    for tool, sources in [('cc', 'version.c'), ('c++', 'version.cpp'), ('mpicc', 'version.c'),
                          ('gfortran', f'{module} windows.f90')]:
        if not shutil.which(tool):
            print(f'{report.name}: no {tool}')
            continue
        for package, is_shared in [('verbena-static', False), ('verbena', True)]:
            name = f'{tool}_{package}'
            code, output = shell([f'{tool} {sources} $(pkg-config --cflags --libs {package}) -o {name}',
                                  f'LD_LIBRARY_PATH={library} ./{name}'], work, environment)
            if not report.check(code == 0, f'{tool} with {package} ended with {code}:\n{output}'):
                continue
            needed = re.findall(r'NEEDED.*\[(.*)\]', run(['readelf', '-d', work / name]).stdout)
            report.check((soname in needed) == is_shared, f'{tool} with {package} needs {needed}')


def plain_header(root, name):
    """A C header without its comments, with pointers as `type *name`, whatever the formatter does, and as C sees it."""
    text = re.sub(r'/\*.*?\*/', '', (root / 'include' / 'verbena' / name).read_text(), flags=re.DOTALL)
    text = re.sub(r'^#ifdef __cplusplus$.*?^#endif$', '', text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r'(\w)(\*+) ', r'\1 \2', re.sub(r'(?:const )?(\w+)\* const\* ', r'const \1** ', text))


def enumerators(header):
    """The constants of C's enums, with their values."""
    values = {}
    for body in re.findall(r'^(?:typedef )?enum(?: \w+)?\s*{(.*?)}', header, re.MULTILINE | re.DOTALL):
        value = -1
        for name, said in re.findall(r'(\w+)(?: = (-?\d+))?\s*(?:,|$)', body.strip()):
            value = int(said) if said else value + 1
            values[name] = value
    return values


def fortran(report, root, work, environment):
    """The module says what the headers say: names, values, layouts, arguments. And its calls do what they should."""
    header = ''.join(plain_header(root, name) for name in ('rdma.h', 'mesh.h', 'kv.h', 'version.h', 'log.h'))
    module = (root / 'include' / 'verbena' / 'verbena.f90').read_text()
    values = enumerators(header)
    report.check(len(values) > 140, f'only {len(values)} values are found in the headers')
    for name, value in values.items():
        name = RENAMED.sub(r'MESH_KIND_\1', name)
        report.check(re.search(rf'\b{name} = {value}\b', module), f'verbena.f90 lacks {name} = {value}')
    for struct in STRUCTS:
        c, f = fields(header, module, struct)
        report.check(c == f, f'{struct} is {c}, and in verbena.f90 {f}')
    public = ' '.join(re.findall(r'^ *public ::((?:&\n|[^\n])*)', module, re.MULTILINE))
    interfaces = {re.sub('^verbena_(?=rdma|mesh|kv)', '', name): (head, body)
                  for head, name, body in re.findall(
        r"^ *((?:function|subroutine) [^\n]*?(?:&\n[^\n]*?)?)bind\(C, name='(verbena_\w+)'\)\n(.*?)^ *end ", module,
        re.MULTILINE | re.DOTALL)}
    prototypes = re.findall(r'^(?!typedef)([\w *]+?)((?:rdma|verbena_|mesh_|kv_)\w+)\(([^;{]*)\);', header,
                            re.MULTILINE)
    report.check(len(prototypes) > 130, f'only {len(prototypes)} calls are found in the headers')
    for result, name, arguments in prototypes:
        # These are the same calls without a pointer of the user's own.
        if re.match(r'rdma(Server|Conn)Set\w*Callback$', name):
            continue
        if not report.check(name in interfaces, f'verbena.f90 lacks {name}'):
            continue
        head, body = interfaces[name]
        lines = [line.strip() for line in body.splitlines() if line.strip() != 'import']
        wanted = [] if arguments == 'void' else [variable(text) for text in arguments.split(',')]
        names = re.search(r'\((.*)\)', head)[1].split(', ') if wanted else []
        report.check(len(names) == len(wanted), f'{name} takes {names} in verbena.f90, and {arguments} in C')
        # Programs may name arguments. A few of rdma.h have other names there.
        report.check(name.startswith('rdma') or names == [c_name for _, _, c_name in wanted],
                     f'{name} takes {names} in verbena.f90, and {arguments} in C')
        for (kind, is_const, c_name), fortran_name in zip(wanted, names):
            declared = argument(name, c_name, kind, is_const)
            line = next((line for line in lines if re.search(rf':: {fortran_name}\b', line)), '')
            report.check(line.startswith(declared), f'{name}: {line} in verbena.f90 is not {declared} {fortran_name}')
        kind = FORTRAN[result.replace('const ', '').strip()]
        if kind:
            report.check(any(line.startswith(f'{kind} ::') for line in lines), f'{name} is not {kind} in verbena.f90')
        report.check(head.startswith('function' if kind else 'subroutine'), f'{name} is a {head}')
        report.check(name in HIDDEN or re.search(rf'\b{name}\b', public), f'{name} is not public')
    if report.failures:
        return
    need(report.name, ['gfortran'], environment)
    version = re.search(r'^#define VERBENA_VERSION "(.*)"$', header, re.MULTILINE)[1]
    ports = ' '.join(str(port) for port in free_ports(2))
    of_two = [f'mkdir blobs; ./mesh 1 blobs {ports} & first=$!', f'./mesh 0 blobs {ports}; wait $first']
    for name, commands, said in (('calls', ['./calls'], ''), ('windows', ['./windows'], f'verbena {version}\n'),
                                 ('mesh', of_two, ''), ('kv', ['./kv'], '')):
        program = compile_in(work, environment, 'gfortran', HERE / f'{name}.f90', name, FORTRAN_FLAGS)
        if report.check(program, f'{name}.f90 does not compile'):
            code, output = shell(commands, work, environment)
            report.check(code == 0 and output == said, f'{name}.f90 ended with {code}:\n{output}')


def readme(report, root, work, environment):
    """The README's program, and those of docs/using.md: their commands print what the pages say."""
    page(report, root, work, environment, '../README.md', 1)
    page(report, root, work, environment, 'using.md', 2)


def page(report, root, work, environment, name, fewest):
    """The programs of a page of docs/, by the page's commands, print what the page says."""
    text = with_free_ports((root / 'docs' / name).read_text())
    programs = list(PROGRAM.finditer(text))
    fences = re.findall(r'^```(c|cpp|diff|fortran)$', text, re.MULTILINE)
    report.check(len(programs) == len(fences) >= fewest, f'docs/{name}: {len(fences)} programs, {len(programs)} named')
    for program in programs:
        (work / program['file']).write_text(program['text'])
    blocks = list(SAID.finditer(text))
    report.check(len(blocks) == text.count('```sh\n'), f'docs/{name}: commands without what they print')
    lacking = None
    for block in blocks:
        commands = block['text'].splitlines()
        # The others are run all the same.
        if reason := lack(commands, environment):
            lacking = reason
            continue
        code, output = shell(commands, work, environment)
        print(output)
        report.check(code == 0 and 'warning:' not in output, f'docs/{name}: {commands} ended with {code}:\n{output}')
        missing = set(block['said'].splitlines()) - set(output.splitlines())
        report.check(not missing, f'docs/{name}: {commands} do not print {missing}')
    compiled = {word for block in blocks for word in block['text'].split()}
    report.check(all(program['file'] in compiled for program in programs), f'docs/{name}: a program is not compiled')
    if lacking and not report.failures:
        skip(report.name, lacking)


def guide(report, root, work, environment):
    page(report, root, work, environment, 'guide.md', 6)


def mesh(report, root, work, environment):
    page(report, root, work, environment, 'mesh.md', 8)


def pool(report, root, work, environment):
    page(report, root, work, environment, 'pool-and-table.md', 1)


def store(report, root, work, environment):
    page(report, root, work, environment, 'kv-guide.md', 5)


def physical(report, root, work, environment):
    """The functions of docs/physical-addressing.md compile with what is installed. Running them takes a privilege."""
    need(report.name, ['c++'], environment)
    blocks = re.findall(r'^```cpp\n(.*?)^```$', (root / 'docs' / 'physical-addressing.md').read_text(),
                        re.MULTILINE | re.DOTALL)
    report.check(blocks, 'docs/physical-addressing.md holds no functions')
    for number, text in enumerate(blocks):
        source = work / f'physical_{number}.cpp'
        source.write_text(text)
        report.check(compile_in(work, environment, 'c++', source, f'physical_{number}.o', ['-std=c++23', '-c']),
                     f'docs/physical-addressing.md: does not compile:\n{text}')


def nova(report, root, work, environment):
    """A program of RDMALib's users, by two and by four processes."""
    need(report.name, ['c++'], environment)
    program = compile_in(work, environment, 'c++', HERE / 'rdmalib.cpp', 'rdmalib', ['-std=c++23'])
    if not report.check(program, 'rdmalib.cpp does not compile'):
        return
    for servers in (2, 4):
        port = free_ports_in_a_row(servers)
        hosts = ','.join(f'127.0.0.1:{11211 + server}' for server in range(servers))
        starts = [f'{program} {hosts} {server} {port} & all+=($!)' for server in range(servers)]
        code, output = shell(['all=()', *starts, 'for one in "${all[@]}"; do wait $one; done'], work, environment)
        said = {f'server {server} has heard from {servers - 1}' for server in range(servers)}
        report.check(code == 0 and set(output.splitlines()) == said, f'{servers} servers ended with {code}:\n{output}')


def cmake_project(work, libdir, environment, text, languages='NONE'):
    """Configures a project that holds `text`. Returns what CMake ended with, and printed."""
    project = pathlib.Path(tempfile.mkdtemp(dir=work))
    (project / 'CMakeLists.txt').write_text(
        f'cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES {languages})\n{text}\n')
    return shell([f'cmake -S {project} -B {project}/build -Dverbena_DIR={libdir}/cmake/verbena'], work, environment)


def cmake_consumers(report, root, work, environment, kind, option):
    """Programs in C, C++ and Fortran of one CMake project, with the library that find_package has found."""
    build = pathlib.Path(tempfile.mkdtemp(dir=work))
    code, output = shell([f'cmake -S {HERE}/cmake -B {build} -DVERBENA={root} {option}', f'cmake --build {build}'],
                         work, environment)
    if not report.check(code == 0 and 'warning' not in output.lower(), f'{kind}: does not build by CMake:\n{output}'):
        return
    for name in ('in_c', 'in_cxx', 'in_fortran'):
        needed = run(['readelf', '-d', build / name]).stdout
        report.check(('libverbena.so' in needed) == (kind == 'shared'), f'{name} is not linked with the {kind} one')
        code, output = shell([str(build / name)], work, environment)
        report.check(code == 0, f'{kind}: {name}, built by CMake, ended with {code}:\n{output}')


def cmake(report, root, work, environment):
    """find_package gives the archive, or the shared library where there is one, and the Fortran module; it refuses
    versions and components that are not there."""
    need(report.name, ['cmake', 'cc', 'c++', 'gfortran'], environment)
    pc = pathlib.Path(environment['PKG_CONFIG_PATH'])
    libdir = pc.parent
    prefix = prefix_of(pc / 'verbena.pc')
    # The archive's libraries are the system's; verbena.pc itself is not asked.
    environment = {k: v for k, v in environment.items() if k != 'PKG_CONFIG_PATH'} | {'CMAKE_PREFIX_PATH': prefix}
    for request, found in (('0.1', True), ('0.1.0 EXACT', True), ('0', True), ('0.1...<1', True), ('0.0', False),
                           ('0.2', False), ('1', False), ('0.2...1', False), ('0...<0.1', False)):
        code, output = cmake_project(work, libdir, environment, f'find_package(verbena {request} CONFIG REQUIRED)')
        report.check((code == 0) == found, f'find_package(verbena {request}) ended with {code}:\n{output}')
    for component, reason in (('Cobol', 'has no component Cobol'), ('Fortran', 'LANGUAGES Fortran')):
        code, output = cmake_project(work, libdir, environment,
                                     f'find_package(verbena CONFIG REQUIRED COMPONENTS {component})')
        report.check(code != 0 and reason in output, f'component {component} ended with {code}:\n{output}')
    text = ('find_package(verbena CONFIG REQUIRED)\n'
            f'try_compile(BUILT ${{CMAKE_BINARY_DIR}}/try {root}/examples/hello.c LINK_LIBRARIES verbena::verbena)\n'
            'if(NOT BUILT)\n  message(FATAL_ERROR "does not link")\nendif()')
    code, output = cmake_project(work, libdir, environment, text, 'C')
    report.check(code == 0, f'a project of C alone ended with {code}:\n{output}')
    if 'VERBENA_BUILD' in environment:
        cmake_consumers(report, root, work, environment, 'static', '')
        with_shared(work, {'PKG_CONFIG_PATH': pc, **environment})
        environment['CMAKE_PREFIX_PATH'] = str(work / 'both')
    cmake_consumers(report, root, work, environment, 'shared', '')
    cmake_consumers(report, root, work, environment, 'static', '-DVERBENA_USE_STATIC_LIBS=ON')


TESTS = {'cmake': cmake, 'languages': languages, 'layouts': layouts, 'fortran': fortran, 'readme': readme,
         'guide': guide, 'mesh': mesh, 'nova': nova, 'physical': physical, 'pool': pool, 'static': static,
         'store': store}


def installed(root, names):
    """Tests with the archive and the shared library that the machine has, as packages install them: nothing is staged.
    Whoever asks for a test has installed what it needs, so one that is skipped has failed."""
    asked = run(['pkg-config', '--variable=pcfiledir', 'verbena'])
    if asked.returncode != 0:
        sys.exit(f'consumers: pkg-config finds no verbena:\n{asked.stdout}')
    environment = {**os.environ, 'PKG_CONFIG_PATH': asked.stdout.strip()}
    for name in names:
        report = Report(f'consumers {name}, installed')
        with tempfile.TemporaryDirectory(prefix='verbena-consumer-') as directory:
            TESTS[name](report, root, pathlib.Path(directory), environment)
        if report.failures:
            report.end()
        print(f'{report.name}: passed', flush=True)


def built(report, build):
    """On another machine that sees this one's files, where compilers would take long."""
    directories = sorted(path.parent for path in (build / 'test' / 'consumers').glob('*/commands'))
    if not directories:
        skip('consumers', f'nothing is built in {build}: meson test -C {build} --suite consumers')
    environment = {**os.environ, 'PATH': f'{build}/src/programs:{os.environ["PATH"]}', 'OMPI_ALLOW_RUN_AS_ROOT': '1',
                   'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
    for directory in directories:
        with tempfile.TemporaryDirectory() as scratch:
            # A port that a server had the last time is nobody's.
            shutil.copytree(directory, scratch, dirs_exist_ok=True, ignore=shutil.ignore_patterns('port'))
            code, output = shell((directory / 'commands').read_text().splitlines(), scratch, environment)
        print(f'{directory.name}:\n{output}', flush=True)
        report.check(code == 0 and output.strip(), f'{directory.name}: ended with {code}')


def main():
    what, *rest = sys.argv[1:]
    if what == 'installed':
        root, *names = rest
        installed(pathlib.Path(root).resolve(), names)
        return
    if what == 'built':
        report = Report('consumers')
        built(report, pathlib.Path(rest[0]).resolve())
        report.end()
    if what == 'example':
        file, *rest = rest
        report = Report(file)
        example(report, file, *(pathlib.Path(a) for a in rest))
        report.end()
    root, build, meson = (pathlib.Path(a) for a in rest)
    report = Report(f'consumers {what}')
    with tempfile.TemporaryDirectory(prefix='verbena-consumer-') as directory:
        environment = stage(report, build, meson)
        if environment is not None:
            TESTS[what](report, root, pathlib.Path(directory), environment)
    report.end()


main()
