# Measures hir-run and PyTorch in turns. compare.sh sources this file.
#
#   ours WORKLOAD RANKS M N K SLICES PROGRAM NAME PASSES|- FLAG...    queues a measurement of hir-run
#   turn RANKS NAME                                                   runs what is queued, and PyTorch
#
# Both skip what the output file, $lines, contains ($have). $left becomes 1 if something was not measured because
# the time is over, and $failed if one of the two jobs failed.

measured=0 seed=0 left=0 failed=0 recorded="" cases=()
name_of=() case_of=()
: >"$work/libraries"

# The first measurement of a shape in a job writes the inputs, which are the same during a job. Of tensors that
# are equal on all ranks only those of rank 0 are kept; hir-run compares the outputs.
ours() {
    local workload=$1 d=$2 m=$3 n=$4 k=$5 slices=$6 program=$7 name=$8 passes=$9 flags issue=eager tensor folder case
    shift 9
    [[ " $* " != *" -G "* ]] || issue=graph
    grep -qE -- "$filter" <<<"${workload#local-} $d m=$m n=$n k=$k $name $issue" || return 0
    case=$workload:$m:$n:$k:$slices
    [[ $workload == local-* || " ${cases[*]} " == *" $case "* ]] || cases+=("$case")
    [ -z "${have["${case#local-} $d $name ($issue) $round"]:-}" ] || return 0
    measured=$((measured + 1)) folder=$work/$case/$((measured + 1000))
    name_of[measured]="$name" case_of[measured]=$case
    flags=("$program" -J "$folder/times.json" "$@")
    [ "$passes" = - ] || flags+=(--passes "$passes")
    if [ "$peers" = yes ]; then
        for tensor in $([ -d "$work/$case" ] || inputs "$workload") $(output "$workload"); do
            flags+=(--output "$tensor@local=@$folder/$tensor.%r.safetensors#$tensor")
        done
    fi
    mkdir -p "$folder"
    echo "$name" >"$folder/name"
    echo $issue >"$folder/issue"
    for tensor in $(replicated "$workload"); do
        for ((rank = 1; rank < d; rank++)); do ln -s /dev/null "$folder/$tensor.$rank.safetensors"; done
    done
    batch_add "$d" $measured "${flags[@]}"
}
# Print the names of tensors of a workload; checks.py has the same names.
inputs() { case $1 in *block) echo T0 T1 T2 T3 T4 ;; *mlp) echo T0 T1 T2 ;; *linear* | *parallel | *matmul*) echo T0 T1 ;; *) echo T0 ;; esac; }
output() {
    case $1 in
    linear-allreduce) echo T3 ;;
    mlp) echo T5 ;;
    local-mlp) echo T4 ;;
    block) echo T30 ;;
    local-block) echo T28 ;;
    *linear* | *parallel | *matmul*) echo T2 ;;
    *) echo T1 ;;
    esac
}
replicated() {
    case $1 in
    local-*) inputs "$1" && output "$1" ;;
    allgather-linear) echo T1 T2 ;;
    linear-allreduce | row-parallel | allreduce | allgather) output "$1" ;;
    esac
}

# Measures both sides: hir-run first in odd rounds, PyTorch first in even ones. Arguments: ranks, name.
turn() {
    local d=$1 name=$2 missing=() case
    for case in "${cases[@]}"; do
        [ $peers = no ] || [ -n "${have["$case $d peers $round"]:-}" ] || missing+=("$case")
    done
    if [ ${#name_of[@]} -gt 0 ] || [ ${#missing[@]} -gt 0 ]; then
        if [ -n "$limit" ] && [ $((SECONDS - since)) -ge "$limit" ]; then
            left=1
        else
            # Once in each call that measures something.
            [ -n "$recorded" ] || python3 $here/machine.py versions --hir "${version#hir-run }" --commit "$commit" >>"$lines"
            recorded=yes
            state start "$d" "$name"
            if [ $((round % 2)) -eq 1 ]; then
                measure "$d"
                theirs "$d" "${missing[@]}"
            else
                theirs "$d" "${missing[@]}"
                measure "$d"
            fi
            state end "$d" "$name"
        fi
    fi
    rm -rf "$work"/batch.* "$work"/entry.* "${case_of[@]/#/$work/}"
    name_of=() case_of=() cases=()
}
state() { python3 $here/machine.py state "at=$1" "ranks=$2" "workload=$3" "round=$round" >>"$lines"; }

# Runs the queued measurements in one job, checks them and adds their lines. Arguments: ranks.
measure() {
    local d=$1 number folder tensor reason folders=()
    [ ${#name_of[@]} -gt 0 ] || return 0
    batch_run "$d" launch "$d"
    for number in "${!name_of[@]}"; do
        folder=$work/${case_of[number]}/$((number + 1000))
        if [ "$(cat "$work/entry.$number.exit" 2>/dev/null)" != 0 ]; then
            reason=$(batch_reason "$work/entry.$number.log" 2>/dev/null)
            echo "${reason:-the job ended before it}" >"$folder/failure"
        else
            # Records each library version once.
            grep -hE '^# (NCCL|cuBLASLt)' "$work/entry.$number.log" | grep -vxF -f "$work/libraries" | tee -a "$work/libraries" |
                while read -r _ reason; do python3 $here/machine.py library "$reason"; done >>"$lines"
        fi
        mkdir -p "$work/${case_of[number]}/inputs"
        for tensor in "$folder"/T*.safetensors; do
            [ ! -e "$tensor" ] || [[ ${tensor##*/} == "$(output "${case_of[number]%%:*}")".* ]] ||
                mv "$tensor" "$work/${case_of[number]}/inputs/"
        done
        [[ " ${folders[*]} " == *" $work/${case_of[number]} "* ]] || folders+=("$work/${case_of[number]}")
    done
    timeout -k 5 900 python3 $here/peers.py ours "$d" --round "$round" $([ $peers = yes ] || echo --simulated) \
        "${folders[@]}" >>"$lines" || failed=1
}
launch() {
    local d=$1 flags=(--device=cuda --inputs random --seed "$seed" -w 5 -n "$iterations" -T 60)
    shift
    [ $peers = yes ] || flags+=(--expect=sim --max-work=4000000000)
    [ -z "$table" ] || flags+=(--tuning "$table")
    timeout -k 5 1800 "$run" --ranks "$d" "${flags[@]}" "$@" >"$work/log" 2>&1 </dev/null
}

# Times PyTorch. Arguments: ranks, cases. A case that ends the job, such as one that hangs, does not prevent those
# after it.
theirs() {
    local d=$1 case rest told fruitless=0
    shift
    while [ $# -gt 0 ]; do
        timeout -k 5 600 python3 -m torch.distributed.run --standalone --nproc-per-node "$d" $here/peers.py time "$@" \
            --iters "$iterations" --round "$round" 2>"$work/log" >>"$lines" && return
        failed=1 rest=()
        told=$(grep -E '(Error|error):' "$work/log" | grep -v ChildFailedError | tail -1 | grep . || tail -1 "$work/log")
        for case; do
            python3 $here/peers.py measured "$lines" | grep -qxF "$case $d peers $round" || rest+=("$case")
        done
        echo "# PyTorch on $d ranks failed in ${rest[0]:-its end}: $told"
        # Two jobs without a result: the fault is not that of a case.
        [ ${#rest[@]} -lt $# ] || fruitless=$((fruitless + 1))
        [ $fruitless -lt 2 ] || return
        set -- "${rest[@]:1}"
    done
}
