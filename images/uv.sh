#!/bin/sh
# uv inside a build, with what the builder lends for its steps: settings and certificates as secrets, which no
# layer keeps, and a folder with packages that were downloaded before. Each may be missing.
set -eu

[ ! -f /run/secrets/uv.toml ] || export UV_CONFIG_FILE=/run/secrets/uv.toml
[ ! -f /run/secrets/ca.pem ] || export SSL_CERT_FILE=/run/secrets/ca.pem
if [ -n "$(ls -A /run/uv-cache 2>/dev/null)" ]; then
  export UV_CACHE_DIR=/run/uv-cache UV_LINK_MODE=copy
else
  export UV_NO_CACHE=1
fi
exec /tools/bin/uv "$@"
