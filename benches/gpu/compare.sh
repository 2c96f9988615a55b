#!/usr/bin/env bash
# Times hir-run and its alternatives on the GPUs of this host, in rounds: a job of hir-run, a job of PyTorch, a
# job of PyTorch, a job of hir-run, ...
#
#   benches/gpu/compare.sh [-b FOLDER_OF_BINARIES] [-r "2 4 8"] [-n ROUNDS] [-i ITERATIONS] [-s SHRINK]
#                          [-f FILTER] [-o FILE] [-t SECONDS] [-u TABLE] [-g] [-c] [WORKLOAD...]
#
#   -b   default: target/release
#   -r   numbers of ranks, up to the number of GPUs
#   -n   number of rounds, each in new processes with new random data; default: 3
#   -i   timed runs of a round; default: 20, after 5 that are not timed
#   -s   divides every extent (and the sizes of collectives by its square), to try this script without
#        fast GPUs
#   -f   an extended regular expression: only measurements of hir-run whose line matches it, such as
#        "allgather-linear 8 m=32768 n=8192 k=16384 @overlap-allgather-linear graph", where 8 is the number of
#        ranks
#   -o   output file, one JSON object per measurement. What the file already contains is not measured again.
#        Without -o: compare.jsonl, which is overwritten
#   -t   starts no turn after this number of seconds. A turn is one round of one workload or one kind of
#        collective, with both jobs, and takes up to about two minutes. The same command continues later.
#   -u   a table of hir-run --tune; hir-run takes the algorithms of matrix products from it
#   -g   collectives as graphs only
#   -c   collectives as graphs only, with a cold L2 cache: the 20 calls of a graph go over slices of larger
#        tensors, and the L2 cache is overwritten before each run
#
# Workloads, all by default: allgather-linear linear-allreduce matmul-reduce-scatter column-parallel row-parallel
# mlp block collectives, or one kind of collective: allreduce allgather reduce-scatter all-to-all.
#
# Every time is the median over runs of the slowest rank. With each layer, the matrix products of one rank are
# measured alone ("matmul only"). Each measurement of hir-run is checked: all outputs of the last timed run are
# finite, hir-run reports them as equal on all ranks that have them, and sampled rows agree with float32 sums
# that PyTorch computes from the inputs that hir-run has written. Outputs are poisoned before every run. Without
# PyTorch nothing else is timed, and the results are compared with those of the simulator, if the shapes are
# small (-s). NVLink multicast is off for all.
#
# The output file also has records: versions once for each call of this script; clocks, power and temperature of
# the GPUs before and after each turn. `regressions.py` compares it with an earlier one, or with `measurements.json`.
#
# Exit codes:
#   0   everything is in the output file
#   1   a measurement of hir-run in the file failed or was wrong, or a job of PyTorch failed
#   2   wrong command line, or a program or PyTorch is missing
#   3   the time of -t was over before everything was measured; nothing has failed
set -u
cd "$(dirname "$0")/../.."
usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
bin=target/release ranks="2 4 8" rounds=3 iterations=20 shrink=1 filter=. lines="" limit="" table="" cold="" issues="--step-by-step -G"
while getopts b:r:n:i:s:f:o:t:u:gch option; do
    case $option in
    b) bin=$OPTARG ;;
    r) ranks=$OPTARG ;;
    n) rounds=$OPTARG ;;
    i) iterations=$OPTARG ;;
    s) shrink=$OPTARG ;;
    f) filter=$OPTARG ;;
    o) lines=$OPTARG ;;
    t) limit=$OPTARG ;;
    u) table=$OPTARG ;;
    g) issues=-G ;;
    c) issues=-G cold=yes ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
run=$bin/hir-run here=benches/gpu since=$SECONDS
. "$here/workloads.sh"
workloads=("$@")
[ ${#workloads[@]} -gt 0 ] || workloads=("${all_workloads[@]}")
for workload in "${workloads[@]}"; do
    [[ " ${all_workloads[*]} ${collectives[*]} " == *" $workload "* ]] || usage
done
[ -x "$run" ] || { echo "compare.sh: no $run: build it with --release, or name its folder with -b" >&2; exit 2; }
# The inputs and outputs of a round, at most about 10 GiB (with -c, 20 GiB); in memory if /dev/shm is large
# enough.
free=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)
work=$(mktemp -d -p "$([ "${free:-0}" -gt 33554432 ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$work"' EXIT
# Both sides use the libraries of one Python installation, if it has them.
export VIRTUAL_ENV=${VIRTUAL_ENV:-$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)}
export PYTHONDONTWRITEBYTECODE=1
while IFS== read -r variable path; do
    [ -n "${!variable:-}" ] || export "$variable=$path"
done < <(python3 $here/peers.py libraries 2>/dev/null)
. "$here/../../tests/gpu/batch.sh"
. "$here/measure.sh"
[ -n "$lines" ] || { lines=compare.jsonl && : >"$lines"; }
touch "$lines" || exit 2
# What the output file has.
declare -A have=()
while IFS= read -r key; do have["$key"]=1; done < <(python3 $here/peers.py measured "$lines")

version=$("$run" --version) commit=$(git describe --always --dirty 2>/dev/null)
echo "# $(date -u '+%F %T') UTC, $gpus GPUs${HIR_EMULATED_GPUS:+, emulated}; $version, $commit"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^/# /'
[ -z "$table" ] || echo "# hir-run: algorithms of matrix products from $table"
peers=yes
python3 $here/peers.py versions || peers=no
if [ $peers = no ] && [ "$shrink" -eq 1 ]; then
    echo "compare.sh: without PyTorch, results of this size cannot be checked: use -s to make them small enough for the simulator" >&2
    exit 2
fi
HIR_BENCH_MACHINE=$(python3 $here/machine.py identity)
export HIR_BENCH_MACHINE

counts=()
for d in $ranks; do
    if [ "$d" -gt "$gpus" ]; then
        echo "# skipping $d ranks: there are only $gpus GPUs"
    else
        counts+=("$d")
    fi
done
for ((round = 1; round <= rounds; round++)); do
    for d in "${counts[@]}"; do
        for workload in "${workloads[@]}"; do
            for name in $(turns "$workload"); do
                seed=$RANDOM
                queue "$name" "$d"
                turn "$d" "$name"
            done
        done
    done
done
python3 $here/peers.py table "$lines" || failed=1
if [ $left = 1 ]; then echo "# not everything was measured: the same command continues, with -o $lines"; fi
[ $failed = 0 ] || exit 1
[ $left = 0 ] || exit 3
