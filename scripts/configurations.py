"""The builds that scripts/run_tests.py makes, as options of `meson setup`."""

# What a target has is compiled as one: half of a build's time goes into headers that its sources share.
TOGETHER = '-Dunity=on'
TESTS = ['-Dtests=enabled', '-Dprograms=enabled', TOGETHER]
DEBUG = ['--buildtype=debug', '-Dcpp_args=-g1', '-Db_lundef=false']
# The plain build has compiled them, and a sanitizer runs none.
NO_EXTRAS = ['-Dexamples=disabled', '-Dbenchmarks=disabled', '-Ddocs=disabled']
# Under a sanitizer the archive is optimized, and nothing else: to optimize what it has added takes 60 % of the build.
SANITIZED = [*DEBUG, *NO_EXTRAS, '-Doptimization=0', '-Darchive_optimization=1']
# Options of `meson setup`. The setup of the same name in test/meson.build says which tests run.
CONFIGURATIONS = {
    # What users get: optimized, without debug checks, the archive compiled source by source.
    'plain': [*TESTS, '--buildtype=release', '-Doptimization=1', '-Darchive_optimization=3', '-Darchive_unity=off'],
    # Debug checks are on under a sanitizer.
    'address': [*TESTS, *SANITIZED, '-Db_sanitize=address,undefined'],
    # The programs add a terminal and files to threads that the other suites have already.
    'thread': ['-Dtests=enabled', '-Dprograms=disabled', TOGETHER, *SANITIZED, '-Db_sanitize=thread'],
}
SANITIZERS = {'address': '-fsanitize=address,undefined', 'thread': '-fsanitize=thread'}
# Builds with a sanitizer are Clang's where there is one with a fuzzer: it takes half the time of GCC 12. The one with
# ASan has the fuzzing targets in it. The plain build is the default compiler's.
FUZZING = '-Dfuzzing=enabled'


def cached_in(log):
    """How many objects a build asked the compilers' cache for, and how many were there: by its CCACHE_STATSLOG."""
    words = log.read_text(encoding='utf-8').split() if log.exists() else []
    hits = words.count('direct_cache_hit') + words.count('preprocessed_cache_hit')
    return hits + words.count('cache_miss'), hits
