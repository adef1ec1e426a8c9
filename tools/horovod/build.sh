#!/usr/bin/env bash
# Build Horovod 0.28.1 against the installed torch, and install it: make horovod, or
#
#     PYTHON=.venv/bin/python tools/horovod/build.sh [--wheel-only]
#
# torch-2.patch changes four places, none of which runs in a step: C++20 in place of C++14, twice, for today's torch
# headers; a second initialisation with other settings, which wrote beyond the end of a vector; no debugging symbols. A
# torch of CUDA brings CUDA into the build. Without nvcc, without-cuda.patch prevents that, and Horovod then averages on
# CPUs alone. There is Gloo and no MPI, and NCCL where there is a GPU with NCCL's headers.
#
# The wheel (0.28.1+xbench) is kept in $XBENCH_CACHE/horovod, else $XDG_CACHE_HOME/xbench/horovod, else
# ~/.cache/xbench/horovod, in a folder named after what it depends on. pip gets what pinned.txt lists, and nothing else.
set -euo pipefail
version=0.28.1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$(command -v "${PYTHON:-python}")
bin=$(cd "$(dirname "$python")" && pwd)
python=$bin/${python##*/} # not resolved: a venv's python is a link
export PATH="$bin:$PATH"

fail() { echo "error: $1" >&2; exit 2; }
pip() { "$python" -m pip --disable-pip-version-check --quiet "$@"; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Install these packages as pinned, with "missing" only those that are not there.
get() {
  local names=("$@")
  if [[ $1 == missing ]]; then
    mapfile -t names < <("$python" - "${@:2}" <<'END'
import sys
from importlib.metadata import distributions
there = {found.name.lower(): int(found.version.split(".")[0]) for found in distributions()}
print(*(name for name in sys.argv[1:] if there.get(name, -1) < (70 if name == "setuptools" else 0)), sep="\n")
END
    )
  fi
  [[ -z ${names[*]} ]] ||
    pip install --no-deps --only-binary :all: --require-hashes --requirement <(pinned "${names[@]}")
}
# The lines of pinned.txt that are about these packages.
pinned() {
  awk -v names="$*" 'BEGIN { split(names, list, " "); for (i in list) wanted[list[i]] }
    /^[a-z]/ { split($1, name, "=="); keep = name[1] in wanted } keep' "$here/pinned.txt"
}
imported=(cloudpickle psutil pyyaml packaging cffi pycparser)

described=$("$python" -c '
import sys, sysconfig, torch
print(torch.__version__.partition("+")[0], torch.version.cuda or "none")
print("py%d.%d-%s" % (*sys.version_info[:2], sysconfig.get_platform()))') ||
  fail "Horovod is built against torch, and none is installed"
{ read -r torch cuda; read -r platform; } <<<"$described"
kind=cpu
cuda_home=${CUDA_HOME:-/usr/local/cuda}
if [[ $cuda != none && -x $cuda_home/bin/nvcc ]]; then
  kind=cuda
  for root in /usr /usr/local; do
    [[ -e /proc/driver/nvidia/version && -e $root/include/nccl.h ]] || continue
    if compgen -G "$root/lib*/*/libnccl.so" >/dev/null; then
      kind=nccl nccl_home=$root
      break
    fi
  done
fi
cache=${XBENCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/xbench}/horovod/$torch-$platform-$kind

if ! compgen -G "$cache/horovod-$version+xbench-*.whl" >/dev/null; then
  command -v g++ >/dev/null && command -v make >/dev/null || fail "Horovod is C++: apt-get install g++ make"
  get missing setuptools "${imported[@]}"
  command -v cmake >/dev/null || get cmake
  for name in "${!HOROVOD_@}"; do unset "$name"; done
  export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1
  export HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO
  export CMAKE_POLICY_VERSION_MINIMUM=3.5 # CMake 4 refuses the older minimum of the bundled Gloo
  export MAKEFLAGS=${MAKEFLAGS:--j$(nproc)}
  if [[ $kind != cpu ]]; then
    export CUDA_HOME=$cuda_home HOROVOD_CUDA_HOME=$cuda_home PATH="$PATH:$cuda_home/bin"
  fi
  if [[ $kind == nccl ]]; then
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME=$nccl_home HOROVOD_NCCL_LINK=SHARED
  fi
  pip download --no-binary :all: --no-deps --no-build-isolation --dest "$work" \
    --require-hashes --requirement <(pinned horovod)
  tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
  patch --quiet --strip 1 --directory "$work/horovod-$version" <"$here/torch-2.patch"
  [[ $kind != cpu ]] || patch --quiet --strip 1 --directory "$work/horovod-$version" <"$here/without-cuda.patch"
  echo "building Horovod $version against torch $torch ($kind), which takes about 5 minutes on two cores" >&2
  mkdir -p "$cache"
  part=$(mktemp -d "$cache/part.XXXXXX")
  trap 'rm -rf "$work" "$part"' EXIT
  # Set before the download, pip would look for a source distribution of that local version.
  HOROVOD_LOCAL_VERSION=xbench \
    pip wheel --no-deps --no-build-isolation --wheel-dir "$part" "$work/horovod-$version"
  mv "$part/"horovod-*.whl "$cache"
fi
wheel=$(compgen -G "$cache/horovod-$version+xbench-*.whl" | head -n 1)
if [[ ${1:-} != --wheel-only ]]; then
  get missing "${imported[@]}"
  pip install --force-reinstall --no-deps "$wheel"
  (cd / && "$python" -c 'import horovod.torch as hvd; assert hvd.gloo_built()')
fi
echo "$wheel" >&2
