# shellcheck shell=bash  # sourced, after settings.sh and binaries.sh
# What the machine must have before anything is started: everything that is missing is said at once.

# Debian's package of each program.
declare -A PACKAGE_OF=(
  [curl]=curl [openssl]=openssl [flock]=util-linux [setsid]=util-linux
  [containerd]=containerd [ctr]=containerd [runc]=runc [nft]=nftables [ip]=iproute2 [sysctl]=procps
  [python3]=python3 [podman]=podman [mmdebstrap]=mmdebstrap
)

# refuse PROBLEMS: ends the script when there are any, one a line.
refuse() {
  local indent=$'\n  '
  [[ -z $1 ]] || fail "$MACHINE" "this machine lacks what the cluster needs:$indent${1//$'\n'/$indent}"
}

# programs NAME...
program_problems() {
  local name
  for name in "$@"; do
    command -v "$name" >/dev/null ||
      echo "$name: not installed (Debian and Ubuntu: apt-get install ${PACKAGE_OF[$name]})"
  done
}

# go_problem COMMAND...: why these cannot be built.
go_problem() {
  local version
  if ! version=$(go env GOVERSION 2>/dev/null); then
    echo "go: not installed, and not built yet are $*: install Go 1.21 or newer"
  elif [[ $version =~ ^go1\.([0-9]+) ]] && ((BASH_REMATCH[1] < 21)); then
    echo "go: got $version, and not built yet are $*: install Go 1.21 or newer (it fetches newer ones itself)"
  fi
}

node_problems() {
  [[ $(id -u) == 0 ]] || echo "root: --node makes network interfaces, mounts and cgroups"
  program_problems containerd ctr runc nft ip sysctl python3
  [[ -x /usr/lib/cni/bridge ]] ||
    echo "/usr/lib/cni/bridge: not installed (Debian and Ubuntu: apt-get install containernetworking-plugins)"
}

# room_problem FOLDER NEEDED WHAT: too little room for something that takes so many GB there.
room_problem() {
  local free
  mkdir -p "$1"
  free=$(df --output=avail --block-size=1G "$1" | tail -1)
  ((free >= $2)) || echo "$1: got $((free)) GB free, needed $2 GB for $3: free some, or set DEVCLUSTER_CACHE to a" \
    "folder with more"
}

image_problems() {
  [[ $(id -u) == 0 ]] || echo "root: images are made by mmdebstrap and podman, and lent to the node"
  program_problems podman runc mmdebstrap
}
