# shellcheck shell=bash  # sourced, after control-plane.sh
# KubeRay's operator, with the administrator's credential.

# kinds_served: the API server offers all of them.
kinds_served() {
  local offered file kind
  offered=$(kube get --raw /apis/ray.io/v1) || return
  for file in "$crds"/ray.io_*.yaml; do
    kind=${file##*/ray.io_}
    [[ $offered == *"\"name\":\"${kind%.yaml}\""* ]] || return
  done
}

# kuberay_kinds: its resource definitions. The garbage collector learns of kinds that come after it only every
# 30 s, and until then leaves what a deleted object owned; so these come before it.
kuberay_kinds() {
  local crds
  ! alive ray-operator || return 0
  crds=$(dirname "$(readlink "$BIN/ray-operator")")/crds
  # Too large for the annotation of a client-side apply; checking them takes 8 s.
  kube apply --server-side --force-conflicts --validate=false --filename "$crds" >/dev/null ||
    fail "$MACHINE" "KubeRay's resource definitions were refused; the reason is above"
  wait_for kube-apiserver 60 kinds_served
}

kuberay() {
  # On the host, cluster names do not resolve: the operator reaches Ray through the API server.
  start ray-operator "$BIN/ray-operator" --kubeconfig "$ADMIN" --enable-leader-election=false \
    --use-kubernetes-proxy --reconcile-concurrency 8 --metrics-addr "127.0.0.1:$KUBERAY_METRICS_PORT" \
    --health-probe-bind-address "127.0.0.1:$KUBERAY_HEALTH_PORT"
  wait_for ray-operator 60 healthy "http://127.0.0.1:$KUBERAY_HEALTH_PORT/readyz"
  say "KubeRay $(version ray-operator): ready"
}
