#!/usr/bin/env bash
# A container engine for machines that have none, or that reach no image registry. As root, on Debian:
#   ops/compose/engine.sh up      install Docker if need be, start it if it does not run, and make the base
#                                 image out of Debian's packages if it cannot be pulled
#   ops/compose/engine.sh down    stop the engine that `up` has started; one that ran before is left alone
# Who has Docker and an image registry does not need it.
set -euo pipefail
base=debian:bookworm-slim
pid_file=/run/feedstack-dockerd.pid
forward_file=/run/feedstack-forward
log=/var/log/feedstack-dockerd.log

fail() { echo "engine: $1" >&2; exit 1; }
say() { echo "engine: $1" >&2; }
runs() { docker info >/dev/null 2>&1; }
has_compose() { docker compose version >/dev/null 2>&1; }

# Daemon, client, compose and buildx come from Debian's next release: this one's compose is too old.
install_docker() {
  [ "$(id -u)" = 0 ] || fail "Docker is not installed, and only root can do that"
  command -v apt-get >/dev/null || fail "Docker is not installed, and this is not a Debian: install it by hand"
  local work parts options
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" RETURN
  eval "$(apt-config shell parts Dir::Etc::sourceparts/d)"
  [ -f "$parts/debian.sources" ] || fail "there is no $parts/debian.sources to find Debian's packages by: install Docker by hand"
  say "installing Docker (about 100 MB)"
  sed -n '1,/^$/{s/^Suites:.*/Suites: trixie/;p}' "$parts/debian.sources" > "$work/trixie.sources"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  options=(-o Dir::Etc::sourcelist="$work/trixie.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
    -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
  (
    cd "$work"
    apt-get "${options[@]}" -qq update
    apt-get "${options[@]}" -qq download docker.io/trixie docker-cli/trixie docker-compose/trixie docker-buildx/trixie
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends ./*.deb iptables > apt.log 2>&1 ||
      { tail -20 apt.log >&2; exit 1; }
  ) || fail "Docker could not be installed"
}

start_engine() {
  [ "$(id -u)" = 0 ] || fail "the engine does not run, and only root can start it"
  command -v dockerd >/dev/null || fail "there is no dockerd: start the engine as your Docker wants it"
  say "starting the engine"
  # The engine closes this machine for packets that pass through it; `down` opens it again.
  { sysctl -n net.ipv4.ip_forward; iptables -S FORWARD 2>/dev/null | sed -n 's/^-P FORWARD //p'; } > "$forward_file"
  setsid nohup dockerd --pidfile "$pid_file" > "$log" 2>&1 < /dev/null &
  for _ in $(seq 150); do
    if runs; then return; fi
    sleep 0.2
  done
  tail -5 "$log" >&2
  fail "the engine did not start; its log: $log"
}

# The same distribution as the image of that name, with the certificate authorities that this machine trusts.
make_base() {
  if docker image inspect "$base" >/dev/null 2>&1; then return; fi
  if timeout 60 docker pull -q "$base" >/dev/null 2>&1; then return; fi
  [ "$(id -u)" = 0 ] || fail "$base cannot be pulled, and only root can make a stand-in"
  say "$base cannot be pulled; making it out of Debian's packages"
  command -v mmdebstrap >/dev/null ||
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends mmdebstrap >/dev/null
  local work certificates file
  work=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" RETURN
  mkdir "$work/ca"
  certificates=$(openssl version -d | cut -d'"' -f2)/certs
  for file in "$certificates"/*.pem; do
    if [ -f "$file" ] && [ ! -L "$file" ] && openssl x509 -in "$file" -noout -ext basicConstraints 2>/dev/null | grep -q CA:TRUE; then
      cp "$file" "$work/ca/$(basename "${file%.pem}").crt"
    fi
  done
  (
    cd "$work"
    mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Check-Valid-Until "false"' --aptopt='Acquire::Languages "none"' \
      --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
      --dpkgopt='path-exclude=/usr/share/locale/*' --customize-hook='mkdir -p "$1/usr/local/share/ca-certificates"' \
      --customize-hook='sync-in ca /usr/local/share/ca-certificates' bookworm - |
      docker import -c 'CMD ["bash"]' - "$base" >/dev/null
  ) || fail "$base could not be made"
}

up() {
  if ! runs || ! has_compose; then
    if ! command -v dockerd >/dev/null || ! has_compose; then install_docker; fi
    runs || start_engine
  fi
  make_base
  say "Docker $(docker version -f '{{.Server.Version}}'), compose $(docker compose version --short)"
}

down() {
  [ -f "$pid_file" ] || { say "there is no engine that was started here"; return; }
  local pid
  pid=$(cat "$pid_file")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 150); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.2
  done
  if [ -f "$forward_file" ]; then
    { read -r forward; read -r policy || true; } < "$forward_file"
    sysctl -qw "net.ipv4.ip_forward=$forward" || true
    [ -z "${policy:-}" ] || iptables -P FORWARD "$policy" || true
    rm -f "$forward_file"
  fi
  rm -f "$pid_file"
  say "stopped"
}

case "${1:-}" in
  up | down) "$1" ;;
  *) fail "say up or down" ;;
esac
