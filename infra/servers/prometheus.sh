#!/usr/bin/env bash
# A real Prometheus for tests, which start it themselves, each with a configuration of its own.
#
#   infra/servers/prometheus.sh programs   prints EBB_TEST_PROMETHEUS=PATH and EBB_TEST_PROMTOOL=PATH, one a line
#
# All else goes to standard error. What is in EBB_TEST_PROMETHEUS or on the path is used; otherwise Debian's package is unpacked, not
# installed (it would start a service of the machine that listens everywhere), into ${EBB_CACHE:-$HOME/.cache/ebb}.
set -euo pipefail

name=prometheus.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cache=${EBB_CACHE:-$HOME/.cache/ebb}

usage() { sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

unpack() { # prints the folder with the programs
  local folder=$cache/prometheus-debian part
  mkdir -p "$cache"
  ( # one at a time; what was cut off leaves no folder of that name
    flock 9
    [ -x "$folder/usr/bin/prometheus" ] && exit 0
    command -v apt-get >/dev/null || die "Prometheus is missing. Install it and name it: EBB_TEST_PROMETHEUS=/path/to/prometheus"
    say "unpacking Debian's prometheus into $folder"
    part=$folder.part
    rm -rf "$part"
    mkdir -p "$part"
    fetch() { (cd "$part" && apt-get download -qq prometheus 2>"$cache/prometheus.log" >&2); }
    fetch || { install_packages ca-certificates && fetch; } || die "apt-get could not fetch prometheus; $cache/prometheus.log says why. Install it by hand and name it in EBB_TEST_PROMETHEUS"
    dpkg-deb -x "$part"/prometheus_*.deb "$part" || die "the package of prometheus could not be unpacked"
    rm -f "$part"/*.deb
    rm -rf "$folder"
    mv "$part" "$folder"
  ) 9>"$cache/prometheus.lock" || exit 1
  echo "$folder/usr/bin"
}

program() { # the path of $1, `prometheus` or `promtool`; $2 is what the caller's environment says it is
  local folder
  if [ -n "$2" ]; then echo "$2"; return; fi
  if command -v "$1"; then return; fi
  folder=$(unpack) || exit 1
  echo "$folder/$1"
}

programs() {
  local server tool
  server=$(program prometheus "${EBB_TEST_PROMETHEUS:-}") || exit 1
  tool=$(program promtool "${EBB_TEST_PROMTOOL:-}") || exit 1
  printf 'EBB_TEST_PROMETHEUS=%s\nEBB_TEST_PROMTOOL=%s\n' "$server" "$tool"
}

[ "$#:${1:-}" = 1:programs ] || usage
programs
