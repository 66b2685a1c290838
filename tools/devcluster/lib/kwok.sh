# shellcheck shell=bash  # sourced, after control-plane.sh
# Fake nodes: kwok plays their kubelets, and their pods become Ready without running.

# fake_node NAME
fake_node() {
  # Beside a real node they are tainted, so that a pod that must run does not land there.
  local taints='[]'
  [[ $mode == control-plane ]] || taints='[{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]'
  printf -- '---\n'
  sed -e "s|@NAME@|$1|g" -e "s|@TAINTS@|$taints|" "$ROOT/config/kwok-node.yaml"
}

# fake_nodes_ready NUMBER: whether that many are. `kubectl wait` takes a second for each five.
fake_nodes_ready() {
  (($(kube get nodes --selector type=kwok --no-headers | grep -c ' Ready ') == $1))
}

# fake_nodes NUMBER: that many and no more.
fake_nodes() {
  local i name
  for name in $(kube get nodes --selector type=kwok --output name); do
    ((${name#node/gpu-} < $1)) || kube delete "$name" --wait=false >/dev/null
  done
  if (($1 == 0)); then
    stop 10 kwok
    return
  fi
  # By itself it would listen on every address of the host.
  start kwok "$BIN/kwok" --kubeconfig "$ADMIN" --config "$ROOT/config/kwok.yaml" \
    --manage-all-nodes=false --manage-nodes-with-annotation-selector kwok.x-k8s.io/node=fake \
    --node-lease-duration-seconds 40 --server-address "127.0.0.1:$KWOK_PORT"
  wait_for kwok 60 healthy "http://127.0.0.1:$KWOK_PORT/healthz"
  for ((i = 0; i < $1; i++)); do fake_node "gpu-$i"; done | kube apply --filename - >/dev/null
  wait_for kwok 60 fake_nodes_ready "$1"
  say "kwok $(version kwok): $1 fake nodes of 8 nvidia.com/gpu ready"
}
