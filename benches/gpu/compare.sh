#!/usr/bin/env bash
# Times hir-run and its alternatives on the GPUs of this host, in alternating rounds: one of hir-run, one of
# the others, ...
#
#   benches/gpu/compare.sh [-b FOLDER_OF_BINARIES] [-r "2 4 8"] [-n ROUNDS] [-i ITERATIONS] [-s SHRINK]
#                          [-f FILTER] [-o FILE] [-g] [WORKLOAD...]
#
#   -b   default: target/release
#   -r   numbers of ranks, up to the number of GPUs
#   -n   number of rounds, each with new random data; default: 3
#   -i   timed runs of a round; default: 20, after 5 that are not timed
#   -s   divides every extent (and the sizes of collectives by its square), to try this script without
#        fast GPUs
#   -f   an extended regular expression: only measurements of hir-run whose line matches it, such as
#        "allgather-linear 8 m=32768 n=8192 k=16384 @overlap-allgather-linear graph", where 8 is the number of
#        ranks
#   -o   output file, one JSON object per measurement; default: compare.jsonl
#   -g   collectives as graphs only
#
# Workloads, all by default: allgather-linear linear-allreduce matmul-reduce-scatter collectives.
#
# Every time is the median over runs of the slowest rank. Each measurement of hir-run is checked: all outputs
# of the last timed run are finite, hir-run reports them as equal on all ranks that have them, and sampled
# rows agree with float32 sums that PyTorch computes from the inputs that hir-run has written. Outputs are
# poisoned before every run. Without PyTorch nothing else is timed, and the results are compared with those of
# the simulator, if the shapes are small (-s). The exit code is 1 if a run failed or was wrong.
set -u
cd "$(dirname "$0")/../.."
usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
bin=target/release ranks="2 4 8" rounds=3 iterations=20 shrink=1 filter=. lines=compare.jsonl issues="eager -G"
while getopts b:r:n:i:s:f:o:g option; do
    case $option in
    b) bin=$OPTARG ;;
    r) ranks=$OPTARG ;;
    n) rounds=$OPTARG ;;
    i) iterations=$OPTARG ;;
    s) shrink=$OPTARG ;;
    f) filter=$OPTARG ;;
    o) lines=$OPTARG ;;
    g) issues=-G ;;
    *) usage ;;
    esac
done
shift $((OPTIND - 1))
workloads=("$@")
[ ${#workloads[@]} -gt 0 ] || workloads=(allgather-linear linear-allreduce matmul-reduce-scatter collectives)
run=$bin/hir-run here=benches/gpu
[ -x "$run" ] || { echo "compare.sh: no $run: build it with --release, or name its folder with -b" >&2; exit 2; }
# The inputs and outputs of a round, at most about 10 GiB; in memory if /dev/shm is large enough.
free=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)
work=$(mktemp -d -p "$([ "${free:-0}" -gt 33554432 ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$work"' EXIT
# Both sides use the libraries of one Python installation, if it has them.
export VIRTUAL_ENV=${VIRTUAL_ENV:-$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)}
while IFS== read -r variable path; do
    [ -n "${!variable:-}" ] || export "$variable=$path"
done < <(python3 $here/peers.py libraries 2>/dev/null)
failed=0 measured=0 seed=0 cases=()
name_of=() issue_of=() case_of=()
. "$here/../../tests/gpu/batch.sh"
: >"$lines"
: >"$work/libraries"

echo "# $(date -u '+%F %T') UTC, $gpus GPUs${HIR_EMULATED_GPUS:+, emulated}; $("$run" --version), $(git describe --always --dirty 2>/dev/null)"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^/# /'
peers=yes
python3 $here/peers.py versions || peers=no
if [ $peers = no ] && [ "$shrink" -eq 1 ]; then
    echo "compare.sh: without PyTorch, results of this size cannot be checked: use -s to make them small enough for the simulator" >&2
    exit 2
fi

# Queues a measurement of hir-run until `measure`. Arguments: workload, ranks, m, n, k, program, name, passes
# or '-', more flags. The first measurement of a shape writes the inputs, which are the same during a round.
# Of outputs that all ranks have, which hir-run compares, only that of rank 0 is kept.
ours() {
    local workload=$1 d=$2 m=$3 n=$4 k=$5 program=$6 name=$7 passes=$8 flags issue=eager tensor folder case rank
    shift 8
    [[ " $* " != *" -G "* ]] || issue=graph
    grep -qE -- "$filter" <<<"$workload $d m=$m n=$n k=$k $name $issue" || return
    case=$workload:$m:$n:$k
    measured=$((measured + 1)) folder=$work/$case/$((measured + 1000))
    name_of[$measured]="$name" issue_of[$measured]=$issue case_of[$measured]=$case
    flags=("$program" -J "$folder/times.json" "$@")
    [ "$passes" = - ] || flags+=(--passes "$passes")
    if [ $peers = yes ]; then
        for tensor in $(grep -m1 -oE '^%HostIrContainer.*' "$program" | grep -oE '\bT[0-9]+_' | tr -d _); do
            [ ! -d "$work/$case" ] || [ "$tensor" = "$(output "$workload")" ] || continue
            flags+=(--output "$tensor@local=@$folder/$tensor.%r.safetensors#$tensor")
        done
    fi
    mkdir -p "$folder"
    case $workload in
    reduce-scatter | all-to-all | matmul-reduce-scatter) ;;
    *) for ((rank = 1; rank < d; rank++)); do ln -s /dev/null "$folder/$(output "$workload").$rank.safetensors"; done ;;
    esac
    batch_add "$d" $measured "${flags[@]}"
}
output() { case $1 in linear-allreduce) echo T3 ;; *linear* | matmul*) echo T2 ;; *) echo T1 ;; esac; }

# Runs the queued measurements in one job, checks them and adds their lines. Arguments: ranks, round. The
# shapes go to $cases.
measure() {
    local d=$1 round=$2 number folder case tensor
    cases=()
    batch_run "$d" launch "$d"
    for number in "${!name_of[@]}"; do
        case=${case_of[$number]} folder=$work/${case_of[$number]}/$((number + 1000))
        if [ "$(cat "$work/entry.$number.exit" 2>/dev/null)" != 0 ]; then
            echo "# FAILED: $case, $d ranks, ${name_of[$number]} (${issue_of[$number]}): $(batch_reason "$work/entry.$number.log")"
            failed=1
            rm -rf "$folder"
            continue
        fi
        # Prints each library version once.
        grep -hE '^# (NCCL|cuBLASLt)' "$work/entry.$number.log" | grep -vxF -f "$work/libraries" | tee -a "$work/libraries"
        echo "${name_of[$number]}" >"$folder/name"
        mkdir -p "$work/$case/inputs"
        for tensor in "$folder"/T*.safetensors; do
            [ ! -e "$tensor" ] || [[ ${tensor##*/} == "$(output "${case%%:*}")".* ]] || mv "$tensor" "$work/$case/inputs/"
        done
        [[ " ${cases[*]} " == *" $case "* ]] || cases+=("$case")
    done
    rm -f "$work"/entry.*
    name_of=() issue_of=() case_of=()
    [ ${#cases[@]} -gt 0 ] || return
    timeout -k 5 900 python3 $here/peers.py ours "$d" --round "$round" $([ $peers = yes ] || echo --simulated) \
        "${cases[@]/#/$work/}" >>"$lines" || failed=1
    rm -rf "${cases[@]/#/$work/}"
}
launch() {
    local d=$1 flags=(--device=cuda --inputs random --seed "$seed" -w 5 -n "$iterations" -T 60)
    shift
    [ $peers = yes ] || flags+=(--expect=sim)
    timeout -k 5 1800 "$run" --ranks "$d" "${flags[@]}" "$@" >"$work/log" 2>&1 </dev/null
}

# Times PyTorch. Arguments: ranks, round, cases (workload:m:n:k).
theirs() {
    local d=$1 round=$2
    shift 2
    [ $peers = yes ] && [ $# -gt 0 ] || return
    timeout -k 5 900 python3 -m torch.distributed.run --standalone --nproc-per-node "$d" $here/peers.py time "$@" \
        --iters "$iterations" --round "$round" 2>"$work/log" >>"$lines" || {
        echo "# PyTorch on $d ranks failed: $(grep -E '(Error|error):' "$work/log" | tail -1 | grep . || tail -1 "$work/log")"
        failed=1
    }
}

# Prints the pipelines of a workload, with the number of streams or '-'.
pipelines() {
    # The same work without overlap. It comes first, because it writes the inputs and is the least likely to
    # fail.
    echo "@lower -"
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
}

# Measures all variants of a layer. Arguments: workload, ranks, m, n, k.
layer() {
    local workload=$1 d=$2 m=$(($3 / shrink)) n=$(($4 / shrink)) k=$(($5 / shrink)) round passes streams sets graph
    local chunk program all=("")
    [ "$workload" != linear-allreduce ] || all=(2 4 8)
    for ((round = 1; round <= rounds; round++)); do
        seed=$RANDOM
        for chunk in "${all[@]}"; do
            program=$work/$workload-$d-$chunk.hir
            $here/programs.sh "$workload" "$d" "$m" "$n" "$k" $chunk >"$program" || exit 2
            while read -r passes streams; do
                # Without overlap the number of chunks does not matter.
                [ "$passes" != @lower ] || [ "$chunk" = "${all[0]}" ] || continue
                sets=()
                [ "$streams" = - ] || sets=(--set "numberOfStreams=$streams")
                for graph in "" -G; do
                    ours "$workload" "$d" "$m" "$n" "$k" "$program" "$passes${chunk:+, $chunk chunks}" "$passes" "${sets[@]}" $graph
                done
            done < <(pipelines "$workload")
        done
        measure "$d" "$round"
        theirs "$d" "$round" "${cases[@]}"
    done
}

# Prints the ways to execute a collective: backend, algorithm, largest number of bytes for which it is measured.
ways() {
    echo "NCCL - 1000000000"
    case $1 in
    allreduce)
        echo "CUDA one-shot 8388608"
        echo "CUDA two-shot 1000000000"
        echo "CUDA one-shot-ll 1048576"
        echo "CUDA one-shot-ll128 1048576"
        echo "CUDA two-shot-ll 1048576"
        echo "CUDA two-shot-ll128 16777216"
        ;;
    *)
        echo "CUDA - 1000000000"
        echo "CUDA one-shot-ll 1048576"
        echo "CUDA one-shot-ll128 16777216"
        ;;
    esac
}

# Measures collectives at several sizes, 20 calls in a run. Arguments: ranks.
collectives() {
    local d=$1 kind count round graph program backend algorithm most name
    for ((round = 1; round <= rounds; round++)); do
        seed=$RANDOM
        for kind in allreduce allgather reduce-scatter all-to-all; do
            # 8 KiB to 64 MiB, in elements of 2 bytes.
            for count in 4096 32768 131072 262144 524288 1048576 2097152 4194304 8388608 16777216 33554432; do
                count=$((count / shrink / shrink))
                [ "$count" -ge "$d" ] || continue
                while read -r backend algorithm most; do
                    [ $((2 * count)) -le "$most" ] || continue
                    name="hir-run, $backend${algorithm/#/ }"
                    program=$work/$kind-$d-$count-$backend-$algorithm.hir
                    $here/programs.sh $kind "$d" "$count" "$backend" "$algorithm" 20 >"$program" || exit 2
                    for graph in $issues; do ours $kind "$d" "$count" 1 1 "$program" "${name% -}" - ${graph#eager}; done
                done < <(ways $kind)
            done
        done
        measure "$d" "$round"
        theirs "$d" "$round" "${cases[@]}"
    done
}

for d in $ranks; do
    if [ "$d" -gt "$gpus" ]; then
        echo "# skipping $d ranks: there are only $gpus GPUs"
        continue
    fi
    for workload in "${workloads[@]}"; do
        case $workload in
        allgather-linear) layer "$workload" "$d" 32768 8192 16384 ;;
        # The summed extent is divided over the ranks: 4h for a layer of width h = 8192.
        linear-allreduce) layer "$workload" "$d" 8192 8192 32768 ;;
        matmul-reduce-scatter) layer "$workload" "$d" 32768 8192 16384 ;;
        collectives) collectives "$d" ;;
        *) usage ;;
        esac
    done
done
python3 $here/peers.py table "$lines"
exit $failed
