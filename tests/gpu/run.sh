#!/usr/bin/env bash
# Runs samples and pipelines on the GPUs of this host and compares every result with the simulator's, bit by bit.
#
#   tests/gpu/run.sh [FOLDER_OF_BINARIES] [RANKS...]       default: target/release, and 1 2 4 8 as far as there are GPUs
#
# One line a run: ranks, issue (eager, graph), program, pipeline, verdict. Exit code 0: all passed.
# LAUNCH=mpirun takes Open MPI; otherwise processes are started here, with the variables that torchrun sets.
set -u
cd "$(dirname "$0")/../.."
bin=${1:-target/release}
shift || true
gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
ranks=("$@")
[ ${#ranks[@]} -eq 0 ] && ranks=(1 2 4 8)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0
failed=0
port=29500

# The command line follows; output goes to $work/log, the exit code of rank 0 comes back.
launch() {
    local count=$1
    shift
    if [ "$count" -eq 1 ]; then
        timeout 180 "$@" >"$work/log" 2>&1
        return
    fi
    if [ "${LAUNCH:-}" = mpirun ]; then
        timeout 180 mpirun --allow-run-as-root --oversubscribe -np "$count" "$@" >"$work/log" 2>&1
        return
    fi
    port=$((port + 1))
    local pids=() rank status=0
    for ((rank = 0; rank < count; rank++)); do
        RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 \
            MASTER_PORT=$port timeout 180 "$@" >"$work/log.$rank" 2>&1 &
        pids+=($!)
    done
    for ((rank = 0; rank < count; rank++)); do
        wait "${pids[$rank]}" || status=$?
    done
    cat "$work"/log.* >"$work/log"
    rm -f "$work"/log.*
    return $status
}

# ranks, program, pipeline or '-', more flags
check() {
    local count=$1 program=$2 pipeline=$3 mode status verdict
    shift 3
    local passes=()
    [ "$pipeline" = - ] || passes=(--passes "$pipeline")
    for mode in eager graph; do
        local timing=(-w 1 -n 3)
        [ $mode = graph ] && timing+=(-G)
        launch "$count" "$bin/hir-run" "$program" "${passes[@]}" --device=cuda --expect=sim "${timing[@]}" "$@"
        status=$?
        verdict=$(grep -hE '^\[(SUCCESS|FAILED)\]' "$work/log" | tail -1)
        if [ $status -eq 0 ] && [[ $verdict == *"equal to the simulator"* ]]; then
            passed=$((passed + 1))
            verdict=passed
        else
            failed=$((failed + 1))
            verdict="FAILED ($status) ${verdict:-$(tail -3 "$work/log" | tr '\n' ' ')}"
        fi
        printf '%5d  %-6s %-44s %-44s %s\n' "$count" $mode "${program#tests/}" "${pipeline:0:44}" "$verdict"
    done
}

# A row-parallel linear, a column-parallel one and a matmul with a reduce-scatter, for any number of ranks.
mesh() { seq -s ' ' 0 $(($1 - 1)); }

specify() {
    local d=$1 m=$2 k=$3 n=$4
    cat >"$work/column-$d.hir" <<TEXT
%HostIrContainer { (T0_g___bfloat[ideviceIdx.x0{$d}, iS1{$((m / d))}, iS2{$k}] (DeviceMesh{$(mesh "$d")}), T1_g___bfloat[iS3{$n}, iS4{$k}] (DeviceMesh{$(mesh "$d")}), T2_g___bfloat[iS5{$n}] (DeviceMesh{$(mesh "$d")})) -> (T3_g___bfloat[istreamIdx6{$d}, iS7{$((m / d))}, iS8{$n}, rS9{$k}] (DeviceMesh{$(mesh "$d")})) :
  T3_g___bfloat[istreamIdx6{$d}, iS7{$((m / d))}, iS8{$n}, rS9{$k}] (DeviceMesh{$(mesh "$d")})
     = linear(T0_g___bfloat[ideviceIdx.x0{$d}, iS1{$((m / d))}, iS2{$k}] (DeviceMesh{$(mesh "$d")}),
              T1_g___bfloat[iS3{$n}, iS4{$k}] (DeviceMesh{$(mesh "$d")}),
              T2_g___bfloat[iS5{$n}] (DeviceMesh{$(mesh "$d")}))
} // %HostIrContainer
TEXT
}

echo "# $gpus GPUs, $("$bin/hir-run" --version)"
printf '%5s  %-6s %-44s %-44s %s\n' ranks issue program pipeline verdict
for count in "${ranks[@]}"; do
    if [ "$count" -gt "$gpus" ]; then
        printf '%5d  skipped: %d GPUs\n' "$count" "$gpus"
        continue
    fi
    # Programs for this number of ranks that need nothing else; those with resharding operators are lowered.
    while read -r program; do
        grep -q 'DeviceMesh' "$program" || continue
        last=$(grep -o 'DeviceMesh{[^}]*}' "$program" | grep -oE '[0-9]+' | sort -n | tail -1)
        [ "${last:--1}" -eq $((count - 1)) ] || continue
        # A program that the simulator does not run as it is needs symbols or is not meant to run.
        if "$bin/hir-run" "$program" --device=sim --memory >/dev/null 2>&1 &&
            "$bin/hir-run" "$program" --device=sim >/dev/null 2>&1; then
            if "$bin/hir-run" "$program" --device=sim --memory --passes @lower >/dev/null 2>&1; then
                check "$count" "$program" @lower
            else
                check "$count" "$program" -
            fi
        fi
    done < <(ls samples/*.hir tests/cases/comm/*.hir tests/cases/ops/*.hir tests/cases/lower/*.hir 2>/dev/null)
    [ "$count" -gt 1 ] || continue
    specify "$count" 512 256 384
    for pipeline in \
        @overlap-allgather-linear{numberOfStreams=3} @overlap-allgather-linear-put{numberOfStreams=3} \
        @overlap-allgather-linear-broadcast{numberOfStreams=3} @overlap-allgather-linear-permute; do
        name=${pipeline%%\{*}
        set_streams=()
        [ "$name" = "$pipeline" ] || set_streams=(--set numberOfStreams=3)
        check "$count" "$work/column-$count.hir" "$name" "${set_streams[@]}"
    done
done
echo "# $passed passed, $failed failed"
[ "$failed" -eq 0 ]
