#!/usr/bin/env bash
# Unpack wheels for a GPU machine without a network into carry/site (ignored by git): what its Python lacks of our extras.
#   benchmarks/offline_pack.sh [PYTHON_VERSION] [PACKAGE...]
# There: PYTHONPATH=src:carry/site python3 ...
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-3.12}
shift || true
packages=("${@:-}")
[ -n "${packages[0]:-}" ] || packages=(beartype pytest pytest-timeout pytest-xdist execnet hypothesis)
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
.venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
  --python-version "$version" --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform any \
  --dest "$wheels" "${packages[@]}" iniconfig pluggy sortedcontainers packaging
rm -rf carry/site
mkdir -p carry/site
for wheel in "$wheels"/*.whl; do .venv/bin/python -m zipfile -e "$wheel" carry/site; done
du -sh carry/site
