# The compilers' cache of scripts/test.sh and scripts/demo.sh: ccache, where it is installed. To be sourced:
#   source scripts/cache.sh; use_cache
# VERBENA_CACHE names the folder (default: verbena in the user's cache folder); VERBENA_NO_CACHE=1 goes without.
# It keeps objects, never the result of a test. An object is found again from any clone of the tree, in any folder.

use_cache() {
  if [[ ${VERBENA_NO_CACHE:-0} == 1 ]]; then
    # Meson puts ccache before its own compilers wherever it is installed.
    export CCACHE_DISABLE=1
    return 0
  fi
  command -v ccache >/dev/null || return 0
  local root variable
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
  export VERBENA_CACHE=${VERBENA_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/verbena}
  export CCACHE_DIR=$VERBENA_CACHE/ccache CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-5G}
  # What lies under the clone is named relative to the folder of the build, and that folder is no part of the key.
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
  # Meson adds ccache to no compiler that the environment names.
  for variable in CC CXX; do
    if [[ -n ${!variable:-} && ${!variable} != *ccache* ]]; then export "$variable=ccache ${!variable}"; fi
  done
}
