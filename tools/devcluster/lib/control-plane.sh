# shellcheck shell=bash  # sourced, after settings.sh, process.sh and ports.sh
# etcd, the API server, the controllers and the scheduler.

# kube ARGUMENT...: this cluster's kubectl, which reads nothing of the user's.
kube() { KUBERC=off "$BIN/kubectl" --kubeconfig "$ADMIN" --cache-dir "$DEVCLUSTER_STATE/kubectl-cache" "$@"; }

etcd() {
  local client=https://127.0.0.1:$ETCD_PORT peer=https://127.0.0.1:$ETCD_PEER_PORT
  local tls=(--cacert "$PKI/ca.crt" --cert "$PKI/admin.crt" --key "$PKI/admin.key")
  # What it keeps is thrown away anyway, so it need not wait for the disk.
  start etcd "$BIN/etcd" --data-dir "$DEVCLUSTER_STATE/etcd" --unsafe-no-fsync \
    --listen-client-urls "$client" --advertise-client-urls "$client" \
    --cert-file "$PKI/etcd.crt" --key-file "$PKI/etcd.key" \
    --client-cert-auth --trusted-ca-file "$PKI/ca.crt" \
    --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" \
    --peer-cert-file "$PKI/etcd.crt" --peer-key-file "$PKI/etcd.key" --peer-client-cert-auth \
    --peer-trusted-ca-file "$PKI/ca.crt"
  wait_for etcd 30 healthy "$client/health" "${tls[@]}"
}

api_server() {
  # shellcheck disable=SC2054  # the comma belongs to --authorization-mode
  local flags=(
    --etcd-servers="https://127.0.0.1:$ETCD_PORT" --etcd-cafile="$PKI/ca.crt"
    --etcd-certfile="$PKI/admin.crt" --etcd-keyfile="$PKI/admin.key"
    --bind-address="$API_ADDRESS" --advertise-address="$API_ADDRESS" --secure-port="$API_PORT"
    --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key"
    --client-ca-file="$PKI/ca.crt" --cert-dir="$PKI"
    --service-account-issuer=https://kubernetes.default.svc
    --service-account-key-file="$PKI/service-account.pub"
    --service-account-signing-key-file="$PKI/service-account.key" --service-cluster-ip-range="$SERVICE_CIDR"
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true
    --kubelet-client-certificate="$PKI/admin.crt" --kubelet-client-key="$PKI/admin.key"
    # The node's name does not resolve on the host.
    --kubelet-preferred-address-types=InternalIP
  )
  # A loopback address may not stand in the endpoints of the Service `kubernetes`.
  [[ $mode == node ]] || flags+=(--endpoint-reconciler-type=none)
  # It collects garbage for a third of the time that it takes to learn all kinds, unless it may use more memory.
  GOGC=400 GOMEMLIMIT=${DEVCLUSTER_API_MEMORY:-2GiB} start kube-apiserver "$BIN/kube-apiserver" "${flags[@]}"
  wait_for kube-apiserver 120 kube get --raw /readyz
  say "API server $(version kube-apiserver): ready"
}

controllers() {
  local flags=(--leader-elect=false --bind-address=127.0.0.1 --cert-dir="$PKI")
  # Its usual rate of requests spreads the start of its controllers over seconds.
  start kube-controller-manager "$BIN/kube-controller-manager" "${flags[@]}" \
    --secure-port="$CONTROLLER_MANAGER_PORT" --kubeconfig="$PKI/kube-controller-manager.kubeconfig" \
    --service-account-private-key-file="$PKI/service-account.key" --root-ca-file="$PKI/ca.crt" \
    --cluster-signing-cert-file="$PKI/ca.crt" --cluster-signing-key-file="$PKI/ca.key" \
    --use-service-account-credentials --kube-api-qps=1000 --kube-api-burst=1000
  start kube-scheduler "$BIN/kube-scheduler" "${flags[@]}" \
    --secure-port="$SCHEDULER_PORT" --kubeconfig="$PKI/kube-scheduler.kubeconfig"
  wait_for kube-controller-manager 60 healthy "https://127.0.0.1:$CONTROLLER_MANAGER_PORT/healthz"
  wait_for kube-controller-manager 60 kube get serviceaccount default
  wait_for kube-scheduler 60 healthy "https://127.0.0.1:$SCHEDULER_PORT/readyz"
  say "Controllers and scheduler $(version kube-scheduler): ready"
}
