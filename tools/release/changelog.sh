#!/usr/bin/env bash
# Print the titles of the commits since the last release before a tag, as a list in Markdown.
#
#   tools/release/changelog.sh v1.2.3
set -euo pipefail

tag=${1:?usage: tools/release/changelog.sh TAG}
before=$(git describe --tags --abbrev=0 --match 'v*' "$tag^" 2>/dev/null || true)
printf '## %s\n\n' "${tag#v}"
[[ -z $before ]] || printf 'Changes since %s:\n\n' "${before#v}"
git log --no-merges --reverse --format='- %s' ${before:+"$before.."}"$tag"
