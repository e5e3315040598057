#!/usr/bin/env bash
# One real Prometheus on a free loopback port, for tests.
#
#   infra/servers/prometheus.sh programs           prints EBB_TEST_PROMETHEUS=PATH and EBB_TEST_PROMTOOL=PATH, one a line
#   infra/servers/prometheus.sh start DIR CONFIG   starts it with a configuration file, its data, log and pid in DIR, waits until it is
#                                                  ready, and prints EBB_TEST_PROMETHEUS_URL=http://127.0.0.1:PORT
#   infra/servers/prometheus.sh stop DIR           stops it; DIR stays
#
# All else goes to standard error. What is in EBB_TEST_PROMETHEUS or on the path is used; otherwise Debian's package is unpacked, not
# installed (it would start a service of the machine that listens everywhere), into ${EBB_CACHE:-$HOME/.cache/ebb}.
set -euo pipefail

name=prometheus.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

cache=${EBB_CACHE:-$HOME/.cache/ebb}
start_tries=5
ready_wait_s=30
stop_wait_s=10

usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

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

ours() { # whether $1 is a running server whose data is in $2
  [ -n "$1" ] && [ -r "/proc/$1/cmdline" ] && tr '\0' ' ' <"/proc/$1/cmdline" | grep -qF -- "--storage.tsdb.path=$2/data"
}

ready() { # PORT; without curl, which is not there before the tests are set up
  local status
  exec 3<>"/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET /-/ready HTTP/1.0\r\n\r\n' >&3
  IFS= read -r -t 2 status <&3 || true
  exec 3>&-
  [[ "$status" == *" 200 "* ]]
}

start() {
  local directory=$1 config=$2 server port pid try
  mkdir -p "$directory/data"
  directory=$(cd "$directory" && pwd)
  if [ -f "$directory/pid" ] && ours "$(cat "$directory/pid")" "$directory"; then
    say "already running, process $(cat "$directory/pid")"
    echo "EBB_TEST_PROMETHEUS_URL=http://127.0.0.1:$(cat "$directory/port")"
    return
  fi
  server=$(program prometheus "${EBB_TEST_PROMETHEUS:-}") || exit 1
  for try in $(seq "$start_tries"); do
    port=$(free_port)
    setsid "$server" --config.file="$config" --storage.tsdb.path="$directory/data" --web.listen-address="127.0.0.1:$port" --web.enable-lifecycle \
      >"$directory/log" 2>&1 9>&- </dev/null &
    pid=$!
    disown "$pid" 2>/dev/null || true
    for _ in $(seq $((ready_wait_s * 10))); do
      if ready "$port" 2>/dev/null; then
        echo "$pid" >"$directory/pid"
        echo "$port" >"$directory/port"
        echo "EBB_TEST_PROMETHEUS_URL=http://127.0.0.1:$port"
        return
      fi
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
    say "try $try of $start_tries was not ready: $(tail -n 3 "$directory/log" | tr '\n' ' ')"
  done
  die "Prometheus did not start; its log is $directory/log"
}

stop() {
  local directory=$1 pid
  [ -f "$directory/pid" ] || return 0
  directory=$(cd "$directory" && pwd)
  pid=$(cat "$directory/pid")
  if ours "$pid" "$directory"; then
    kill "$pid" 2>/dev/null || true
    for _ in $(seq $((stop_wait_s * 10))); do
      ours "$pid" "$directory" || break
      sleep 0.1
    done
    if ours "$pid" "$directory"; then kill -9 "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$directory/pid"
}

case "$#:${1:-}" in
  1:programs) programs ;;
  3:start) start "$2" "$3" ;;
  2:stop) stop "$2" ;;
  *) usage ;;
esac
