#!/usr/bin/env bash
# One real Kafka broker (KRaft, version in kafka/pom.xml) on free loopback ports, for tests.
#
#   infra/servers/kafka.sh start DIR   starts it with its data, log and pid in DIR, waits until it answers, and prints
#                                      EBB_TEST_KAFKA=127.0.0.1:PORT, where everything is allowed, and
#                                      EBB_TEST_KAFKA_SASL=127.0.0.1:PORT, where the users `ebb`, `local` and `shop` log in (SASL/PLAIN, each with
#                                      its name as its password) and may do what ACLs say (all else goes to standard error), and
#                                      EBB_TEST_KAFKA_TOOLS=DIR/tools, where kafka-topics.sh and others are that Kafka comes with
#   infra/servers/kafka.sh fetch       only has it there for a later start
#   infra/servers/kafka.sh stop DIR    stops it; DIR stays
#
# So a test script says: trap 'infra/servers/kafka.sh stop "$dir"' EXIT; kafka=$(infra/servers/kafka.sh start "$dir"); export $kafka
# Jars are fetched once into ${EBB_CACHE:-$HOME/.cache/ebb}. Needs Java 17 or newer, and Maven for the first start.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=kafka.sh
. "$here/common.sh"
cache=${EBB_CACHE:-$HOME/.cache/ebb}
start_tries=3
answer_wait_s=180
stop_wait_s=10

usage() { sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

java_version() { # the major version of the installed Java, or 0
  command -v java >/dev/null || { echo 0; return; }
  java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

jre_package() {
  if apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then echo openjdk-17-jre-headless; else echo default-jre-headless; fi
}

need_java() {
  local version; version=$(java_version)
  [ "${version:-0}" -ge 17 ] || install_packages "$(command -v apt-cache >/dev/null && jre_package || echo openjdk-17-jre-headless)"
  version=$(java_version)
  [ "${version:-0}" -ge 17 ] || die "Java 17 or newer is needed; 'java' is version ${version:-0}"
}

fetch_jars() { # prints the folder with the jars
  local version libs
  version=$(sed -n 's|.*<version>\([0-9.]*\)</version>.*|\1|p' "$here/kafka/pom.xml" | sed -n 2p)
  libs=$cache/kafka-$version-$(cksum <"$here/kafka/pom.xml" | cut -d' ' -f1)
  mkdir -p "$cache"
  ( # one at a time; a fetch that was cut off leaves no folder of that name
    flock 9
    [ -d "$libs" ] && exit 0
    command -v mvn >/dev/null || install_packages maven
    say "fetching Kafka $version into $libs"
    rm -rf "$libs.part"
    cp -r "$here/kafka" "$libs.part"
    if ! mvn -q -B -f "$libs.part/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$libs.part/libs" >&2; then
      die "Maven could not fetch the jars of $here/kafka/pom.xml; see above, and set a mirror in ~/.m2/settings.xml if there is no direct way out"
    fi
    mv "$libs.part" "$libs"
  ) 9>"$cache/kafka.lock" || exit 1
  echo "$libs/libs"
}

ours() { # whether $1 is a running broker whose data is in $2
  [ -n "$1" ] && [ -r "/proc/$1/cmdline" ] && tr '\0' ' ' <"/proc/$1/cmdline" | grep -qF -- "$2/node.properties"
}

answers() { # whether the broker on port $1 answers an ApiVersions request
  local reply
  reply=$( (
    exec 3<>"/dev/tcp/127.0.0.1/$1"
    printf '\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff' >&3
    timeout 5 head -c 8 <&3 | od -An -tx1 | tr -d ' \n'
  ) 2>/dev/null) || return 1
  [ "${reply:8:8}" = 00000001 ] # the request's own number
}

write_properties() { # DIR BROKER_PORT CONTROLLER_PORT
  cat >"$1/node.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$3
listeners=PLAINTEXT://127.0.0.1:$2,CONTROLLER://127.0.0.1:$3
advertised.listeners=PLAINTEXT://127.0.0.1:$2
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$1/data
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
num.network.threads=2
num.io.threads=2
background.threads=2
log.cleaner.dedupe.buffer.size=4194304
PROPERTIES
}

write_users() { # DIR BROKER_PORT CONTROLLER_PORT SASL_PORT: a second listener, on which rights count; on the first everybody may everything. Of a key the last line counts
  cat >>"$1/node.properties" <<PROPERTIES
listeners=PLAINTEXT://127.0.0.1:$2,SASL://127.0.0.1:$4,CONTROLLER://127.0.0.1:$3
advertised.listeners=PLAINTEXT://127.0.0.1:$2,SASL://127.0.0.1:$4
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_ebb="ebb" user_local="local" user_shop="shop";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
PROPERTIES
}

write_tools() { # DIR LIBS: commands by the names under which Kafka's own distribution has them; the jars come without
  local command class
  mkdir -p "$1/tools"
  for command in topics:TopicCommand console-producer:ConsoleProducer acls:AclCommand; do
    class=org.apache.kafka.tools.${command#*:}
    printf '#!/bin/sh\nexec java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "%s/*" %s "$@"\n' "$2" "$class" >"$1/tools/kafka-${command%:*}.sh"
    chmod +x "$1/tools/kafka-${command%:*}.sh"
  done
}

said() { # DIR: where its broker is, for those who export it
  echo "EBB_TEST_KAFKA=127.0.0.1:$(cat "$1/port")"
  echo "EBB_TEST_KAFKA_SASL=127.0.0.1:$(cat "$1/sasl_port")"
  echo "EBB_TEST_KAFKA_TOOLS=$1/tools"
}

cluster_id() { echo "E$(head -c 16 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=' | tail -c +3)"; }

format() { # DIR LIBS CLUSTER: its data folder
  java -Xmx128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp "$2/*" kafka.tools.StorageTool format -t "$3" -c "$1/node.properties" \
    >"$1/format.log" 2>&1 || { cat "$1/format.log" >&2; die "the data folder cannot be formatted"; }
}

launch() { # DIR LIBS: a broker as DIR/node.properties says, its process in DIR/pid
  setsid java -Xmx384m -Xms128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info \
    -Dorg.slf4j.simpleLogger.showDateTime=true -Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS \
    -cp "$2/*" kafka.Kafka "$1/node.properties" </dev/null >"$1/kafka.log" 2>&1 9>&- &
  echo "$!" >"$1/pid"
  disown "$!" 2>/dev/null || true
}

start() {
  local directory=$1 pid libs port controller_port sasl_port try
  mkdir -p "$directory"
  directory=$(cd "$directory" && pwd)
  pid=$(cat "$directory/pid" 2>/dev/null || true)
  if ours "$pid" "$directory"; then
    say "already running, process $pid"
    said "$directory"
    return
  fi
  need_java
  libs=$(fetch_jars)
  write_tools "$directory" "$libs"
  for try in $(seq "$start_tries"); do
    # Another port than before would be another broker for the clients, so data of an earlier start keeps its ports.
    if [ -f "$directory/port" ] && [ "$try" = 1 ]; then
      port=$(cat "$directory/port"); controller_port=$(cat "$directory/controller_port"); sasl_port=$(cat "$directory/sasl_port")
    else
      rm -rf "$directory/data"
      port=$(free_port)
      controller_port=$(free_port)
      while [ "$controller_port" = "$port" ]; do controller_port=$(free_port); done
      sasl_port=$(free_port)
      while [ "$sasl_port" = "$port" ] || [ "$sasl_port" = "$controller_port" ]; do sasl_port=$(free_port); done
    fi
    write_properties "$directory" "$port" "$controller_port"
    write_users "$directory" "$port" "$controller_port" "$sasl_port"
    [ -f "$directory/data/meta.properties" ] || format "$directory" "$libs" "$(cluster_id)"
    launch "$directory" "$libs"
    pid=$(cat "$directory/pid")
    echo "$port" >"$directory/port"
    echo "$controller_port" >"$directory/controller_port"
    echo "$sasl_port" >"$directory/sasl_port"
    if wait_until_it_answers "$directory" "$pid" "$port"; then
      say "Kafka answers on 127.0.0.1:$port, process $pid, log in $directory/kafka.log"
      said "$directory"
      return
    fi
    kill -9 "$pid" 2>/dev/null || true
    rm -f "$directory/pid"
    grep -q 'Address already in use' "$directory/kafka.log" || break
    say "port $port, $controller_port or $sasl_port was taken meanwhile; trying others"
  done
  tail -n 30 "$directory/kafka.log" >&2
  die "Kafka did not start; its log is $directory/kafka.log"
}

wait_until_it_answers() { # DIR PID PORT
  local until=$((SECONDS + answer_wait_s))
  while [ "$SECONDS" -lt "$until" ]; do
    ours "$2" "$1" || { sleep 0.2; ours "$2" "$1" || return 1; }
    if grep -q 'Kafka Server started' "$1/kafka.log" && answers "$3"; then return 0; fi
    sleep 0.2
  done
  say "no answer within $answer_wait_s s"
  return 1
}

stop() {
  stop_server "$1" "$stop_wait_s"
}

# kafka3.sh takes the functions above.
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0
case $#:${1:-} in
  1:fetch) need_java && fetch_jars >/dev/null ;;
  2:start) start "$2" ;;
  2:stop) stop "$2" ;;
  *) usage ;;
esac
