#!/usr/bin/env bash
# Check that a tag names the version of pyproject.toml, and that the chart's is the same: print the version.
#
#   tools/release/check_tag.sh v1.2.3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
tag=${1-}
if [[ $tag != "v$version" ]]; then
  printf 'error: the tag is not the version: got %s, allowed v%s; change version in pyproject.toml, run make generate, %s\n' \
    "${tag:-no tag}" "$version" "and tag that commit" >&2
  exit 2
fi
for name in version appVersion; do
  grep -qx "$name: $version" charts/rlhf-operator/Chart.yaml || {
    printf 'error: the chart has another %s than pyproject.toml: run make generate\n' "$name" >&2
    exit 2
  }
done
echo "$version"
