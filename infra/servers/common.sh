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
