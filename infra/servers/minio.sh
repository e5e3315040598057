#!/usr/bin/env bash
# One real S3 server with TLS and temporary credentials (MinIO on a local folder) on a free loopback port, for tests. It stands beside
# versitygw (s3.sh), because that has neither AssumeRole nor policies for single rights.
#
#   infra/servers/minio.sh start DIR   starts it with its data, log, certificates and pid in DIR, waits until it answers, creates the bucket, and prints
#                                      EBB_TEST_MINIO=URL and _CA (a file), _ACCESS, _SECRET, _BUCKET, one a line (all else goes to standard error)
#   infra/servers/minio.sh fetch       only has it there for a later start
#   infra/servers/minio.sh stop DIR    stops it; DIR stays
#
# The server is built once into ${EBB_CACHE:-$HOME/.cache/ebb} by `go install`. Needs any Go of Debian 12 or newer for that, openssl, and curl.
# Its licence is the AGPL and nobody maintains it any more: it serves tests, and nothing of it is shipped.
set -euo pipefail

name=minio.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

version=v0.0.0-20260212201848-7aac2a2c5b7c
module=github.com/minio/minio
bucket=ebb-test
access=ebb-test-access
certificate_days=7
certificate_rest_s=86400
start_tries=5
answer_wait_s=60
stop_wait_s=10

usage() { sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

ours() { # whether $1 is a running server whose data is in $2
  [ -n "$1" ] && [ -r "/proc/$1/cmdline" ] && tr '\0' ' ' <"/proc/$1/cmdline" | grep -qF -- "$2/data"
}

make_certificates() { # DIRECTORY: an authority of its own, and a certificate of it for loopback
  local certificates=$1/certificates
  command -v openssl >/dev/null || install_packages openssl
  # Of a DIR that is kept for longer than they hold, they are made anew.
  openssl x509 -checkend "$certificate_rest_s" -noout -in "$certificates/public.crt" >/dev/null 2>&1 && return
  mkdir -p "$certificates"
  (
    umask 077
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days "$certificate_days" -subj "/CN=ebb test authority" \
      -keyout "$1/ca.key" -out "$1/ca.crt" -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=127.0.0.1" -keyout "$certificates/private.key" -out "$1/server.csr"
    openssl x509 -req -in "$1/server.csr" -CA "$1/ca.crt" -CAkey "$1/ca.key" -CAcreateserial -days "$certificate_days" -out "$certificates/public.crt" \
      -extfile <(printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n')
  ) 2>"$1/openssl.log" || die "openssl made no certificates: $(tail -n 3 "$1/openssl.log" | tr '\n' ' ')"
}

signed() { # DIRECTORY PORT SECRET METHOD: a request for the bucket with an empty body
  curl -fsS -o /dev/null --max-time 10 --cacert "$1/ca.crt" --aws-sigv4 aws:amz:us-east-1:s3 --user "$access:$3" -X "$4" \
    -H 'x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855' "https://127.0.0.1:$2/$bucket/"
}

create_bucket() { # DIRECTORY PORT SECRET
  signed "$1" "$2" "$3" GET 2>/dev/null || signed "$1" "$2" "$3" PUT
}

print_environment() { # DIRECTORY PORT SECRET
  printf 'EBB_TEST_MINIO=https://127.0.0.1:%s\nEBB_TEST_MINIO_CA=%s\nEBB_TEST_MINIO_ACCESS=%s\nEBB_TEST_MINIO_SECRET=%s\nEBB_TEST_MINIO_BUCKET=%s\n' \
    "$2" "$1/ca.crt" "$access" "$3" "$bucket"
}

launch() { # DIR PORT
  MINIO_ROOT_USER=$access MINIO_ROOT_PASSWORD=$(cat "$1/secret") MINIO_BROWSER=off MINIO_UPDATE=off MINIO_SITE_REGION=us-east-1 HOME=$1 setsid "$server" server --quiet \
    --certs-dir "$1/certificates" --address "127.0.0.1:$2" "$1/data" >"$1/log" 2>&1 9>&- </dev/null &
}

answers() { # DIR PORT
  curl -fsS -o /dev/null --max-time 2 --cacert "$1/ca.crt" "https://127.0.0.1:$2/minio/health/ready"
}

fetch() { build_go minio "$version" "$module"; }

start() {
  local directory=$1 secret
  mkdir -p "$directory/data"
  directory=$(cd "$directory" && pwd)
  if runs "$directory"; then
    say "already running, process $(cat "$directory/pid")"
  else
    command -v curl >/dev/null || install_packages curl
    server=$(fetch) || exit 1
    make_certificates "$directory"
    make_secret "$directory" >/dev/null
    start_on_free_port "$directory" "$start_tries" "$answer_wait_s"
  fi
  secret=$(make_secret "$directory")
  create_bucket "$directory" "$(cat "$directory/port")" "$secret" || { stop "$directory"; die "the bucket could not be created; the server's log is $directory/log"; }
  print_environment "$directory" "$(cat "$directory/port")" "$secret"
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
