# The system packages that Verbena needs, and their installation. To be sourced:
#   source scripts/packages.sh; install_packages SET...
# Sets: core (the archive), build (programs), test, demo, lint, bench; each of the latter includes core. And softroce:
# what scripts/softroce.sh needs beside a build; aarch64: what scripts/aarch64.sh needs, on Debian; mpi: what the
# examples in Fortran and under MPI need; pmix: what libverbena-pmix.a needs; ucx, libfabric, redis and matplotlib:
# what bench/compare.sh can do without; fresh: what scripts/fresh-machine.sh needs, on Debian.
# Installs only what is missing, and says so first. Returns 0, or 3 when the user must install something by hand (the
# command to type has been printed then). With VERBENA_NO_PACKAGES=1 it trusts that everything is there.

# Package names of a set, for apt. bash 4 or later; no `ps`, `git` or `sudo` is needed.
verbena_packages_apt() {
  local core='g++ meson ninja-build pkg-config libibverbs-dev librdmacm-dev libnuma-dev libhwloc-dev libfmt-dev
    libxxhash-dev libsodium-dev ca-certificates'
  local clang
  case $1 in
    core) echo "$core" ;;
    build) echo "$core libcli11-dev libedit-dev libmicrohttpd-dev nlohmann-json3-dev" ;;
    demo) echo "$core ccache libcli11-dev libedit-dev libmicrohttpd-dev nlohmann-json3-dev" ;;
    test)
      echo "$core libcli11-dev libedit-dev libmicrohttpd-dev nlohmann-json3-dev libgtest-dev libboost-context-dev"
      echo 'python3 binutils ccache cmake make patch'
      echo 'abigail-tools help2man man-db pyflakes3 python3-numpy valgrind zsh' ;;
    lint)
      clang=$(verbena_clang_version)
      echo "$core libgtest-dev libbenchmark-dev python3 doxygen"
      echo "clang-$clang clang-tidy-$clang clang-format-$clang libclang-rt-$clang-dev" ;;
    bench)
      echo "$core libcli11-dev libedit-dev nlohmann-json3-dev libbenchmark-dev libmimalloc-dev memcached python3" ;;
    ucx) echo ucx-utils libucx-dev ;;
    libfabric) echo libfabric-bin ;;
    redis) echo redis-server ;;
    matplotlib) echo python3-matplotlib ;;
    # mpirun looks for ssh even where it needs none.
    mpi) echo openmpi-bin libopenmpi-dev openssh-client gfortran ;;
    pmix) echo libpmix-dev ;;
    aarch64) echo 'g++-aarch64-linux-gnu meson ninja-build pkg-config qemu-user ca-certificates' ;;
    fresh) echo 'debootstrap git ca-certificates' ;;
    softroce) echo 'qemu-system-x86 busybox-static cpio kmod rdma-core ibverbs-providers ibverbs-utils perftest iproute2
      xz-utils zstd' ;;
    *) echo "verbena: no such package set: $1" >&2; return 2 ;;
  esac
}

verbena_packages_dnf() {
  local core='gcc-c++ meson ninja-build pkgconf-pkg-config rdma-core-devel numactl-devel hwloc-devel fmt-devel
    xxhash-devel libsodium-devel ca-certificates'
  case $1 in
    core) echo "$core" ;;
    build) echo "$core cli11-devel libedit-devel libmicrohttpd-devel json-devel" ;;
    demo) echo "$core ccache cli11-devel libedit-devel libmicrohttpd-devel json-devel" ;;
    test) echo "$core cli11-devel libedit-devel libmicrohttpd-devel json-devel gtest-devel boost-devel python3" \
      'binutils ccache libasan libubsan libtsan cmake make patch libabigail help2man man-db' \
      'python3-pyflakes python3-numpy valgrind valgrind-devel zsh' ;;
    lint) echo "$core gtest-devel google-benchmark-devel python3 clang clang-tools-extra compiler-rt doxygen" ;;
    bench) echo "$core cli11-devel libedit-devel json-devel google-benchmark-devel mimalloc-devel memcached python3" ;;
    ucx) echo ucx ucx-devel ;;
    libfabric) echo libfabric ;;
    redis) echo redis ;;
    matplotlib) echo python3-matplotlib ;;
    mpi) echo openmpi openmpi-devel openssh-clients gcc-gfortran ;;
    pmix) echo pmix-devel ;;
    *) echo "verbena: no such package set: $1" >&2; return 2 ;;
  esac
}

# Clang 19 where the distribution has it (Debian 12, Ubuntu 24.04 with updates), else the newest before it.
verbena_clang_version() {
  local version
  for version in 19 18; do
    if [[ -n $(apt-cache policy "clang-tidy-$version" 2>/dev/null | sed -n 's/^ *Candidate: *//p' | grep -v none) ]]
    then
      echo "$version"
      return
    fi
  done
  echo 19
}

# The packages among "$@" that are not installed, one line.
verbena_missing_apt() {
  local package missing=''
  for package in "$@"; do
    if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
      missing+=" $package"
    fi
  done
  echo "${missing# }"
}

# Words of every set named, each once, in order. $1 is apt or dnf.
verbena_package_list() {
  local manager=$1 set words word
  local -A seen=()
  shift
  for set in "$@"; do
    words=$("verbena_packages_$manager" "$set") || return
    for word in $words; do
      if [[ -z ${seen[$word]:-} ]]; then
        seen[$word]=1
        echo -n "$word "
      fi
    done
  done
}

install_packages() {
  [[ ${VERBENA_NO_PACKAGES:-0} == 1 ]] && return 0
  local id='' like='' wanted missing
  local -a as_root=()
  if [[ -r /etc/os-release ]]; then
    id=$(sed -n 's/^ID=//p' /etc/os-release | tr -d '"')
    like=$(sed -n 's/^ID_LIKE=//p' /etc/os-release | tr -d '"')
  fi
  case " $id $like " in
    *' debian '* | *' ubuntu '*) ;;
    *' fedora '* | *' rhel '*)
      wanted=$(verbena_package_list dnf "$@") || return
      # rpm answers for the names; nothing is installed here, because dnf's names differ between releases.
      # shellcheck disable=SC2086
      if command -v rpm >/dev/null && rpm -q --whatprovides $wanted >/dev/null 2>&1; then return 0; fi
      echo "verbena: install the packages, then run this again (VERBENA_NO_PACKAGES=1 skips this check):"
      echo "  dnf install ${wanted% }"
      return 3 ;;
    *)
      echo "verbena: this system (${id:-unknown}) is neither Debian, Ubuntu nor Fedora. Install what these"
      echo "Debian packages hold, then run this again with VERBENA_NO_PACKAGES=1:"
      echo "  $(verbena_package_list apt "$@")"
      return 3 ;;
  esac

  wanted=$(verbena_package_list apt "$@") || return
  # shellcheck disable=SC2086
  missing=$(verbena_missing_apt $wanted)
  [[ -z $missing ]] && return 0

  if [[ $(id -u) != 0 ]]; then
    if ! command -v sudo >/dev/null; then
      echo "verbena: packages are missing and there is no sudo. As root:"
      echo "  apt-get update && apt-get install -y --no-install-recommends $missing"
      return 3
    fi
    as_root=(sudo)
  fi
  echo "verbena: installing $(wc -w <<<"$missing") packages${as_root[0]:+ (with sudo)}:"
  fold -s -w 100 <<<"$missing" | sed 's/^/  /'
  # One unreachable repository among several is no reason to stop: the installation tells.
  "${as_root[@]}" apt-get update -q ||
    echo "verbena: apt-get update failed; going on with the package lists that are there" >&2
  # Lists are read anew: which Clang there is was not known on a machine whose lists were empty.
  wanted=$(verbena_package_list apt "$@") || return
  # shellcheck disable=SC2086
  missing=$(verbena_missing_apt $wanted)
  # shellcheck disable=SC2086
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    -o DPkg::Lock::Timeout=300 $missing; then
    echo "verbena: apt-get could not install: $missing" >&2
    echo "verbena: see its message above; the usual causes are no network and a missing 'universe' (Ubuntu)" >&2
    return 3
  fi
}
