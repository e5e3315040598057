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

go_toolchain=go1.24.10

go_minor() { # the minor version of the installed Go 1, or 0
  command -v go >/dev/null || { echo 0; return; }
  GOTOOLCHAIN=local go version | sed -n 's/.*go1\.\([0-9]*\).*/\1/p'
}

need_go() { # prints a Go of 1.21 or newer; from there on, go fetches by itself the newer toolchain that a server asks for
  [ "$(go_minor)" -gt 0 ] || install_packages golang-go ca-certificates
  if [ "$(go_minor)" -ge 21 ]; then command -v go; return; fi
  # Debian 12 has an older one, but that can fetch a newer one as a module, checked against Go's sum database.
  local folder
  say "fetching $go_toolchain, as the installed Go is 1.$(go_minor)"
  folder=$(cd / && go mod download -json "golang.org/toolchain@v0.0.1-$go_toolchain.linux-$(go env GOARCH)" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && [ -n "$folder" ] ||
    die "Go 1.21 or newer is needed to build servers for tests, here is 1.$(go_minor), and it could not fetch a newer one. Install one from https://go.dev/dl"
  chmod -R +x "$folder/bin" "$folder/pkg/tool" # modules hold no modes
  echo "$folder/bin/go"
}

build_go() { # NAME VERSION MODULE: prints the path of a server, built once into ${EBB_CACHE:-$HOME/.cache/ebb}
  local program=$1 version=$2 module=$3 cache=${EBB_CACHE:-$HOME/.cache/ebb}
  local folder=$cache/$program-$version
  mkdir -p "$cache"
  ( # one at a time; a build that was cut off leaves no folder of that name
    flock 9
    [ -x "$folder/$program" ] && exit 0
    go=$(need_go) || exit 1
    say "building $program $version into $folder (some minutes, once)"
    rm -rf "$folder.part"
    CGO_ENABLED=0 GOBIN="$folder.part" "$go" install "$module@$version" >&2 || die "go could not build $module@$version; see above, and set GOPROXY if there is no direct way out"
    mv "$folder.part" "$folder"
  ) 9>"$cache/$program.lock" || exit 1
  echo "$folder/$program"
}

# One server in a directory: its process in DIR/pid, its port in DIR/port, its log in DIR/log. A script that uses these says how it is
# launched (`launch DIR PORT`, in the background), when it is ready (`answers DIR PORT`), and which process it is (`ours PID DIR`).

runs() { # DIR
  [ -f "$1/pid" ] && ours "$(cat "$1/pid")" "$1"
}

start_on_free_port() { # DIR TRIES SECONDS: tries other ports if one is taken meanwhile, and waits for each so long
  local directory=$1 port pid try
  for try in $(seq "$2"); do
    port=$(free_port)
    launch "$directory" "$port"
    pid=$!
    disown "$pid" 2>/dev/null || true
    for _ in $(seq $(($3 * 10))); do
      if answers "$directory" "$port" 2>/dev/null; then
        echo "$pid" >"$directory/pid"
        echo "$port" >"$directory/port"
        return
      fi
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
    say "try $try of $2 did not answer: $(tail -n 3 "$directory/log" | tr '\n' ' ')"
  done
  die "the server did not start; its log is $directory/log"
}

stop_server() { # DIR SECONDS: asks it to end, kills it after so long
  local directory pid
  [ -f "$1/pid" ] || return 0
  directory=$(cd "$1" && pwd)
  pid=$(cat "$directory/pid")
  if ours "$pid" "$directory"; then
    kill "$pid" 2>/dev/null || true
    for _ in $(seq $(($2 * 10))); do
      ours "$pid" "$directory" || break
      sleep 0.1
    done
    if ours "$pid" "$directory"; then say "process $pid does not end; killing it"; kill -9 "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$directory/pid"
}

make_secret() { # DIR: prints a random one, the same at every start there
  [ -s "$1/secret" ] || (umask 077; od -An -tx1 -N16 /dev/urandom | tr -d ' \n' >"$1/secret")
  cat "$1/secret"
}
