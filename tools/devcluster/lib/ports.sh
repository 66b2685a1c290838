# shellcheck shell=bash disable=SC2034  # sourced, after settings.sh; the other scripts use these variables
# The ports of a cluster: NUM_PORTS in a row, of which DEVCLUSTER_PORT is the first (or `auto`: free ones).
# They are chosen once and kept in the state folder. Templates of configuration are filled with them.

NUM_PORTS=14
PORT_FILE=$DEVCLUSTER_STATE/port

set_ports() {
  API_PORT=$1 ETCD_PORT=$(($1 + 1)) ETCD_PEER_PORT=$(($1 + 2))
  CONTROLLER_MANAGER_PORT=$(($1 + 3)) SCHEDULER_PORT=$(($1 + 4))
  KUBERAY_METRICS_PORT=$(($1 + 5)) KUBERAY_HEALTH_PORT=$(($1 + 6)) KWOK_PORT=$(($1 + 7))
  DNS_HEALTH_PORT=$(($1 + 8)) KUBELET_HEALTH_PORT=$(($1 + 9))
  PROXY_HEALTH_PORT=$(($1 + 10)) PROXY_METRICS_PORT=$(($1 + 11))
  KUEUE_HEALTH_PORT=$(($1 + 12)) KUEUE_WEBHOOK_PORT=$(($1 + 13))
}

# render FILE TARGET: fills the @NAME@ places of a template. A file that is right is not touched: kube-proxy ends
# itself when its own is written.
render() {
  sed -e "s|@STATE@|$DEVCLUSTER_STATE|g" -e "s|@BIN@|$BIN|g" -e "s|@CGROUP@|$CGROUP|g" \
    -e "s|@BRIDGE@|$BRIDGE|g" -e "s|@BRIDGE_IP@|$BRIDGE_IP|g" -e "s|@POD_CIDR@|$DEVCLUSTER_POD_CIDR|g" \
    -e "s|@NODE@|$DEVCLUSTER_NODE|g" \
    -e "s|@DNS_HEALTH_PORT@|$DNS_HEALTH_PORT|g" \
    -e "s|@KUBELET_HEALTH_PORT@|$KUBELET_HEALTH_PORT|g" -e "s|@PROXY_HEALTH_PORT@|$PROXY_HEALTH_PORT|g" \
    -e "s|@PROXY_METRICS_PORT@|$PROXY_METRICS_PORT|g" \
    -e "s|@KUEUE_HEALTH_PORT@|$KUEUE_HEALTH_PORT|g" -e "s|@KUEUE_WEBHOOK_PORT@|$KUEUE_WEBHOOK_PORT|g" \
    "$ROOT/config/$1" >"$2.new"
  if cmp --silent "$2.new" "$2"; then rm "$2.new"; else mv "$2.new" "$2"; fi
}

# taken FIRST: the first port of the row on which something listens.
taken() {
  local port
  for ((port = $1; port < $1 + NUM_PORTS; port++)); do
    ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port" && return; }
  done
  return 1
}

# free_ports: the first of a row of free ports below those that the kernel gives to outgoing connections.
free_ports() {
  local first
  while first=$((20000 + RANDOM % 900 * NUM_PORTS)) && taken "$first" >/dev/null; do :; done
  echo "$first"
}

# choose_ports: takes the cluster's ports; for a new cluster those of DEVCLUSTER_PORT, if they are free.
choose_ports() {
  local wanted=${DEVCLUSTER_PORT:-16443} port
  if [[ ! -f $PORT_FILE ]]; then
    [[ $wanted != auto ]] || wanted=$(free_ports)
    if [[ ! $wanted =~ ^[0-9]{4,5}$ ]] || ((wanted < 1024 || wanted + NUM_PORTS > 65536)); then
      fail "$USAGE" "DEVCLUSTER_PORT: got $wanted, allowed auto or 1024 to $((65536 - NUM_PORTS))"
    fi
    ! port=$(taken "$wanted") || fail "$MACHINE" "another program listens on port $port, and the cluster" \
      "needs $wanted to $((wanted + NUM_PORTS - 1)): set DEVCLUSTER_PORT=auto, or to the first of free ones"
    echo "$wanted" >"$PORT_FILE"
  fi
  set_ports "$(<"$PORT_FILE")"
}
