#!/usr/bin/env bash
# Make the image python:3.11-slim-bookworm from Debian's packages, where no registry has to be reached; skipped when
# it exists. build.sh has seen to what it needs; besides that, the host's own apt sources for Debian 12.
set -euo pipefail
# shellcheck source=../lib/settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/../lib/settings.sh"

NAME=python:3.11-slim-bookworm
! "$ROOT/images/podman" image exists "localhost/$NAME" || exit 0
say "Making $NAME from Debian's packages"
folder=$(mktemp --directory)
trap 'rm -rf "$folder"' EXIT
# shellcheck disable=SC2016  # mmdebstrap gives the hooks their $1
# The image of that name has Python in /usr/local and lets pip install into it.
mmdebstrap --quiet --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates \
  --customize-hook='rm "$1/usr/lib/python3.11/EXTERNALLY-MANAGED"' \
  --customize-hook='for name in python python3; do ln -s /usr/bin/python3 "$1/usr/local/bin/$name"; done' \
  --customize-hook='rm -rf "$1"/usr/share/doc "$1"/usr/share/man "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*' \
  bookworm "$folder/base.tar" || fail "$MACHINE" "mmdebstrap failed; the reason is above"
"$ROOT/images/podman" import --quiet --change 'CMD ["python3"]' --change 'ENV LANG=C.UTF-8' \
  --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' \
  "$folder/base.tar" "localhost/$NAME" >/dev/null
