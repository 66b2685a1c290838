#!/usr/bin/env bash
# Say what of the cluster runs, in which version and where, and how to use it. Exit code 1: a part has ended.
set -euo pipefail
# shellcheck source=lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/settings.sh"
# shellcheck source=lib/arguments.sh
source "$ROOT/lib/arguments.sh"
# shellcheck source=lib/binaries.sh
source "$ROOT/lib/binaries.sh"
# shellcheck source=lib/ports.sh
source "$ROOT/lib/ports.sh"
# shellcheck source=lib/process.sh
source "$ROOT/lib/process.sh"

# address PART: where it answers.
address() {
  case $1 in
    etcd) echo "https://127.0.0.1:$ETCD_PORT" ;;
    kube-apiserver) echo "https://$API_ADDRESS:$API_PORT" ;;
    kube-controller-manager) echo "https://127.0.0.1:$CONTROLLER_MANAGER_PORT" ;;
    kube-scheduler) echo "https://127.0.0.1:$SCHEDULER_PORT" ;;
    ray-operator) echo "http://127.0.0.1:$KUBERAY_METRICS_PORT/metrics" ;;
    kueue) echo "https://127.0.0.1:$KUEUE_WEBHOOK_PORT" ;;
    kwok) echo "http://127.0.0.1:$KWOK_PORT" ;;
    containerd) echo "$DEVCLUSTER_STATE/containerd.sock" ;;
    coredns) echo "$BRIDGE_IP:53" ;;
    kubelet) echo "https://$BRIDGE_IP:10250" ;;
    kube-proxy) echo "http://127.0.0.1:$PROXY_METRICS_PORT/metrics" ;;
  esac
}

[[ -f $ARGUMENTS ]] || { say "No cluster in $DEVCLUSTER_STATE: make cluster-up starts one" && exit; }
parse_saved
[[ -f $PORT_FILE ]] ||
  fail 1 "the start of the cluster in $DEVCLUSTER_STATE was interrupted: make cluster-up goes on"
set_ports "$(<"$PORT_FILE")"
ended=()
say "Cluster in $DEVCLUSTER_STATE ($mode, $num_fake_nodes fake nodes)"
for part in $(parts); do
  if pid=$(pid_of "$part"); then state="pid $pid"; else state=ended && ended+=("$part"); fi
  version=$(version "$part") || version=installed
  printf '  %-24s %-19s %-12s %s\n' "$part" "$version" "$state" "$(address "$part")"
done
say "Logs: $LOGS"
say "Kubeconfig: $ADMIN"
say "To use it: $(environment); kubectl get nodes"
((${#ended[@]} == 0)) ||
  fail 1 "ended: ${ended[*]}; make cluster-up starts them again, their logs say why they ended"
