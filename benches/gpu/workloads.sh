# What compare.sh measures: shapes, pipelines, algorithms. compare.sh sources this file.
#
#   queue WORKLOAD RANKS    queues all measurements of a workload by `ours`; $round, $shrink and $issues say how
#   turns WORKLOAD          prints the names of the turns of a workload, each of which is one job of each side

calls=20   # calls of a collective or a short layer in one run; cases.py has the same number
all_workloads=(allgather-linear linear-allreduce matmul-reduce-scatter column-parallel row-parallel mlp block collectives)
collectives=(allreduce allgather reduce-scatter all-to-all)

# Prints the turns of a workload. A turn is one job of hir-run and one of PyTorch, of a few minutes at most.
turns() {
    case $1 in
    collectives) printf '%s\n' "${collectives[@]}" ;;
    *) echo "$1" ;;
    esac
}

queue() {
    local workload=$1 d=$2 rows width
    case $workload in
    allgather-linear) layer "$workload" "$d" 32768 8192 16384 ;;
    # The summed extent is divided over the ranks: 4h for a layer of width h = 8192.
    linear-allreduce) layer "$workload" "$d" 8192 8192 32768 ;;
    matmul-reduce-scatter) layer "$workload" "$d" 32768 8192 16384 ;;
    column-parallel) for rows in 64 512; do for width in 4096 8192; do layer "$workload" "$d" $rows $((4 * width)) $width; done; done ;;
    row-parallel) for rows in 64 512; do for width in 4096 8192; do layer "$workload" "$d" $rows $width $((4 * width)); done; done ;;
    mlp | block) layer "$workload" "$d" 8192 8192 32768 ;;
    *) collective "$workload" "$d" ;;
    esac
}

# Prints the pipelines of a layer, with the number of streams or '-'.
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
    linear-allreduce)
        echo "@overlap-linear-allreduce -"
        echo "@overlap-linear-allreduce-copy -"
        ;;
    matmul-reduce-scatter) echo "@overlap-matmul-reduce-scatter 1" ;;
    # Their calls are in a loop, in which nothing is split.
    column-parallel | row-parallel) echo "@lower,select-algorithms -" ;;
    mlp | block)
        echo "@lower,select-algorithms -"
        echo "@overlap 2"
        ;;
    esac
}

# Queues all variants of a layer, and the products of one rank alone. Arguments: workload, ranks, m, n, k.
layer() {
    local workload=$1 d=$2 m=$(($3 / shrink)) n=$(($4 / shrink)) k=$(($5 / shrink))
    local passes streams sets graph chunk variant program all=("")
    [ "$m" -ge "$d" ] || m=$d
    # Fewer columns than heads, or fewer rows than sequences.
    if [ "$workload" = block ] && [ $((n < 64 || m < 8)) = 1 ]; then return; fi
    # Chips warm up during a job, so the place of the products changes.
    [ $((round % 2)) -eq 0 ] || products "$workload" "$d" "$m" "$n" "$k"
    case $workload in
    linear-allreduce) all=(2 4 8) ;;
    column-parallel | row-parallel) all=("$calls") ;;
    block) all=("" sdpa) ;;
    esac
    for chunk in "${all[@]}"; do
        # The last word is the number of chunks or calls, or the operator of attention.
        variant=""
        case $chunk in
        sdpa) program=$(program block-sdpa "$d" "$m" "$n" "$k") variant=", sdpa" ;;
        *) program=$(program "$workload" "$d" "$m" "$n" "$k" $chunk) ;;
        esac || exit 2
        [ "$workload" != linear-allreduce ] || variant=", $chunk chunks"
        while read -r passes streams; do
            # Without overlap the number of chunks does not matter.
            [ "$passes" != @lower ] || [ "$workload" != linear-allreduce ] || [ "$chunk" = "${all[0]}" ] || continue
            sets=()
            [ "$streams" = - ] || sets=(--set "numberOfStreams=$streams")
            for graph in --step-by-step -G; do
                ours "$workload" "$d" "$m" "$n" "$k" 1 "$program" "$passes$variant" "$passes" "${sets[@]}" $graph
            done
        done < <(pipelines "$workload")
    done
    [ "$workload" != linear-allreduce ] || [ "$m" -lt 16 ] || decreasing_chunks "$d" "$m" "$n" "$k"
    [ $((round % 2)) -eq 1 ] || products "$workload" "$d" "$m" "$n" "$k"
}

# Queues linear-allreduce in chunks of decreasing size. Arguments: ranks, m, n, k.
decreasing_chunks() {
    local d=$1 m=$2 n=$3 k=$4 graph program passes=@overlap-linear-allreduce-decreasing
    program=$(program linear-allreduce "$d" "$m" "$n" "$k" 0) || exit 2
    for graph in --step-by-step -G; do
        ours linear-allreduce "$d" "$m" "$n" "$k" 1 "$program" "$passes" "$passes" $graph
    done
}

# Queues the matrix products of one rank of a layer. Arguments: as above.
products() {
    local workload=$1 d=$2 m=$3 n=$4 k=$5 graph words
    case $workload in
    allgather-linear) words=(matmul "$d" "$m" "$n" "$k") ;;
    column-parallel) words=(matmul "$d" "$m" $((n / d)) "$k" "$calls") ;;
    row-parallel) words=(matmul "$d" "$m" "$n" $((k / d)) "$calls") ;;
    mlp) words=(local-mlp "$d" "$m" "$n" $((k / d))) ;;
    block) words=(local-block "$d" "$m" "$n" "$k") ;;
    *) words=(matmul "$d" "$m" "$n" $((k / d))) ;;
    esac
    program=$(program "${words[@]}") || exit 2
    for graph in --step-by-step -G; do
        ours "local-$workload" "$d" "$m" "$n" "$k" 1 "$program" "matmul only" @lower $graph
    done
}

# Prints the ways to execute a collective: backend, algorithm, largest number of bytes for which it is measured. With
# NCCL, all algorithms run on the queue of the communicator, as in programs that select-algorithms has changed.
ways() {
    echo "NCCL - 1000000000"
    # The algorithm that the pass chooses, which is what a user gets.
    echo "NCCL select-algorithms 1000000000"
    case $1 in
    allreduce)
        echo "NCCL one-shot 8388608"
        echo "NCCL two-shot 1000000000"
        echo "NCCL one-shot-ll 1048576"
        echo "NCCL one-shot-ll128 4194304"
        echo "NCCL two-shot-ll 1048576"
        echo "NCCL two-shot-ll128 16777216"
        ;;
    *)
        echo "CUDA - 1000000000"
        echo "NCCL one-shot 1000000000"
        echo "NCCL one-shot-ll 1048576"
        echo "NCCL one-shot-ll128 8388608"
        ;;
    esac
}

# Queues a collective at several sizes. Arguments: kind, ranks.
collective() {
    local kind=$1 d=$2 count graph program backend algorithm most name passes flush slices=1
    # 8 KiB to 256 MiB, in elements of 2 bytes.
    for count in 4096 32768 131072 262144 524288 1048576 2097152 4194304 8388608 16777216 33554432 67108864 134217728; do
        count=$((count / shrink / shrink))
        [ "$count" -ge "$d" ] || continue
        if [ -n "$cold" ]; then
            # At least 64 MiB are written before each run, and read or written between two uses of a slice: more
            # than the L2 cache contains. From 4 MiB on this takes fewer slices than calls.
            flush=$((33554432 / shrink / shrink))
            slices=$((flush / count + 1))
            slices=$((slices < calls ? slices : calls))
            # Larger tensors are never in the cache.
            [ "$slices" -gt 1 ] || continue
        fi
        while read -r backend algorithm most; do
            [ $((2 * count)) -le "$most" ] || continue
            name="hir-run, $backend${algorithm/#/ }" passes=-
            [ "$algorithm" != select-algorithms ] || name="hir-run, $algorithm" passes=$algorithm algorithm=-
            program=$(program "$kind" "$d" "$count" "$backend" "$algorithm" "$calls" ${cold:+"$slices" "$flush"}) || exit 2
            for graph in $issues; do ours "$kind" "$d" "$count" 1 1 "$slices" "$program" "${name% -}" "$passes" $graph; done
        done < <(ways "$kind")
    done
}

# Prints the path of a program, and writes it unless it exists. Arguments: those of programs.sh.
program() {
    local path words="$*"
    path=$work/${words// /-}.hir
    [ -s "$path" ] || "$here/programs.sh" "$@" >"$path" || { rm -f "$path"; return 1; }
    echo "$path"
}
