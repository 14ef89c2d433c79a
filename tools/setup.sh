#!/usr/bin/env bash
# Installs the Debian packages that building, testing and the demo need, and the Python environment
# that tools and client tests use. Does nothing, quickly, when all of it is there.
#
#   tools/setup.sh            what building needs
#   tools/setup.sh test       also what tests, format and lint need, and build/venv with
#                             tools/requirements.txt
#   tools/setup.sh hip        what `make hip` needs: Debian's hipcc, which is left out otherwise for
#                             its size (66 MB to fetch, 350 MB of disk)
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  g++ cmake ninja-build make git ca-certificates
  libfmt-dev libspdlog-dev nlohmann-json3-dev  # base
  libutf8proc-dev libpcre2-dev                              # text
  libhwy-dev                                                # SIMD
  libboost-dev libboost-system-dev libssl-dev               # HTTP
  libcurl4-openssl-dev libsqlite3-dev                       # bench client and store
)
if [ "${1:-}" = test ]; then
  packages+=(libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy python3 python3-venv
             clang-14 libclang-rt-14-dev)  # fuzz targets, libFuzzer
fi

if [ "${1:-}" = hip ]; then packages+=(hipcc); fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${#missing[@]} Debian packages with apt-get: ${missing[*]}"
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "setup: run as root, or install these yourself: apt-get install ${missing[*]}" >&2
      exit 1
    fi
    sudo=sudo
  fi
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -qq
  # Without a flush to disk after every file: several times faster on slow disks.
  $sudo apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-unsafe-io \
    "${missing[@]}" >/dev/null
fi

[ "${1:-}" = test ] || exit 0
venv=build/venv
stamp=$venv/.requirements
if ! cmp -s tools/requirements.txt "$stamp" 2>/dev/null; then
  echo "setup: making the Python environment $venv with pip from tools/requirements.txt"
  rm -rf "$venv"
  if python3 -m venv "$venv" && "$venv/bin/pip" install -q --disable-pip-version-check -r tools/requirements.txt; then
    cp tools/requirements.txt "$stamp"
  else
    # Tests that need these packages look for the stamp and say why they were skipped.
    echo "setup: the Python package index could not be reached; client tests will be skipped" >&2
    rm -f "$stamp"
  fi
fi
