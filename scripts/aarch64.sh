#!/usr/bin/env bash
# Builds the archive and a selection of its suites for AArch64, and runs them in an emulator of processes (qemu-user).
# The emulator shows that the code builds and works there. It orders memory nearly as this machine does, so it says
# little of fences: test/base/litmus_test.cpp does that.
# usage: scripts/aarch64.sh [--build-only | --test-only] [--results DIR] [--jobs N] [--no-packages]
#   --build-only   do not run the suites; --test-only: do not build them
#   --results DIR  each suite's NAME.log, NAME.status and NAME.xml go to DIR (default: beside the build)
#   --jobs N       compilers at a time (default: cores)
#   --no-packages  trust that compiler and emulator are there
# Builds in $VERBENA_BUILD_ROOT/aarch64 (build-test/aarch64), with Debian's libraries for arm64 unpacked beside it: this
# system gets a compiler and the emulator, and no foreign architecture. $VERBENA_DEBIAN_MIRROR is where those come from.
# Ends with 0, 1 when something failed, 2 for wrong usage, 77 and a reason when this machine lacks something.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
exec </dev/null

usage() { sed -n '5,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
say() { echo "aarch64: $*"; }
skip() { say "skipped: $*"; exit 77; }

base=$(realpath -m "${VERBENA_BUILD_ROOT:-$root/build-test}")/aarch64
builds=1 tests=1 packages=1 results=$base/results jobs=$(nproc)
while (($#)); do
  case $1 in
    --build-only) tests=0 ;;
    --test-only) builds=0 ;;
    --no-packages) packages=0 ;;
    --results | --jobs)
      [[ -n ${2:-} ]] || { usage >&2; exit 2; }
      declare "${1#--}=$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
if [[ ! $jobs =~ ^[1-9][0-9]*$ ]] || ((!builds && !tests)); then usage >&2; exit 2; fi
sysroot=$base/sysroot build=$base/build

# Suite, executable, and what of it is too slow here, or says nothing of the processor: emulated threads that wait for
# each other take 10 to 30 times as long. One form of each test of the NIC is enough.
slow_kv='KvCells.Sums*:KvLate*:KvOneSided.Every*:KvTest.LargeValuesOut*:KvTest.Readers*Staging:KvTest.Readers*Grace'
suites=(
  'base test/base/test_base *'
  'litmus test/base/test_litmus *'
  'nic_conformance test/nic/test_nic_conformance *soft_two_nics-*Threads.WritesWithImm*:*Threads.MessagesBoth*'
  'kv_store test/kv/test_kv_store *-IndexTest.HoldsA*'
  "kv test/kv/test_kv *-$slow_kv"
  'cxx test/api/cxx/test_cxx RdmaCxx.*'
)

# --- what it takes ----------------------------------------------------------------------------------------------------

check_tools() {
  local tool
  grep -qx 'ID=debian' /etc/os-release 2>/dev/null || skip 'the libraries for arm64 are those of Debian'
  # shellcheck source=scripts/packages.sh
  source "$here/packages.sh"
  if ((packages)); then install_packages aarch64 || skip 'the compiler or the emulator could not be installed'; fi
  for tool in aarch64-linux-gnu-g++ qemu-aarch64 meson ninja dpkg-deb apt-get; do
    command -v "$tool" >/dev/null || skip "$tool is not there"
  done
}

# Debian's packages, with all that they depend on, unpacked and not installed.
make_sysroot() {
  local wanted='libc6-dev libibverbs-dev librdmacm-dev libnuma-dev libhwloc-dev libfmt-dev libxxhash-dev libgtest-dev'
  local apt=$base/apt release archive
  release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  if [[ -f $sysroot/complete && $(<"$sysroot/complete") == "$release $wanted" ]]; then return; fi
  say "fetching Debian's libraries for arm64"
  rm -rf "$apt" "$sysroot"
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$sysroot"
  : >"$apt/status"
  printf 'deb [arch=arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
    "${VERBENA_DEBIAN_MIRROR:-http://deb.debian.org/debian}" "$release" >"$apt/sources.list"
  local options=(-q -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status"
    -o Dir::Cache="$apt/cache" -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=
    -o APT::Install-Recommends=0 -o Debug::NoLocking=1 -o Acquire::Retries=2 -o Acquire::http::Timeout=30)
  apt-get "${options[@]}" update >"$apt/log" 2>&1 || skip "there is no arm64 at the mirror: $(tail -n 1 "$apt/log")"
  # shellcheck disable=SC2086
  apt-get "${options[@]}" install -y --download-only $wanted >>"$apt/log" 2>&1 ||
    skip "the mirror lacks packages of arm64: $(tail -n 1 "$apt/log")"
  for archive in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$archive" "$sysroot"; done
  rm -rf "$apt"
  echo "$release $wanted" >"$sysroot/complete"
}

# --- build ------------------------------------------------------------------------------------------------------------

# At the archive's level of optimization GCC 12 takes a value that std::optional does not have for one that is used.
write_cross_file() {
  local cache=''
  if command -v ccache >/dev/null; then cache="'ccache', "; fi
  cat >"$base/cross.ini" <<END
[binaries]
c = [${cache}'aarch64-linux-gnu-gcc']
cpp = [${cache}'aarch64-linux-gnu-g++']
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '$sysroot', '-E', 'VERBENA_EMULATOR=qemu-user']
[properties]
sys_root = '$sysroot'
pkg_config_libdir = ['$sysroot/usr/lib/aarch64-linux-gnu/pkgconfig', '$sysroot/usr/share/pkgconfig']
[built-in options]
c_args = ['--sysroot=$sysroot']
cpp_args = ['--sysroot=$sysroot', '-Wno-maybe-uninitialized']
c_link_args = ['--sysroot=$sysroot']
cpp_link_args = ['--sysroot=$sysroot']
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
END
}

build_suites() {
  local suite executables=()
  for suite in "${suites[@]}"; do executables+=("$(cut -d ' ' -f 2 <<<"$suite")"); done
  write_cross_file
  if [[ ! -f $build/build.ninja ]]; then
    rm -rf "$build"
    # As the sanitized builds: what runs the longest is optimized, and the rest is compiled quickly.
    meson setup "$build" "$root" --cross-file "$base/cross.ini" --werror -Dunity=on \
      --buildtype=release -Doptimization=0 -Darchive_optimization=1 -Dtests=enabled -Dprograms=disabled \
      -Dexamples=disabled -Dbenchmarks=disabled -Ddocs=disabled >"$base/setup.log" 2>&1 ||
      { tail -n 40 "$base/setup.log"; say 'meson setup failed'; exit 1; }
  fi
  ninja -k 0 -j "$jobs" -C "$build" "${executables[@]}" || { say 'the build failed'; exit 1; }
}

# --- run --------------------------------------------------------------------------------------------------------------

run_suite() {
  local name=$1 executable=$2 filter=$3 code=0
  "$here/progress.py" qemu-aarch64 -L "$sysroot" -E VERBENA_EMULATOR=qemu-user \
    -E VERBENA_FENCES="$here/../src/base/fences.hpp" "$build/$executable" \
    --gtest_filter="$filter" --gtest_output="xml:$results/$name.xml" >"$results/$name.log" 2>&1 || code=$?
  echo "$code" >"$results/$name.status"
  echo "== $name: ended with $code; $(grep -c '^\[       OK \]' "$results/$name.log" || true) passed"
  # A skip's reason is the line before its verdict.
  grep -B 1 '^\[  SKIPPED \].*ms)$' "$results/$name.log" | grep -v '^--' | sed 's/^/   /' || true
  if ((code)); then tail -n 40 "$results/$name.log"; fi
  return "$code"
}

run_suites() {
  local suite failed=0
  rm -rf "$results"
  mkdir -p "$results"
  for suite in "${suites[@]}"; do
    local name executable filter
    read -r name executable filter <<<"$suite"
    [[ -x $build/$executable ]] || skip "$build/$executable was not built"
    run_suite "$name" "$executable" "$filter" || failed=1
  done
  return "$failed"
}

check_tools
mkdir -p "$base"
if ((builds)); then
  make_sysroot
  build_suites
fi
if ((tests)); then run_suites; fi
