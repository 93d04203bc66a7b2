#!/usr/bin/env bash
# Builds the Debian packages of packaging/debian: libverbena0, libverbena-dev, verbena-tools and python3-verbena.
# usage: scripts/packages-debian.sh [--install] [--out DIR] [--jobs N]
#   --install  install what building needs, then the packages; use them, and remove them again (as root). For a machine
#              that may be changed: scripts/fresh-machine.sh scripts/packages-debian.sh --install
#   --out DIR  where the packages go (default: build-packages/)
#   --jobs N   compilers at a time (default: cores)
# Ends with 0, 1 when something failed, 2 for wrong usage, 77 and a reason when this machine cannot build packages.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
exec </dev/null
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive

say() { echo "packages-debian: $*"; }
install=0 out=$root/build-packages jobs=$(nproc)
while (($#)); do
  case $1 in
    --install) install=1 ;;
    --out) out=${2:?--out needs a directory}; shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) sed -n '3s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done
command -v apt-get >/dev/null || { say 'skipped: this is no Debian'; exit 77; }
if ((install)); then
  [[ $(id -u) == 0 ]] || { say '--install needs root' >&2; exit 2; }
  apt-get update -q
  apt-get install -q -y --no-install-recommends dpkg-dev build-essential fakeroot lintian cmake man-db \
    gfortran pkg-config python3-numpy
fi
command -v dpkg-buildpackage >/dev/null || { say 'skipped: no dpkg-buildpackage: apt-get install dpkg-dev'; exit 77; }

mkdir -p "$out"
out=$(realpath "$out")
work=$(mktemp -d)
stop_server() { [[ -z ${server:-} ]] || kill "$server" 2>/dev/null || true; }
trap 'stop_server; rm -rf "$work"' EXIT

# A copy, because debian/ is nothing but packaging/debian in there.
tree=$work/verbena
mkdir "$tree"
tar -C "$root" --exclude='./build*' --exclude=./.git --exclude=__pycache__ -cf - . | tar -C "$tree" -xf -
cp -r "$tree/packaging/debian" "$tree/debian"
cd "$tree"
((!install)) || apt-get build-dep -q -y ./
version=$(dpkg-parsechangelog --show-field Version)
meson_version=$(sed -n "s/^ *version: '\(.*\)',$/\1/p" meson.build | head -n 1)
[[ ${version%%-*} == "$meson_version" ]] || { say "debian/changelog has $version, meson.build $meson_version"; exit 1; }
say "building version $version"
DEB_BUILD_OPTIONS=noautodbgsym dpkg-buildpackage --build=binary --no-sign --jobs="$jobs"
packages=("$work"/*.deb)
cp "$work"/*.deb "$work"/*.changes "$out"
say "built: $(cd "$work" && echo *.deb)"
if command -v lintian >/dev/null; then
  lintian --fail-on error --suppress-tags bad-distribution-in-changes-file "$work"/*.changes
fi
((install)) || exit 0

say 'installing'
wanted=()
built=(libverbena0 libverbena-dev verbena-tools python3-verbena)
for package in "${built[@]}"; do wanted+=("$(echo "$work/${package}_"*.deb)"); done
apt-get install -q -y --no-install-recommends "${wanted[@]}"

say 'using'
cd "$work"
verbena-info >info.txt
grep -q . info.txt
man verbena-kv-get >page.txt
grep -q timeout-ms page.txt
man 3 kv_client_cas >page.txt
grep -q KV_ERR_VERSION_MISMATCH page.txt
bash -c 'source /usr/share/bash-completion/completions/verbena-kv && complete -p verbena-kv' >/dev/null
verbena-kv serve -p 0 -m 64 --port-file "$work/port" &
server=$!
for ((i = 0; i < 300; ++i)); do [[ -s $work/port ]] && break; kill -0 "$server"; sleep 0.1; done
port=$(<"$work/port")
verbena-kv put -p "$port" greeting 'hello, packages'
[[ $(verbena-kv get -p "$port" greeting) == 'hello, packages' ]]
/usr/bin/python3 -c "from verbena import kv; assert kv.Client('127.0.0.1:$port')['greeting'] == b'hello, packages'"
kill "$server"
wait "$server" || { say "the server ended with $?"; exit 1; }
server=''

# C by the shared library, which is what plain pkg-config gives; and by the archive.
hello=$root/examples/hello.c
# shellcheck disable=SC2046
cc "$hello" $(pkg-config --cflags --libs verbena) -o shared
./shared
readelf -d shared >needed.txt
grep -q 'NEEDED.*libverbena.so.0' needed.txt
archive=$(pkg-config --variable=libdir verbena)/libverbena.a
needed=$(pkg-config --print-requires-private verbena | sed 's/ .*//')
# shellcheck disable=SC2046,SC2086
cc "$hello" $(pkg-config --cflags verbena) "$archive" $(pkg-config --libs $needed) -lstdc++ -lm -o static
./static
# The programs of the guides, those in Fortran, and a CMake project in three languages, by the tests of the tree.
PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$root/test/consumers/consumers.py" installed "$root" \
  guide store fortran languages cmake || { say "a program that uses the packages ended with $?"; exit 1; }
# By the package, not by what is in the tree. numpy is there, so no test of it is skipped.
/usr/bin/python3 -B -W error::ResourceWarning -m unittest discover -s "$root/packaging/python/tests" 2>python.txt ||
  { cat python.txt; say 'the tests of the package for Python failed'; exit 1; }
tail -n 3 python.txt
if grep -q 'skipped=' python.txt; then cat python.txt; say 'tests of the package for Python were skipped'; exit 1; fi

# The unit's user is there, and systemd likes the unit as it is installed.
getent passwd verbena || { say 'the package made no user verbena'; exit 1; }
systemd-analyze verify /lib/systemd/system/verbena-kv.service

say 'removing'
dpkg-query -L "${built[@]}" | sort -u >files.txt
apt-get purge -q -y "${built[@]}"
left=$(while read -r file; do [[ ( -e $file || -L $file ) && ! -d $file ]] && echo "$file"; done <files.txt || true)
[[ -z $left ]] || { say "files stay behind: $left"; exit 1; }
say 'built, installed, used and removed'
