#!/usr/bin/env python3
"""scripts/test.sh --changed runs what a change can reach: scripts/changed.py on a build of a few files.

usage: changed.py ROOT COMPILER..."""

import pathlib
import subprocess
import sys
import tempfile

from report import Report

FILES = {
    'src/kv/a.hpp': 'int a();\n',
    'src/kv/a.cpp': '#include "kv/a.hpp"\nint a() { return 1; }\n',
    'src/kv/b.cpp': 'int b() { return 2; }\n',
    'src/kv/inline.hpp': 'inline int three() { return 3; }\n',
    'test/kv/uses_a.cpp': '#include "kv/a.hpp"\nint main() { return a(); }\n',
    'test/kv/uses_b.cpp': '#include "kv/inline.hpp"\nint b();\nint main() { return b() + three(); }\n',
}
NINJA = '''
rule compile
  command = {compiler} -I {root}/src -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule archive
  command = rm -f $out; ar rcs $out $in
rule link
  command = {compiler} $in -o $out
build lib.a.p/a.o: compile {root}/src/kv/a.cpp
build lib.a.p/b.o: compile {root}/src/kv/b.cpp
build lib.a: archive lib.a.p/a.o lib.a.p/b.o
build uses_a.p/main.o: compile {root}/test/kv/uses_a.cpp
build uses_a: link uses_a.p/main.o lib.a
build uses_b.p/main.o: compile {root}/test/kv/uses_b.cpp
build uses_b: link uses_b.p/main.o lib.a
'''


def check_build(changed, compiler, report):
    with tempfile.TemporaryDirectory() as scratch:
        root = changed.ROOT = pathlib.Path(scratch).resolve()
        for name, text in FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding='utf-8')
        build = root / 'build'
        build.mkdir()
        (build / 'build.ninja').write_text(NINJA.format(compiler=compiler, root=root), encoding='utf-8')
        built = subprocess.run(['ninja'], cwd=build, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, check=False, timeout=300)
        report.check(built.returncode == 0, f'the build of a few files failed:\n{built.stdout}')
        programs = {build / 'uses_a', build / 'uses_b'}
        for name, expected in [('src/kv/a.cpp', {'uses_a'}), ('src/kv/b.cpp', {'uses_b'}), ('src/kv/a.hpp', {'uses_a'}),
                               ('src/kv/inline.hpp', {'uses_b'}), ('test/kv/uses_b.cpp', {'uses_b'}),
                               ('src/kv/new.hpp', set())]:
            found = changed.reached_programs(build, changed.objects_of(build, [name])[name], programs)
            report.check({path.name for path in found} == expected, f'{name} reaches {sorted(found)}')


def check_names(changed, report):
    for name, is_unknown in [('src/kv/store.cpp', False), ('docs/kv.md', False), ('README.md', False),
                             ('docs/adr/0001-a.md', False), ('test/house/abi.py', False), ('scripts/test.sh', True),
                             ('meson.build', True), ('src/kv/meson.build', True), ('.clang-tidy', True),
                             ('test/consumers/meson.build', True),
                             ('test/consumers/kv.f90', False),
                             ('packaging/python/verbena/kv.py', True), ('new.cpp', True),
                             ('bench/slices/run.py', False),
                             ('test/fuzz/corpus/kv_wire/x', False), ('subprojects/fmt.wrap', True)]:
        report.check(bool(changed.unknown_of([name])) == is_unknown, f'{name} reaches everything: {not is_unknown}')
    rooms = changed.rooms_of(['src/kv/store.cpp', 'test/mesh/mesh_test.cpp', 'include/verbena/kv.hpp', 'docs/kv.md'])
    report.check(rooms == {'kv', 'mesh'}, f'rooms: {sorted(rooms)}')


def main():
    root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2]
    sys.path[0] = str(root / 'scripts')  # In the place of this folder, whose changed.py is this one.
    sys.dont_write_bytecode = True
    import changed  # pylint: disable=import-outside-toplevel
    report = Report('changed')
    check_names(changed, report)
    check_build(changed, compiler, report)
    report.end()


main()
