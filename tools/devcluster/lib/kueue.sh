# shellcheck shell=bash  # sourced, after control-plane.sh and credentials.sh
# Kueue's manager, with the administrator's credential. RayClusters with a queue's name are its to start.

# kueue_certificate: an authority and a server certificate as Kueue makes them for itself (it reads no other
# form), but also for the address of the host.
kueue_certificate() {
  local folder=$PKI/kueue names=DNS:kueue-webhook-service.kueue-system.svc,IP:127.0.0.1
  [[ ! -f $folder/tls.crt ]] || return 0
  mkdir -p "$folder"
  openssl genrsa -traditional -out "$folder/ca.key" 2048 2>/dev/null
  openssl req -x509 -new -key "$folder/ca.key" -subj /O=kueue/CN=kueue-ca -addext subjectAltName=DNS:kueue-ca \
    -days 365 -out "$folder/ca.crt"
  openssl genrsa -traditional -out "$folder/tls.key" 2048 2>/dev/null
  openssl req -new -key "$folder/tls.key" -subj /CN=kueue-webhook-service.kueue-system.svc |
    openssl x509 -req -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -CAcreateserial -days 365 -out "$folder/new.crt" \
      -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$names") 2>/dev/null
  mv "$folder/new.crt" "$folder/tls.crt"
}

# kueue_webhooks FILE: those for RayClusters and for Kueue's own kinds, at the host's address. The others are
# about kinds that are not integrated; they would stop every Pod and Deployment while Kueue is away.
kueue_webhooks() {
  awk -v url="https://127.0.0.1:$KUEUE_WEBHOOK_PORT" -v ca="$(base64 -w0 "$PKI/kueue/ca.crt")" '
    function flush() { if (block ~ /\/[a-z]+-(ray-io-v1-raycluster|kueue-x-k8s-io-)/) printf "%s", block; block = "" }
    /^(- |---)/ { flush(); entry = /^- / }
    !entry { sub(/name: /, "name: kueue-"); print; next }
    /^    service:$/ || /^      name(space)?: / { next }
    /^      path: / { $0 = "    caBundle: " ca "\n    url: " url $2 }
    { block = block $0 "\n" }
    END { flush() }' "$1"
}

# kueue_kinds: its resource definitions, for the same reason as KubeRay's.
kueue_kinds() {
  local folder kind
  ! alive kueue || return 0
  folder=$(dirname "$(readlink "$BIN/kueue")")
  kueue_certificate
  kube apply --server-side --force-conflicts --validate=false --filename "$folder/crds" >/dev/null ||
    fail "$MACHINE" "Kueue's resource definitions were refused; the reason is above"
  # Objects are stored in another version than the one that Kueue speaks; it translates them itself.
  for kind in localqueues clusterqueues workloads cohorts multikueueclusters; do
    kube patch crd "$kind.kueue.x-k8s.io" --type=merge --patch "{\"spec\": {\"conversion\": {
      \"strategy\": \"Webhook\", \"webhook\": {\"conversionReviewVersions\": [\"v1\"], \"clientConfig\": {
        \"url\": \"https://127.0.0.1:$KUEUE_WEBHOOK_PORT/convert\",
        \"caBundle\": \"$(base64 -w0 "$PKI/kueue/ca.crt")\"}}}}}" >/dev/null
  done
}

# kueue_objects: what its own chart would install besides its roles.
kueue_objects() {
  local folder=$PKI/kueue
  kube create namespace kueue-system --dry-run=client --output=yaml
  echo ---
  kube create secret generic kueue-webhook-server-cert --namespace kueue-system --dry-run=client --output=yaml \
    --from-file="$folder/ca.crt" --from-file="$folder/ca.key" \
    --from-file="$folder/tls.crt" --from-file="$folder/tls.key"
  kueue_webhooks "$(dirname "$(readlink "$BIN/kueue")")/webhooks.yaml"
}

kueue() {
  if ! alive kueue; then
    kueue_objects | kube apply --server-side --force-conflicts --filename - >/dev/null
    render kueue.yaml "$CONFIG/kueue.yaml"
  fi
  start kueue "$BIN/kueue" --kubeconfig "$ADMIN" --config "$CONFIG/kueue.yaml"
  wait_for kueue 60 healthy "http://127.0.0.1:$KUEUE_HEALTH_PORT/readyz"
  say "Kueue $(version kueue): ready"
}
