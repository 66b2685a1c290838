# shellcheck shell=bash  # sourced, after control-plane.sh
# One node that really runs containers: containerd, the kubelet, DNS, service routing, a bridge of the host.

# node_conflicts: what of this host another node already uses; there can be one.
node_conflicts() {
  local owner
  if owner=$(cat "/sys/class/net/$BRIDGE/ifalias" 2>/dev/null); then
    [[ ${owner:-$DEVCLUSTER_STATE} == "$DEVCLUSTER_STATE" ]] ||
      echo "the network $BRIDGE belongs to another cluster: run \`DEVCLUSTER_STATE=$owner make cluster-down\`"
  elif [[ -f $ARGUMENTS ]]; then
    : # a node that was ours before the host was started anew
  elif nft list table ip kube-proxy >/dev/null 2>&1; then
    echo "kube-proxy runs on this host already; the node needs the nftables table kube-proxy for itself"
  elif [[ -e /var/lib/kubelet/device-plugins/kubelet.sock ]]; then
    echo "a kubelet runs on this host already (/var/lib/kubelet/device-plugins/kubelet.sock)"
  fi
}

# bridge: the pods' network, which also carries the API server's address. Its alias says whose it is.
bridge() {
  ip link show "$BRIDGE" >/dev/null 2>&1 || ip link add "$BRIDGE" type bridge
  ip link set "$BRIDGE" alias "$DEVCLUSTER_STATE"
  ip address replace "$BRIDGE_IP/${DEVCLUSTER_POD_CIDR#*/}" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  # For ClusterIPs between pods of one bridge: replies must pass the address translation as well.
  sysctl -q -w net.ipv4.ip_forward=1
  [[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ]] || sysctl -q -w net.bridge.bridge-nf-call-iptables=1
}

# cgroup_roots: the node's cgroup in every hierarchy.
cgroup_roots() {
  local hierarchy
  if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
    echo "/sys/fs/cgroup/$CGROUP"
  else
    for hierarchy in /sys/fs/cgroup/*/cgroup.procs; do echo "${hierarchy%/*}/$CGROUP"; done
  fi
}

make_cgroups() {
  local root file
  for root in $(cgroup_roots); do
    mkdir -p "$root"
    for file in cpuset.cpus cpuset.mems; do # a new cpuset of cgroup v1 is empty and accepts no process
      [[ $root != */cpuset/* || -s $root/$file ]] || cat "$(dirname "$root")/$file" >"$root/$file"
    done
    give_cores "$root"
  done
}

# give_cores FOLDER: all pods together weigh, against what else runs on the host, as much as its cores; a new cgroup
# weighs as much as one process.
give_cores() {
  local cores
  cores=$(nproc)
  [[ ! -f $1/cpu.shares ]] || echo $((1024 * cores)) >"$1/cpu.shares"
  [[ ! -f $1/cpu.weight ]] || echo $((100 * cores)) >"$1/cpu.weight"
}

# in_containerd ARGUMENT...: asks the node's own containerd.
in_containerd() { ctr --address "$CONTAINERD_SOCKET" --namespace k8s.io "$@"; }

start_containerd() {
  start containerd containerd --config "$CONFIG/containerd.toml"
  wait_for containerd 30 in_containerd version
}

start_dns() {
  render Corefile "$CONFIG/Corefile"
  kube apply --filename "$ROOT/config/rbac.yaml" >/dev/null
  start coredns "$BIN/coredns" -conf "$CONFIG/Corefile"
  wait_for coredns 30 healthy "http://127.0.0.1:$DNS_HEALTH_PORT/ready"
}

start_kubelet() {
  mkdir -p "$CONFIG/cni" "$DEVCLUSTER_STATE/volume-plugins"
  render kubelet.yaml "$CONFIG/kubelet.yaml"
  render cni.conflist "$CONFIG/cni/10-devcluster.conflist"
  printf 'nameserver %s\n' "$BRIDGE_IP" >"$CONFIG/resolv.conf" # for pods with dnsPolicy: Default
  start kubelet "$BIN/kubelet" --config "$CONFIG/kubelet.yaml" --kubeconfig "$PKI/kubelet.kubeconfig" \
    --containerd "$CONTAINERD_SOCKET" --root-dir "$DEVCLUSTER_STATE/kubelet" \
    --cert-dir "$DEVCLUSTER_STATE/kubelet/pki" --hostname-override "$DEVCLUSTER_NODE" --node-ip "$BRIDGE_IP"
  # After a restart the node still reads Ready from before.
  wait_for kubelet 60 healthy "http://127.0.0.1:$KUBELET_HEALTH_PORT/healthz"
  wait_for kubelet 60 kube wait --for=condition=Ready --timeout=1s "node/$DEVCLUSTER_NODE"
}

start_kube_proxy() {
  render kube-proxy.yaml "$CONFIG/kube-proxy.yaml"
  start kube-proxy "$BIN/kube-proxy" --config "$CONFIG/kube-proxy.yaml"
  wait_for kube-proxy 60 nft get element ip kube-proxy cluster-ips "{ $SERVICE_API_IP }"
}

# start_network_policies: a program of its own, because the bridge plugin enforces none.
start_network_policies() {
  start network-policies "$ROOT/node/network-policies.py" "$API_ADDRESS:$API_PORT" "$PKI" admin
  wait_for network-policies 30 nft list table ip devcluster-policies
}

# provide_volume: one volume for whoever claims it, as an administrator would make it: a folder of the host, which
# the user of jobs' pods may write.
provide_volume() {
  install --directory --owner 1000 --group 1000 "$DEVCLUSTER_STATE/volumes/shared"
  render volume.yaml "$CONFIG/volume.yaml"
  kube apply --filename "$CONFIG/volume.yaml" >/dev/null
}

node() {
  make_cgroups
  render containerd.toml "$CONFIG/containerd.toml"
  start_containerd
  "$ROOT/node/one-file-image.py" "$BIN/pause" localhost/pause:1 | in_containerd images import - >/dev/null
  start_dns
  start_kubelet
  start_kube_proxy
  start_network_policies
  provide_volume
  say "Node $DEVCLUSTER_NODE ($(version kubelet)): ready"
}

# advertise_gpus NUMBER: the kubelet keeps an extended resource that no device plugin manages.
advertise_gpus() {
  local gpus="{\"nvidia.com/gpu\": \"$1\"}"
  kube patch node "$DEVCLUSTER_NODE" --subresource status --type merge \
    --patch "{\"status\": {\"capacity\": $gpus, \"allocatable\": $gpus}}" >/dev/null
  say "Node $DEVCLUSTER_NODE: advertises nvidia.com/gpu: $1"
}
