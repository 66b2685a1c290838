# shellcheck shell=bash  # sourced, after node.sh
# What a node leaves on the host beside its processes, and its removal. The kubelet is gone by then.

remove_containers() {
  local id
  [[ -f $CONFIG/containerd.toml ]] || return 0
  start_containerd # if it was killed: it unmounts the containers' file systems
  for id in $(in_containerd tasks list --quiet); do
    in_containerd tasks delete --force "$id" >/dev/null 2>&1 || true
  done
  for id in $(in_containerd containers list --quiet); do
    in_containerd containers delete "$id" >/dev/null 2>&1 || true
    rm -f /var/lib/cni/results/*-"$id"-* # what CNI remembers of a pod whose network is not torn down
  done
}

remove_mounts() {
  local mount
  awk -v prefix="$DEVCLUSTER_STATE/" 'index($5, prefix) == 1 {print $5}' /proc/self/mountinfo | sort -r |
    while read -r mount; do umount "$mount" || umount --lazy "$mount"; done
}

remove_network() {
  nft delete table ip kube-proxy 2>/dev/null || true
  nft delete table ip6 kube-proxy 2>/dev/null || true
  nft delete table ip devcluster-policies 2>/dev/null || true
  ip link delete "$BRIDGE" 2>/dev/null || true
}

remove_cgroups() {
  local root
  for root in $(cgroup_roots); do
    [[ ! -d $root ]] || find "$root" -depth -type d -exec rmdir {} +
  done
}

# remove_strays: what the kubelet puts at fixed paths, whatever its configuration says.
remove_strays() {
  [[ ! -d /var/log/containers ]] || find /var/log/containers -lname "$DEVCLUSTER_STATE/*" -delete
  rm -f /var/lib/kubelet/device-plugins/kubelet.sock
  rmdir /var/lib/kubelet/device-plugins /var/lib/kubelet /var/log/containers 2>/dev/null || true
}
