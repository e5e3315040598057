#!/usr/bin/env bash
# Three real Kafka brokers of one cluster (KRaft, version in kafka/pom.xml) on loopback ports, for tests and figures of what
# happens when one is lost. They hold 1.2 GB; nothing starts them by itself.
#
#   infra/servers/kafka3.sh start DIR    starts them with data, logs and pids in DIR/1 to DIR/3, waits until all answer, and prints
#                                        EBB_TEST_KAFKA3=HOST:PORT,HOST:PORT,HOST:PORT and EBB_TEST_KAFKA3_DIR=DIR
#   infra/servers/kafka3.sh node DIR N   starts one of them again on its data, after it was killed
#   infra/servers/kafka3.sh stop DIR     stops them; DIR stays
#
# Their settings are those that Kafka ships, broker.session.timeout.ms included (9 s until the cluster gives a silent broker up),
# unless EBB_TEST_KAFKA3_SESSION_MS says otherwise, but for one: a broker that came back leads again at once what it led before
# (otherwise after 5 min), so that every trial begins alike. DIR/N/pid is the process of broker N, its id in the cluster.
set -euo pipefail

script=${BASH_SOURCE[0]}
. "$(dirname "$script")/kafka.sh"
name=kafka3.sh
nodes="1 2 3"

usage() { sed -n '2,13s/^# \{0,1\}//p' "$script" >&2; exit 2; }

write_node() { # DIR N: its properties, from the ports of all
  local voters="" n
  for n in $nodes; do voters+="${voters:+,}$n@127.0.0.1:$(cat "$1/$n/controller_port")"; done
  write_properties "$1/$2" "$(cat "$1/$2/port")" "$(cat "$1/$2/controller_port")"
  sed -i -e "s/^node.id=.*/node.id=$2/" -e "s/^controller.quorum.voters=.*/controller.quorum.voters=$voters/" \
    -e 's/\(replication.factor\)=1/\1=3/' -e 's/\(min.isr\)=1/\1=2/' "$1/$2/node.properties"
  printf '%s\n' leader.imbalance.check.interval.seconds=2 leader.imbalance.per.broker.percentage=0 >>"$1/$2/node.properties"
  [ -z "${EBB_TEST_KAFKA3_SESSION_MS:-}" ] ||
    printf 'broker.session.timeout.ms=%s\nbroker.heartbeat.interval.ms=%s\n' "$EBB_TEST_KAFKA3_SESSION_MS" "$((EBB_TEST_KAFKA3_SESSION_MS / 6))" >>"$1/$2/node.properties"
}

choose_ports() { # DIR: six that differ
  local ports="" port
  while [ "$(wc -w <<<"$ports")" -lt 6 ]; do
    port=$(free_port)
    [[ " $ports " == *" $port "* ]] || ports+=" $port"
  done
  set -- "$1" $ports
  local directory=$1 n
  shift
  for n in $nodes; do
    mkdir -p "$directory/$n"
    echo "$1" >"$directory/$n/port"
    echo "$2" >"$directory/$n/controller_port"
    shift 2
  done
}

await() { # DIR N
  wait_until_it_answers "$1/$2" "$(cat "$1/$2/pid")" "$(cat "$1/$2/port")" ||
    { tail -n 30 "$1/$2/kafka.log" >&2; die "broker $2 did not start; its log is $1/$2/kafka.log"; }
}

print_environment() { # DIR
  local brokers="" n
  for n in $nodes; do brokers+="${brokers:+,}127.0.0.1:$(cat "$1/$n/port")"; done
  printf 'EBB_TEST_KAFKA3=%s\nEBB_TEST_KAFKA3_DIR=%s\n' "$brokers" "$1"
}

start3() {
  local directory=$1 libs cluster n
  mkdir -p "$directory"
  directory=$(cd "$directory" && pwd)
  need_java
  libs=$(fetch_jars)
  if [ ! -f "$directory/3/data/meta.properties" ]; then
    rm -rf "$directory"/[123]
    choose_ports "$directory"
    cluster=$(cluster_id)
  fi
  for n in $nodes; do
    write_node "$directory" "$n"
    [ -f "$directory/$n/data/meta.properties" ] || format "$directory/$n" "$libs" "$cluster"
    ours "$(cat "$directory/$n/pid" 2>/dev/null || true)" "$directory/$n" || launch "$directory/$n" "$libs"
  done
  for n in $nodes; do await "$directory" "$n"; done
  printf '#!/bin/sh\nexec "%s" node "%s" "$1"\n' "$here/kafka3.sh" "$directory" >"$directory/node"
  chmod +x "$directory/node"
  say "three brokers answer; their logs are $directory/N/kafka.log"
  print_environment "$directory"
}

node() { # DIR N
  local directory; directory=$(cd "$1" && pwd)
  [ -f "$directory/$2/node.properties" ] || die "$directory/$2 is no broker of a cluster that was started here"
  if ! ours "$(cat "$directory/$2/pid" 2>/dev/null || true)" "$directory/$2"; then launch "$directory/$2" "$(fetch_jars)"; fi
  await "$directory" "$2"
}

stop3() {
  [ -d "$1" ] || return 0
  local n
  for n in $nodes; do
    # A broker that is stopped with SIGSTOP would not hear that it is to end.
    if ours "$(cat "$1/$n/pid" 2>/dev/null || true)" "$(cd "$1/$n" && pwd)"; then kill -CONT "$(cat "$1/$n/pid")" 2>/dev/null || true; fi
  done
  for n in $nodes; do stop "$1/$n" & done
  wait
}

[ $# -ge 2 ] || usage
case $1 in
  start) start3 "$2" ;;
  node) [ $# = 3 ] || usage; node "$2" "$3" ;;
  stop) stop3 "$2" ;;
  *) usage ;;
esac
