# What the scripts here and infra/run share: sourced, never run. A script sets `name` first; everything goes to standard error.

say() { printf '%s: %s\n' "$name" "$*" >&2; }
die() { say "$@"; exit 1; }

install_packages() { # installs $@ as Debian packages if this user may, or says how to
  [ $# -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "missing: $*. Install what they are called on this system, then run this again."
  local sudo=""
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null && sudo=sudo || die "packages are missing. Run: sudo apt-get install -y $*   and then this again."
  fi
  say "installing $*"
  $sudo apt-get update -qq >&2 || die "apt-get update failed; install by hand: $*"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null ||
    die "apt-get install failed; install by hand: $*"
}

free_port() { # a port nobody listens on, below the range the system hands out itself
  local port
  for _ in $(seq 50); do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "$port"; return; fi
  done
  die "no free port between 20000 and 32000"
}
