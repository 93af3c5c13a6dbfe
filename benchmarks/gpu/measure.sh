#!/usr/bin/env bash
# Everything that is to be measured on a GPU, in stretches of at most eight minutes, by value:
#
#   benchmarks/gpu/measure.sh FOLDER [STRETCH ...]
#
#   steps     step times, memory and share of the roofline at two large shapes, beside PyTorch;
#             a run's curve beside a CPU's
#   runs      runs with one GPU, with a CPU beside it, and Hogbatch with a pool
#   own       workers by Dask's commands, on the GPU and a CPU, by the barrier and by the quorum
#   cluster   merges between two processes on the GPU, over ucx and over tcp
#   trees     label trees beside a CPU's cores: kernels alone, and runs
#   tests     every CUDA kernel against its slow twin, and a cluster with them
#
# FOLDER holds bibtex, delicious, nvd-product and stackex4-2k. Each stretch writes its results at once, in benchmarks/results,
# and its output to LOGS (a folder; default: runs/gpu); one that failed or ran out of time does not
# hold up the next, and can be repeated. PYTHON names the interpreter (default: python3), which has
# CuPy, and for runs and cluster what the extra cuda12 or cuda13 brings; STRETCH_S is the most seconds
# of a stretch (default: 480).
set -uo pipefail
cd "$(dirname "$0")/../.."
data=${1:?the folder of the data sets}
shift
stretches=("$@")
[ ${#stretches[@]} -gt 0 ] || stretches=(steps runs own cluster trees tests)
python=${PYTHON:-python3} logs=${LOGS:-runs/gpu} results=${DASKXML_RESULTS:-benchmarks/results}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$logs"
failed=0
for stretch in "${stretches[@]}"; do
  case $stretch in
    steps) command=("$python" benchmarks/gpu/check.py --out "$results/gpu_steps.json") ;;
    runs) command=("$python" benchmarks/gpu/runs.py "$data") ;;
    own) command=("$python" benchmarks/gpu/runs.py "$data" --own-cluster --sets stackex4-2k) ;;
    cluster) command=("$python" benchmarks/gpu/cluster.py) ;;
    trees) command=("$python" benchmarks/gpu/runs.py "$data" --trees) ;;
    tests) command=("$python" -m pytest -q -p no:cacheprovider tests/kernels
      tests/worker/test_cuda_replica.py tests/worker/test_cuda_trees.py tests/benchmarks/test_gpu_check.py
      tests/cluster/test_gpu_cluster.py) ;;
    *) echo "$stretch: no such stretch: steps, runs, own, cluster, trees, tests" >&2; exit 2 ;;
  esac
  begun=$SECONDS
  timeout "${STRETCH_S:-480}" "${command[@]}" 2>&1 | tee "$logs/$stretch.log"
  status=${PIPESTATUS[0]}
  echo "$stretch: status $status after $((SECONDS - begun)) s"
  [ "$status" = 0 ] || failed=1
done
exit $failed
