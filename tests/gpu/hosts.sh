#!/usr/bin/env bash
# Runs every pipeline that lowers to NCCL on one host as if it were two: each half of its GPUs has an identity of its
# own (HIR_HOSTID, NCCL_HOSTID), and NCCL talks to the other half over sockets. Compares with the simulator.
#
#   tests/gpu/hosts.sh [-b FOLDER_OF_BINARIES] [-r RANKS]
#
#   -b   default: target/release
#   -r   number of ranks, even; default: 4
#
# The launcher's local rank is not set, so each rank takes its number on its host. A program in which ranks of
# different hosts share memory has to be refused. The exit code is 1 if a run fails.
set -u
cd "$(dirname "$0")/../.."
bin=target/release ranks=4
while getopts b:r: option; do
    case $option in
    b) bin=$OPTARG ;;
    r) ranks=$OPTARG ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export NCCL_NVLS_ENABLE=0 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
make() { benches/gpu/programs.sh "$1" "$ranks" "${@:2}" >"$work/$1.hir"; }
make allgather-linear 256 128 128
make linear-allreduce 256 128 256 4
make matmul-reduce-scatter 256 128 256
make pipeline-stages 4 32 64
port=23400 failed=0 passed=0

# Runs a job. Arguments: expected exit code, arguments of hir-run.
job() {
    local expected=$1 rank host gpus code=0 half=$((ranks / 2)) pids=()
    shift
    port=$((port + 1))
    for ((rank = 0; rank < ranks; rank++)); do
        host=$((rank / half))
        gpus=$(seq -s , $((host * half)) $((host * half + half - 1)))
        env -u LOCAL_RANK RANK="$rank" WORLD_SIZE="$ranks" HIR_HOSTID="host$host" NCCL_HOSTID="host$host" \
            CUDA_VISIBLE_DEVICES="$gpus" HIR_MASTER_PORT=$port timeout 90 "$bin/hir-run" "$@" --device=cuda --expect=sim \
            -w 1 -n 5 -T 30 >"$work/log.$rank" 2>&1 </dev/null &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
    if [ $code -eq "$expected" ]; then
        passed=$((passed + 1))
        echo "passed  $*"
    else
        failed=1
        echo "FAILED  $*: exit code $code: $(grep -hE 'FAILED|hir-run:' "$work/log.0" | tail -1)"
    fi
}

for graph in --step-by-step -G; do
    [ "$ranks" -ne 4 ] || job 0 tests/cases/launch/two-hosts.hir --inputs exact $graph
    for run in "allgather-linear @lower" "allgather-linear @overlap-allgather-linear-broadcast" \
        "allgather-linear @overlap-allgather-linear-permute" "linear-allreduce @lower" \
        "linear-allreduce @overlap-linear-allreduce" "matmul-reduce-scatter @lower" "pipeline-stages @lower" \
        "pipeline-stages @overlap-pipeline-stages"; do
        job 0 "$work/${run% *}.hir" --passes "${run#* }" --inputs random --set numberOfStreams=2 $graph
    done
done
job 6 "$work/allgather-linear.hir" --passes @overlap-allgather-linear --inputs random --set numberOfStreams=2
echo "# $passed passed, $([ $failed -eq 0 ] && echo none || echo some) failed"
exit $failed
