# shellcheck shell=bash disable=SC2034  # sourced, after settings.sh; the other scripts use these variables
# What a cluster consists of, as cluster-up was told: sets mode, with_kueue, num_fake_nodes, num_fake_gpus.

# parse ARGUMENT...
parse() {
  mode=control-plane with_kueue='' num_fake_nodes='' num_fake_gpus=0
  while (($#)); do
    case $1 in
      --node) mode=node ;;
      --kueue) with_kueue=yes ;;
      --fake-nodes) num_fake_nodes=$(number "$@") ;;
      --fake-gpus) num_fake_gpus=$(number "$@") ;;
      *) fail "$USAGE" "no such argument: $1; see tools/devcluster/up.sh --help" ;;
    esac
    [[ $1 == --node || $1 == --kueue ]] || shift
    shift
  done
  if [[ $mode == control-plane ]]; then
    ((num_fake_gpus == 0)) || fail "$USAGE" "--fake-gpus is for the real node: add --node"
    API_ADDRESS=127.0.0.1 num_fake_nodes=${num_fake_nodes:-4}
  else
    API_ADDRESS=$BRIDGE_IP num_fake_nodes=${num_fake_nodes:-0}
  fi
}

# number OPTION VALUE: the value, which must be one.
number() {
  [[ ${2-} =~ ^[0-9]+$ ]] || fail "$USAGE" "$1 needs a number, got ${2-nothing}"
  echo "$((10#$2))"
}

# arguments_text: the same in words.
arguments_text() {
  [[ $mode != node ]] || printf -- '--node --fake-gpus %s ' "$num_fake_gpus"
  [[ -z $with_kueue ]] || printf -- '--kueue '
  printf -- '--fake-nodes %s\n' "$num_fake_nodes"
}

# saved_arguments: what the cluster of the state folder was asked for.
saved_arguments() { [[ ! -f $ARGUMENTS ]] || cat "$ARGUMENTS"; }

parse_saved() {
  local words=()
  read -ra words < <(saved_arguments) || true
  parse "${words[@]}"
}

# parts: the processes of the cluster, in the order in which they start.
parts() {
  printf '%s\n' etcd kube-apiserver kube-controller-manager kube-scheduler ray-operator
  [[ -z $with_kueue ]] || echo kueue
  [[ $mode != node ]] || printf '%s\n' containerd coredns kubelet kube-proxy network-policies
  ((num_fake_nodes == 0)) || echo kwok
}
