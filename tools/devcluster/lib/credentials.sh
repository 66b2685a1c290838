# shellcheck shell=bash  # sourced, after settings.sh and ports.sh
# Keys, certificates and kubeconfigs of a cluster, from an authority of its own: one cluster's parts cannot
# mistake another cluster for theirs.

# key NAME
key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$PKI/$1.key"; }

# sign NAME SUBJECT EXTENSION: a key and a certificate.
sign() {
  key "$1"
  openssl req -new -key "$PKI/$1.key" -subj "$2" -out "$PKI/$1.csr"
  openssl x509 -req -in "$PKI/$1.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 365 \
    -extfile <(printf '%s\n' "$3") -out "$PKI/$1.crt" 2>/dev/null
  rm "$PKI/$1.csr"
}

# client NAME SUBJECT: a certificate and the kubeconfig that uses it.
client() {
  sign "$1" "$2" extendedKeyUsage=clientAuth
  cat >"$PKI/$1.kubeconfig" <<END
apiVersion: v1
kind: Config
clusters:
  - name: devcluster
    cluster:
      server: https://$API_ADDRESS:$API_PORT
      certificate-authority-data: $(base64 -w0 "$PKI/ca.crt")
users:
  - name: $1
    user:
      client-certificate-data: $(base64 -w0 "$PKI/$1.crt")
      client-key-data: $(base64 -w0 "$PKI/$1.key")
contexts:
  - name: devcluster
    context: {cluster: devcluster, user: $1}
current-context: devcluster
END
}

# credentials: all of them, once; the administrator's comes last, and so says that they are complete.
credentials() {
  [[ ! -f $ADMIN ]] || return 0
  local names=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc
  names+=,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$BRIDGE_IP,IP:$SERVICE_API_IP
  key ca
  openssl req -x509 -new -key "$PKI/ca.key" -subj /CN=devcluster-ca -days 365 -out "$PKI/ca.crt"
  openssl genpkey -quiet -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out "$PKI/service-account.key"
  openssl pkey -in "$PKI/service-account.key" -pubout -out "$PKI/service-account.pub"
  sign etcd /CN=etcd subjectAltName=IP:127.0.0.1
  sign apiserver /CN=kube-apiserver "subjectAltName=$names"
  client kube-controller-manager /CN=system:kube-controller-manager
  client kube-scheduler /CN=system:kube-scheduler
  client kubelet "/O=system:nodes/CN=system:node:$DEVCLUSTER_NODE"
  client kube-proxy /CN=system:kube-proxy
  client coredns /CN=coredns
  client admin /O=system:masters/CN=admin
  mv "$PKI/admin.kubeconfig" "$ADMIN"
}
