#!/usr/bin/env bash
# One real S3 server (versitygw on a local folder) on a free loopback port, for tests.
#
#   infra/servers/s3.sh start DIR   starts it with its data, log and pid in DIR, waits until it answers, creates the bucket, and
#                                   prints EBB_TEST_S3=URL and _ACCESS, _SECRET, _BUCKET, one a line (all else goes to standard error)
#   infra/servers/s3.sh fetch       only has it there for a later start
#   infra/servers/s3.sh stop DIR    stops it; DIR stays
#
# So a test script says: while read -r line; do export "$line"; done < <(infra/servers/s3.sh start "$dir"); trap 'infra/servers/s3.sh stop "$dir"' EXIT
# The server is built once into ${EBB_CACHE:-$HOME/.cache/ebb} by `go install`. Needs any Go of Debian 12 or newer for that, and curl.
set -euo pipefail

name=s3.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

version=v1.8.0
module=github.com/versity/versitygw/cmd/versitygw
bucket=ebb-test
access=ebb-test-access
start_tries=5
answer_wait_s=30
stop_wait_s=10

usage() { sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

ours() { # whether $1 is a running server whose data is in $2
  [ -n "$1" ] && [ -r "/proc/$1/cmdline" ] && tr '\0' ' ' <"/proc/$1/cmdline" | grep -qF -- "posix $2/data"
}

signed() { # PORT SECRET METHOD: a request for the bucket with an empty body, whose hash the server insists on
  curl -fsS -o /dev/null --max-time 10 --aws-sigv4 aws:amz:us-east-1:s3 --user "$access:$2" -X "$3" \
    -H 'x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855' "http://127.0.0.1:$1/$bucket"
}

create_bucket() { # PORT SECRET
  signed "$1" "$2" GET 2>/dev/null || signed "$1" "$2" PUT
}

print_environment() { # PORT SECRET
  printf 'EBB_TEST_S3=http://127.0.0.1:%s\nEBB_TEST_S3_ACCESS=%s\nEBB_TEST_S3_SECRET=%s\nEBB_TEST_S3_BUCKET=%s\n' "$1" "$access" "$2" "$bucket"
}

launch() { # DIR PORT
  ROOT_ACCESS_KEY=$access ROOT_SECRET_KEY=$(cat "$1/secret") setsid "$server" --port "127.0.0.1:$2" --iam-dir "$1/iam" --quiet --keep-alive --health /health \
    posix "$1/data" >"$1/log" 2>&1 9>&- </dev/null &
}

answers() { # DIR PORT
  curl -fsS -o /dev/null --max-time 2 "http://127.0.0.1:$2/health"
}

fetch() { build_go versitygw "$version" "$module"; }

start() {
  local directory=$1 secret
  mkdir -p "$directory/data" "$directory/iam"
  directory=$(cd "$directory" && pwd)
  if runs "$directory"; then
    say "already running, process $(cat "$directory/pid")"
  else
    command -v curl >/dev/null || install_packages curl
    server=$(fetch) || exit 1
    make_secret "$directory" >/dev/null
    start_on_free_port "$directory" "$start_tries" "$answer_wait_s"
  fi
  secret=$(make_secret "$directory")
  create_bucket "$(cat "$directory/port")" "$secret" || { stop "$directory"; die "the bucket could not be created; the server's log is $directory/log"; }
  print_environment "$(cat "$directory/port")" "$secret"
}

stop() {
  stop_server "$1" "$stop_wait_s"
}

case $#:${1:-} in
  1:fetch) fetch >/dev/null ;;
  2:start) start "$2" ;;
  2:stop) stop "$2" ;;
  *) usage ;;
esac
