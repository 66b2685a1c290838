# shellcheck shell=bash disable=SC2034  # sourced, after settings.sh; the other scripts use these variables
# Where the binaries are: below the cache folder, keyed by what they are built from, or in KUBEBUILDER_ASSETS.

CONTROL_PLANE=(etcd kube-apiserver kube-controller-manager kube-scheduler kubectl helm ray-operator kwok)
NODE=(kubelet kube-proxy coredns pause runc-lite)
TESTS=(kueue kubeconform promtool actionlint monitoring-crds) # what tests need besides the control plane

# pin COMMAND: sets pin_source, pin_package, pin_version, pin_tags, pin_flags (of the linker) and pin_folder, where
# its binary belongs. The folder's name changes with everything that changes what the binary does.
pin() {
  local line hash files=()
  line=$(grep "^$1 " "$ROOT/pins.txt") || fail "$USAGE" "pins.txt has no command $1"
  read -r _ pin_source pin_package <<<"$line"
  pin_version=${pin_source##*@}
  if [[ $pin_source == modules/* ]]; then
    mapfile -t files < <(find "$ROOT/$pin_source" -type f | LC_ALL=C sort)
    pin_version=$(required_version "$ROOT/$pin_source/go.mod" "$pin_package")
  fi
  pin_tags=$(build_tags "$1")
  pin_flags=$(linker_flags "$1" "$pin_version")
  hash=$({ echo "$pin_source $pin_package $pin_tags$pin_flags" && cat /dev/null "${files[@]}"; } | sha256sum)
  pin_folder=$DEVCLUSTER_CACHE/$1/${pin_version:-local}-${hash:0:8}
}

# required_version GO.MOD PACKAGE: of the module that has the package, if the file requires one.
required_version() {
  awk -v package="$2/" '
    { sub(/^require /, "") }
    $2 ~ /^v[0-9]/ && index(package, $1 "/") == 1 && length($1) > length(module) { module = $1; version = $2 }
    END { print version }' "$1"
}

# build_tags COMMAND: promtool without the clients of two dozen clouds, which find targets and take minutes to
# compile.
build_tags() { [[ $1 != promtool ]] || echo remove_all_sd; }

# linker_flags COMMAND VERSION: without a version the API server reports v0.0.0, and clients guess its features
# wrongly. Helm takes the cluster of `helm template` to be of the version given here.
linker_flags() {
  local package=k8s.io/component-base/version minor=${2#v1.}
  case $1 in
    kube*)
      echo "-s -w -X $package.gitVersion=$2 -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}" \
        "-X $package.gitTreeState=clean"
      ;;
    helm)
      package=helm.sh/helm/v3/pkg/chartutil
      minor=$(required_version "$ROOT/modules/kubernetes/go.mod" k8s.io/kubernetes) minor=${minor#v1.}
      echo "-s -w -X helm.sh/helm/v3/internal/version.version=$2 -X $package.k8sVersionMajor=1" \
        "-X $package.k8sVersionMinor=${minor%%.*}"
      ;;
    coredns) echo "-s -w -X github.com/coredns/coredns/coremain.GitCommit=$2" ;;
    *) echo "-s -w" ;;
  esac
}

# in_assets COMMAND: its path in KUBEBUILDER_ASSETS. Those are used when their API server is of the minor
# version that the controllers and the scheduler are built from.
in_assets() {
  local folder=${KUBEBUILDER_ASSETS-} version
  [[ $1 =~ ^(etcd|kube-apiserver|kubectl)$ && -x $folder/$1 ]] || return
  if [[ -x $folder/kube-apiserver ]]; then
    version=$("$folder/kube-apiserver" --version)
    pin kube-apiserver
    [[ $version == "Kubernetes ${pin_version%.*}."* ]] || return
  fi
  echo "$(realpath "$folder")/$1"
}

# binary COMMAND: its path, if it is there.
binary() {
  in_assets "$1" && return
  pin "$1"
  [[ -x $pin_folder/$1 ]] && echo "$pin_folder/$1"
}

# missing COMMAND...: those that are not built yet.
missing() {
  local command
  for command in "$@"; do
    binary "$command" >/dev/null || echo "$command"
  done
}

# link COMMAND...: the cluster's own links, which keep what it was started with while it lasts.
link() {
  local command
  mkdir -p "$BIN"
  for command in "$@"; do
    [[ -x $BIN/$command ]] || ln -sfn "$(binary "$command")" "$BIN/$command"
  done
}

# version COMMAND: of the cluster's binary, as its folder says.
version() {
  local path folder
  path=$(readlink "$BIN/$1") || return
  folder=$(basename "$(dirname "$path")")
  if [[ $path == "$DEVCLUSTER_CACHE"/* ]]; then echo "${folder%-*}"; else echo "KUBEBUILDER_ASSETS"; fi
}
