#!/usr/bin/env bash
# Times hir-run and what a user would run instead, on the GPUs of this host, in turns: ours, peers, ours, peers, ...
#
#   benches/gpu/compare.sh [-b FOLDER_OF_BINARIES] [-r "2 4 8"] [-n ROUNDS] [-i ITERATIONS] [-s SHRINK] [-o FILE] [WORKLOAD...]
#
#   -b   default: target/release
#   -r   numbers of ranks, as far as there are GPUs
#   -n   rounds, each with new random data; default: 3
#   -i   timed runs of a round; default: 20, after 5 that are not timed
#   -s   divides every extent (and collectives' sizes by its square): to try this script without GPUs worth the name
#   -o   where the lines go, one JSON object a measurement; default: compare.jsonl
#
# Workloads, all by default: allgather-linear linear-allreduce matmul-reduce-scatter collectives.
#
# Every time is the median over runs of the slowest rank. Each of our measurements is checked: all outputs of the last timed
# run are finite and the same on all ranks that have them, and sampled rows agree with float32 sums made by PyTorch from the
# inputs that hir-run has written; outputs are poisoned before every run. Without PyTorch there are no peers, and our results
# are compared with the simulator's instead, as far as the shapes are small (-s). Exit code 1: a run failed or was wrong.
set -u
cd "$(dirname "$0")/../.."
usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
bin=target/release ranks="2 4 8" rounds=3 iterations=20 shrink=1 lines=compare.jsonl
while getopts b:r:n:i:s:o: option; do
    case $option in
    b) bin=$OPTARG ;;
    r) ranks=$OPTARG ;;
    n) rounds=$OPTARG ;;
    i) iterations=$OPTARG ;;
    s) shrink=$OPTARG ;;
    o) lines=$OPTARG ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
workloads=("$@")
[ ${#workloads[@]} -gt 0 ] || workloads=(allgather-linear linear-allreduce matmul-reduce-scatter collectives)
run=$bin/hir-run here=benches/gpu
[ -x "$run" ] || { echo "compare.sh: no $run: build it with --release, or name its folder with -b" >&2; exit 2; }
gpus=${HIR_EMULATED_GPUS:-$(nvidia-smi --list-gpus 2>/dev/null | wc -l)}
# Inputs and outputs of one measurement at a time; in memory where there is room for files there.
free=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)
work=$(mktemp -d -p "$([ "${free:-0}" -gt 33554432 ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$work"' EXIT
# Both sides take the libraries of one Python.
export VIRTUAL_ENV=${VIRTUAL_ENV:-$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)}
failed=0
: >"$lines"
: >"$work/libraries"

echo "# $(date -u '+%F %T') UTC, $gpus GPUs${HIR_EMULATED_GPUS:+, emulated}; $("$run" --version), $(git describe --always --dirty 2>/dev/null)"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^/# /'
peers=yes
python3 $here/peers.py versions || peers=no

# One measurement of ours: workload, ranks, m, n, k, round, program, name, passes or '-', more flags.
ours() {
    local workload=$1 d=$2 m=$3 n=$4 k=$5 round=$6 program=$7 name=$8 passes=$9 flags judge checked=() tensor
    shift 9
    flags=(--device=cuda --ranks "$d" --inputs random --seed $RANDOM -w 5 -n "$iterations" -T 300 -J "$work/times.json" "$@")
    [ "$passes" = - ] || flags+=(--passes "$passes")
    if [ $peers = yes ]; then
        for tensor in $(grep -m1 -oE '^%HostIrContainer.*' "$program" | grep -oE '\bT[0-9]+_' | tr -d _); do
            flags+=(--output "$tensor@local=@$work/$tensor.%r.safetensors#$tensor")
        done
    elif [ "$shrink" -gt 1 ]; then
        flags+=(--expect=sim)
    fi
    rm -f "$work"/*.safetensors "$work/times.json"
    if ! timeout -k 5 900 "$run" "$program" "${flags[@]}" >"$work/log" 2>&1 </dev/null; then
        echo "# FAILED: $workload, $d ranks, $name: $(grep -hE '^\[FAILED\]|^hir-run:' "$work/log" | tail -1)"
        failed=1
        return
    fi
    # Which libraries ran is told once.
    grep -hE '^# (NCCL|cuBLASLt)' "$work/log" | sort -u | grep -vxF -f "$work/libraries" | tee -a "$work/libraries"
    if [ $peers = yes ]; then
        judge=$(timeout -k 5 600 python3 $here/peers.py check "$workload" "$d" "$m" "$n" "$k" "$work" 2>&1)
        if [ $? -ne 0 ]; then
            echo "# FAILED: $workload, $d ranks, $name: $(tail -1 <<<"$judge")"
            failed=1
            return
        fi
        checked=(--checked)
    elif grep -q '^\[SUCCESS\].*the simulator' "$work/log"; then
        checked=(--checked)
    fi
    python3 $here/peers.py ours "$work/times.json" --workload "$workload" --name "$name" --m "$m" --n "$n" --k "$k" \
        --round "$round" "${checked[@]}" >>"$lines"
}

# What PyTorch does: workload, ranks, m, n, k, round.
theirs() {
    [ $peers = yes ] || return
    timeout -k 5 900 python3 -m torch.distributed.run --standalone --nproc-per-node "$2" $here/peers.py time "$1" "$3" "$4" "$5" \
        --iters "$iterations" --round "$6" 2>"$work/log" >>"$lines" || {
        echo "# the peers of $1 on $2 ranks failed: $(tail -1 "$work/log")"
        failed=1
    }
}

# The pipelines of a workload, with the number of streams where they take one.
pipelines() {
    case $1 in
    allgather-linear)
        echo "@overlap-allgather-linear 2"
        echo "@overlap-allgather-linear-put 2"
        echo "@overlap-allgather-linear-broadcast 2"
        echo "@overlap-allgather-linear-permute -"
        ;;
    linear-allreduce) echo "@overlap-linear-allreduce -" ;;
    matmul-reduce-scatter) echo "@overlap-matmul-reduce-scatter 2" ;;
    esac
    # The same work, nothing overlapped.
    echo "@lower -"
}

# A layer in all its forms: workload, ranks, m, n, k.
layer() {
    local workload=$1 d=$2 m=$(($3 / shrink)) n=$(($4 / shrink)) k=$(($5 / shrink)) round passes streams sets graph
    local chunk all=("")
    [ "$workload" != linear-allreduce ] || all=(2 4 8)
    for ((round = 1; round <= rounds; round++)); do
        for chunk in "${all[@]}"; do
            $here/programs.sh "$workload" "$d" "$m" "$n" "$k" $chunk >"$work/program.hir" || exit 2
            while read -r passes streams; do
                # Without overlap there is nothing to cut.
                [ "$passes" != @lower ] || [ "$chunk" = "${all[0]}" ] || continue
                sets=()
                [ "$streams" = - ] || sets=(--set "numberOfStreams=$streams")
                for graph in "" -G; do
                    ours "$workload" "$d" "$m" "$n" "$k" "$round" "$work/program.hir" "$passes${chunk:+, $chunk chunks}" \
                        "$passes" "${sets[@]}" $graph
                done
            done < <(pipelines "$workload")
        done
        theirs "$workload" "$d" "$m" "$n" "$k" "$round"
    done
}

# One collective at several sizes: ranks.
collectives() {
    local d=$1 kind count round graph
    for kind in allgather allreduce reduce-scatter; do
        # Elements of 2 bytes: 64 KiB to 256 MiB.
        for count in 32768 262144 524288 2097152 8388608 33554432 134217728; do
            count=$((count / shrink / shrink))
            [ "$count" -ge "$d" ] || continue
            for ((round = 1; round <= rounds; round++)); do
                $here/programs.sh $kind "$d" "$count" >"$work/program.hir" || exit 2
                for graph in "" -G; do
                    ours $kind "$d" "$count" 1 1 "$round" "$work/program.hir" hir-run - $graph
                done
                theirs $kind "$d" "$count" 1 1 "$round"
            done
        done
    done
}

for d in $ranks; do
    if [ "$d" -gt "$gpus" ]; then
        echo "# $d ranks are left out: there are $gpus GPUs"
        continue
    fi
    for workload in "${workloads[@]}"; do
        case $workload in
        allgather-linear) layer "$workload" "$d" 32768 8192 16384 ;;
        # The summed extent is divided over the ranks: 4h of a layer of width h = 8192.
        linear-allreduce) layer "$workload" "$d" 8192 8192 32768 ;;
        matmul-reduce-scatter) layer "$workload" "$d" 32768 8192 16384 ;;
        collectives) collectives "$d" ;;
        *) usage ;;
        esac
    done
done
python3 $here/peers.py table "$lines"
exit $failed
