#!/usr/bin/env bash
# Runs everything that this project does on the GPUs of a host, and compares every result with that of the
# simulator, bit by bit.
#
#   tests/gpu/run.sh [-b FOLDER_OF_BINARIES] [-r "1 2 4 8"] [-f FILTER] [-t SECONDS] [-s RUNS]
#                    [-T SECONDS] [-o FOLDER] [-q] [PART...]
#
#   -b   default: target/release
#   -r   numbers of ranks, up to the number of GPUs; default: 1 2 4 8. By default, cases for other numbers
#        run too.
#   -f   an extended regular expression: only runs whose line, without the verdict, matches it
#   -t   seconds for everything; what does not fit is reported and counts as failed; default: 3600
#   -s   number of runs with delays, for each plan in the part stress; default: 1000
#   -o   folder for the output of runs that failed, and for rules.json: trials of the part rules that have a verdict there do not run again
#   -q   one process per program: it runs once step by step, then timed as a graph (issue: both), and both
#        results are compared. Without it, timed runs step by step have separate processes.
#   -T   hir-run's -T: seconds until a run that hangs is ended; default: 60
#
# Parts, all by default:
#   programs    samples and test cases, lowered if necessary, issued step by step and as a graph
#   pipelines   every pipeline of hir-opt --list-passes, on programs made for the number of ranks, and on
#               samples and cases that are not lowered
#   protocols   transports and protocols: backends, gets and puts, loops of collectives
#   launch      the same job started by hir-run, by torchrun's variables and by mpirun
#   tuning      algorithms of matrix products, measured and then used from the table; pipelines, measured in turns
#   stress      many runs with random delays of streams, all with equal results
#   faults      ranks that are killed or stopped, deadlocks, ranks that run different programs, too little
#               memory
#   sanitizer   compute-sanitizer's memcheck and racecheck on the kernels
#   rules       trials of the checker's rules on two GPUs, with PyTorch: rules/run.py
#
# Runs with the same number of ranks share a job, which initialises its GPUs once. The output has one line per
# run: part, ranks, issue (eager, graph, both), program, passes, verdict; then a table of the parts. The exit
# code is 0 if all that ran passed, and something ran. Under an emulator, HIR_EMULATED_GPUS is the number of
# GPUs.
set -u
cd "$(dirname "$0")/../.."
usage() {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
bin=target/release wanted="" filter=. budget=3600 delayed=1000 patience=60 kept="" modes=(eager graph)
while getopts b:r:f:t:s:T:o:q option; do
    case $option in
    b) bin=$OPTARG ;;
    r) wanted=$OPTARG ;;
    f) filter=$OPTARG ;;
    t) budget=$OPTARG ;;
    s) delayed=$OPTARG ;;
    T) patience=$OPTARG ;;
    o) kept=$OPTARG ;;
    q) modes=(both) ;;
    *) usage ;;
    esac
done
# What makes hir-run issue runs in a mode other than its default, replays of a graph after a first run step by step.
declare -A flag_of=([eager]=--step-by-step)
# The same for runs with delays, whose default is step by step.
declare -A delays_of=([graph]=-G)
shift $((OPTIND - 1))
parts=("$@")
every=(programs pipelines protocols launch tuning stress faults sanitizer rules)
[ ${#parts[@]} -gt 0 ] || parts=("${every[@]}")
for part in "${parts[@]}"; do
    [[ " ${every[*]} " == *" $part "* ]] || usage
done
run=$bin/hir-run opt=$bin/hir-opt
for tool in "$run" "$opt"; do
    [ -x "$tool" ] || { echo "run.sh: no $tool: build it, or name its folder with -b" >&2; exit 2; }
done
export VIRTUAL_ENV=${VIRTUAL_ENV:-$(python3 -c 'import sys; print(sys.prefix)' 2>/dev/null)}
read -ra counts <<<"${wanted:-1 2 4 8}"
work=$(mktemp -d)
. "$(dirname "$0")/batch.sh"
jobs_started=()
clean() {
    for pid in "${jobs_started[@]}"; do kill -9 "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap clean EXIT
declare -A passed failed skipped
since=$SECONDS
left() { echo $((budget - SECONDS + since)); }
# Time limit of one run, in seconds. A run that is stopped or hangs ends sooner by itself.
limit=$((3 * patience))
part=""

# Prints a line and counts it. Arguments: ranks, issue, program, passes, verdict.
line() {
    printf '%-10s %5s  %-6s %-46s %-46s %s\n' "$part" "$1" "$2" "${3:0:46}" "${4:0:46}" "$5"
}
pass() {
    passed[$part]=$((${passed[$part]:-0} + 1))
    line "$1" "$2" "$3" "$4" passed
}
fail() {
    failed[$part]=$((${failed[$part]:-0} + 1))
    line "$1" "$2" "$3" "$4" "FAILED $5"
    local name="$part $1 $2 $3 $4"
    [ -z "$kept" ] || [ ! -e "$log" ] || { mkdir -p "$kept" && cp "$log" "$kept/${name//[^a-zA-Z0-9.@-]/_}.log"; }
}
skip() {
    skipped[$part]=$((${skipped[$part]:-0} + 1))
    line "$1" "$2" "$3" "$4" "skipped: $5"
}
# Succeeds if a run is selected and there is time for it.
chosen() {
    printf '%s %s %s %s %s\n' "$part" "$1" "$2" "$3" "$4" | grep -qE -- "$filter" || return 1
    if [ $((SECONDS - since)) -gt "$budget" ]; then
        fail "$1" "$2" "$3" "$4" "not run: the time of $budget s is over"
        return 1
    fi
}
enough() { [ "$1" -le "$gpus" ]; }
# Succeeds if programs with this number of ranks are selected.
is_wanted() { enough "$1" && { [ -z "$wanted" ] || [[ " $wanted " == *" $1 "* ]]; }; }

# Prints the reason of a failed run, whose output is in $log.
log=$work/log
told() { batch_reason "$log" | cut -c1-300 | grep . || tail -2 "$log" | tr '\n' ' '; }

# Runs a command line on a number of ranks, started as $style says. The output goes to $work/log.
style=ranks
port=$((20000 + RANDOM % 20000))
launch() {
    local count=$1 rank status=0
    shift
    if [ "$(left)" -le 0 ]; then
        echo "hir-run: not run: the time of $budget s is over" >"$work/log"
        return 1
    fi
    case $style in
    ranks) timeout -k 5 "$limit" "$run" "$@" --ranks "$count" >"$work/log" 2>&1 </dev/null ;;
    mpirun)
        timeout -k 5 "$limit" mpirun --allow-run-as-root --oversubscribe --bind-to none -np "$count" "$run" "$@" >"$work/log" 2>&1 </dev/null
        ;;
    torchrun)
        start "$count" "$@"
        for rank in "${!jobs_started[@]}"; do wait "${jobs_started[$rank]}" || status=$?; done
        collect
        return $status
        ;;
    esac
}
# Starts ranks as torchrun does. Arguments: the number of ranks, and hir-run's arguments, the program first.
# If $other is set, the last rank runs $other instead. The process ids go to jobs_started by rank, the output
# to $work/log.RANK.
other=""
start() {
    local count=$1 rank
    shift
    port=$((port + 1)) jobs_started=()
    for ((rank = 0; rank < count; rank++)); do
        [ $rank -lt $((count - 1)) ] || [ -z "$other" ] || set -- "$other" "${@:2}"
        RANK=$rank WORLD_SIZE=$count LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$run" "$@" >"$work/log.$rank" 2>&1 </dev/null &
        jobs_started+=($!)
        guard $! >/dev/null 2>&1 &
        disown
    done
}
# Kills a process at its time limit, even if it is stopped.
guard() {
    local second
    for ((second = 0; second < limit; second++)); do
        sleep 1
        kill -0 "$1" || return
    done
    kill -9 "$1"
}
collect() {
    cat "$work"/log.* >"$work/log"
    rm -f "$work"/log.*
    jobs_started=()
}

# Queues a run until `settle`. Arguments: ranks, issue, program, passes as the line shows them, words that the
# output must contain (`refused: ` and words: the program must be rejected with these), and hir-run's
# arguments.
runs=0 jobs=()
declare -A what_of words_of
queue() {
    local count=$1 mode=$2 name=$3 label=$4 words=$5
    shift 5
    chosen "$count" "$mode" "$name" "$label" || return
    runs=$((runs + 1))
    what_of[$runs]="$part|$count|$mode|$name|$label" words_of[$runs]=$words
    batch_add "$style.$count" $runs "$@"
    [[ " ${jobs[*]} " == *" $style.$count "* ]] || jobs+=("$style.$count")
}
# Runs what was queued, in one job for each launcher and number of ranks.
settle() {
    local job number status part count mode name label log usual=$limit
    for job in "${jobs[@]}"; do
        style=${job%.*} limit=$(($(left) + patience))
        batch_run "$job" launch "${job#*.}" -T "$patience" --device=cuda --check=off --expect=sim
    done
    for ((number = 1; number <= runs; number++)); do
        IFS='|' read -r part count mode name label <<<"${what_of[$number]}"
        log=$work/entry.$number.log status=$(cat "$work/entry.$number.exit" 2>/dev/null)
        if [[ ${words_of[$number]} == "refused: "* ]]; then
            if [ "$status" = 1 ] && grep -qF -- "${words_of[$number]#refused: }" "$log"; then
                pass "$count" "$mode" "$name" "$label"
            else
                fail "$count" "$mode" "$name" "$label" "(exit $status, expected to be refused) $(told)"
            fi
        elif [ "$status" = 0 ] && grep -q '^\[SUCCESS\].*equal to the simulator' "$log" && grep -qF -- "${words_of[$number]}" "$log"; then
            pass "$count" "$mode" "$name" "$label"
        elif [ "$status" = 8 ]; then
            # No output of the program can be compared, as where all elements are NaN.
            skip "$count" "$mode" "$name" "$label" "$(told)"
        else
            fail "$count" "$mode" "$name" "$label" "(exit $status) $(told)"
        fi
        rm -f "$work/entry.$number".*
    done
    runs=0 jobs=() style=ranks limit=$usual
}

# Queues a program in each issue mode. Arguments: ranks, program, passes or '-', more flags. The lines show
# $label for the passes, if it is set.
check() {
    local count=$1 program=$2 passes=$3 mode flags words name label=${label:-$3} refused
    shift 3
    refused=$(sed -n 's|^// REFUSED ON GPUS: |refused: |p' "$program")
    name=${program#tests/cases/} name=${name#"$work/"}
    flags=("$program" -w 1 -n 3 "$@")
    [ "$passes" = - ] || flags+=(--passes "$passes")
    for mode in "${modes[@]}"; do
        words="3 timed runs, one graph"
        [ "$mode" != eager ] || words="3 timed runs, step by step"
        queue "$count" "$mode" "$name" "$label" "${refused:-$words}" "${flags[@]}" ${flag_of[$mode]:-}
    done
}

# Writes a program for a number of ranks, and prints its path. Arguments: kind, ranks.
make() {
    local file=$work/$1-$2.hir kind=${1#large-}
    case $1 in
    allgather-linear) benches/gpu/programs.sh "$1" "$2" 512 384 256 ;;
    linear-allreduce) benches/gpu/programs.sh "$1" "$2" 480 384 256 ;;
    matmul-reduce-scatter) benches/gpu/programs.sh "$1" "$2" 512 384 256 ;;
    pipeline-stages) benches/gpu/programs.sh "$1" "$2" 8 48 256 ;;
    allreduce-UCC) benches/gpu/programs.sh allreduce "$2" 4096 UCC ;;
    *-CUDA) benches/gpu/programs.sh "${1%-CUDA}" "$2" 4096 CUDA ;;
    # Calls with data of their own, over slices that have left the L2 cache since the last run.
    cold-*)
        kind=${kind#cold-}
        benches/gpu/programs.sh "${kind%-???-shot*}" "$2" 524288 NCCL "${kind#"${kind%???-shot*}"}" 20 20 33554432
        ;;
    # A length that neither the number of ranks nor the width of a vector access divides, and one of many
    # blocks. The parts of other collectives have this length.
    allreduce-*-shot) benches/gpu/programs.sh allreduce "$2" 4099 NCCL "${1#allreduce-}" ;;
    large-allreduce-*-shot) benches/gpu/programs.sh allreduce "$2" 4194304 NCCL "${1#large-allreduce-}" ;;
    large-*-one-shot) benches/gpu/programs.sh "${kind%-one-shot}" "$2" 4194304 NCCL one-shot ;;
    *-one-shot) benches/gpu/programs.sh "${1%-one-shot}" "$2" $((4099 * $2)) NCCL one-shot ;;
    *) benches/gpu/programs.sh "$1" "$2" 4096 ;;
    esac >"$file"
    echo "$file"
}
# Prints the kinds of program to which a pipeline applies. A pipeline that is not named here fails.
programs_of() {
    case $1 in
    @default | @normal-form) echo allgather allreduce reduce-scatter ;;
    @lower) echo allgather-linear linear-allreduce matmul-reduce-scatter ;;
    @auto | @overlap{}) echo allgather-linear linear-allreduce matmul-reduce-scatter ;;
    @overlap-pipeline-stages) echo pipeline-stages ;;
    @overlap-allgather-linear*) echo allgather-linear ;;
    @overlap-linear-allreduce*) echo linear-allreduce ;;
    @overlap-matmul-reduce-scatter*) echo matmul-reduce-scatter ;;
    esac
}
# @one-rank makes the program of one rank, which the others do not run. Without braces, @overlap may stand for @lower.
pipelines() { "$opt" --list-passes | grep -oE '^ *@[a-z0-9-]+' | tr -d ' ' | grep -v '^@one-rank$' | sed 's/^@overlap$/&{}/'; }
# Prints flags for the symbols that a pipeline leaves unbound.
symbols() {
    if grep -q numberOfStreams <("$opt" "$1" --passes "$2" 2>/dev/null); then echo --set numberOfStreams=3; fi
}

# Prints the --set flags of a case's first command.
sets_of() { grep -m1 '^// RUN: hir-run' "$1" | grep -oE -- '--set [^ ]+' | tr '\n' ' '; }
# Prints the number of ranks of a program if the simulator runs it. A program that does not run there is not
# meant to run on GPUs.
ranks_of() {
    local report
    report=$(timeout 60 "$run" "$@" --device=sim 2>/dev/null)
    [[ $report != *"[SUCCESS]"* ]] || grep -oE '[0-9]+ simulated ranks?' <<<"$report" | grep -oE '^[0-9]+'
}
reshards() { "$opt" "$1" --print-plan "${@:2}" 2>/dev/null | grep -q ' reshard '; }

# The samples, except those of which a small program of the same name is among the cases: the simulator needs seconds for them.
samples() {
    local file
    for file in samples/*.hir; do [ -e "tests/cases/overlap/${file##*/}" ] || echo "$file"; done
}

run_programs() {
    local program sets ranks passes
    for program in $(samples) tests/cases/{comm,ops,lower,stream,cuda,compare,overlap,unsharded}/*.hir; do
        read -ra sets < <(sets_of "$program")
        ranks=$(ranks_of "$program" "${sets[@]}")
        [ -n "$ranks" ] || continue
        [ -z "$wanted" ] || [[ " $wanted " == *" $ranks "* ]] || continue
        # GPUs do not run resharding operators, so they are lowered.
        passes=-
        if reshards "$program" "${sets[@]}"; then passes=@lower; fi
        if [ $passes = @lower ] && [ -z "$(ranks_of "$program" "${sets[@]}" --passes @lower)" ]; then
            ! chosen "$ranks" - "$program" $passes || skip "$ranks" - "${program#tests/cases/}" $passes "@lower does not lower it"
        elif enough "$ranks"; then
            check "$ranks" "$program" "$passes" "${sets[@]}"
        elif chosen "$ranks" - "$program" "$passes"; then
            skip "$ranks" - "${program#tests/cases/}" "$passes" "$gpus GPUs"
        fi
    done
}

run_pipelines() {
    local pipeline kind count file sets ranks more
    for file in $(samples) tests/cases/{overlap,unsharded}/*.hir; do
        read -ra sets < <(sets_of "$file")
        ranks=$(ranks_of "$file" "${sets[@]}")
        [ -n "$ranks" ] && is_wanted "$ranks" && reshards "$file" "${sets[@]}" || continue
        if [ -z "$(ranks_of "$file" "${sets[@]}" --passes @lower)" ]; then
            ! chosen "$ranks" - "$file" - || skip "$ranks" - "${file#tests/cases/}" - "@lower does not lower it"
            continue
        fi
        for pipeline in $(pipelines | grep -vE '^@(default|lower|normal-form)$'); do
            read -ra more < <(symbols "$file" "$pipeline")
            check "$ranks" "$file" "$pipeline" "${sets[@]}" "${more[@]}"
        done
    done
    for pipeline in $(pipelines); do
        [ -n "$(programs_of "$pipeline")" ] || fail - - - "$pipeline" "programs_of in $0 has no program for it"
        for kind in $(programs_of "$pipeline"); do
            for count in "${counts[@]}"; do
                enough "$count" || continue
                file=$(make "$kind" "$count")
                read -ra sets < <(symbols "$file" "$pipeline")
                check "$count" "$file" "$pipeline" "${sets[@]}"
            done
        done
    done
}

run_protocols() {
    local options passes count file sets
    local front="decompose-resharding,chunk" back="allocate-and-deallocate,remove-redundant-sync,canonicalize,remove-dead-code"
    for count in "${counts[@]}"; do
        [ "$count" -gt 1 ] && enough "$count" || continue
        file=$(make allgather-linear "$count")
        for options in allgather={p2p-ring,broadcast,whole},backend={nccl,cuda} \
            allgather=p2p-ring,backend=cuda,protocol={get,put},wait={inline,deferred} \
            allgather=collective-permute,style=shard; do
            local swizzle=""
            [[ $options != *permute* ]] || swizzle=swizzle-stream,
            passes="$front,${swizzle}stream-parallel{$options},lower-to-communication,assign-streams{dependent=keep},$back"
            # Options that a pass refuses are skipped. Passes refuse them without GPUs too.
            if ! timeout 60 "$run" "$file" --passes "$passes" --reference "$file" >"$work/log" 2>&1; then
                ! chosen "$count" - "${file#"$work/"}" "{$options}" || skip "$count" - "${file#"$work/"}" "{$options}" "$(told | cut -c1-120)"
                continue
            fi
            label="{$options}" check "$count" "$file" "$passes"
        done
        file=$(make matmul-reduce-scatter "$count")
        for options in reduce-scatter={reduce,p2p-ring,whole},backend={nccl,cuda} reduce-scatter=p2p-ring,backend=cuda,protocol=put; do
            passes="$front,stream-parallel{$options},lower-to-communication,assign-streams{dependent=keep},$back"
            if ! timeout 60 "$run" "$file" --passes "$passes" --reference "$file" >"$work/log" 2>&1; then
                ! chosen "$count" - "${file#"$work/"}" "{$options}" || skip "$count" - "${file#"$work/"}" "{$options}" "$(told | cut -c1-120)"
                continue
            fi
            label="{$options}" check "$count" "$file" "$passes"
        done
        for kind in allgather allreduce reduce-scatter allreduce-UCC {allgather,allreduce,reduce-scatter}-CUDA \
            {,large-}allreduce-{one,two}-shot {,large-}{allgather,reduce-scatter,all-to-all}-one-shot \
            cold-allreduce-{one,two}-shot{,-ll,-ll128} cold-{allgather,reduce-scatter,all-to-all}-one-shot{,-ll,-ll128}; do
            check "$count" "$(make $kind "$count")" -
        done
        check "$count" "$(make linear-allreduce "$count")" "@overlap-linear-allreduce,select-algorithms"
    done
}

run_launch() {
    local count
    for style in ranks torchrun mpirun; do
        for count in "${counts[@]}"; do
            enough "$count" || continue
            if [ $style = mpirun ] && ! command -v mpirun >/dev/null; then
                skip "$count" - "by mpirun" - "no mpirun"
                continue
            fi
            # The programs are equal; their names show how they are started.
            cp "$(make linear-allreduce "$count")" "$work/by-$style-$count.hir"
            check "$count" "$work/by-$style-$count.hir" @overlap-linear-allreduce
            cp "$(make allreduce "$count")" "$work/by-$style-allreduce-$count.hir"
            check "$count" "$work/by-$style-allreduce-$count.hir" -
        done
    done
    style=ranks
}

# Measures two pipelines in turns, and then applies the fastest one. Arguments: ranks, program, its name.
tune_passes() {
    local count=$1 file=$2 name=$3 label='--tune-passes @lower|@overlap{}' applied='--tuning, without --passes' mode status table
    local -a sets flags
    read -ra sets < <(symbols "$file" @overlap{})
    for mode in "${modes[@]}"; do
        table=$work/pipelines-$mode.json
        flags=("$file" "${sets[@]}" --device=cuda --check=off --expect=sim -w 1 -n 3 -T "$patience")
        flags+=(${flag_of[$mode]:-})
        rm -f "$table"
        if chosen "$count" "$mode" "$name" "$label"; then
            launch "$count" "${flags[@]}" --tune-passes '@lower|@overlap{}' --tune "$table"
            status=$?
            if [ $status = 0 ] && tail -1 "$work/log" | grep -q '^\[SUCCESS\] the fastest of 2 pipelines is '; then
                pass "$count" "$mode" "$name" "$label"
            else
                fail "$count" "$mode" "$name" "$label" "(exit $status) $(told)"
            fi
        fi
        if [ -e "$table" ] && chosen "$count" "$mode" "$name" "$applied"; then
            launch "$count" "${flags[@]}" --tuning "$table"
            status=$?
            if [ $status = 0 ] && grep -q 'has for this program is applied' "$work/log"; then
                pass "$count" "$mode" "$name" "$applied"
            else
                fail "$count" "$mode" "$name" "$applied" "(exit $status) $(told)"
            fi
        fi
    done
}

# All runs with the same number of ranks are one job, so the table has all entries when it is used.
run_tuning() {
    local pipeline kind count file sets name label
    local -a flags
    for count in "${counts[@]}"; do
        enough "$count" || continue
        for kind in allgather-linear linear-allreduce matmul-reduce-scatter; do
            file=$(make "$kind" "$count") name=$kind-$count.hir
            for pipeline in @lower @overlap{}; do
                read -ra sets < <(symbols "$file" "$pipeline")
                flags=("$file" --passes "$pipeline" "${sets[@]}")
                queue "$count" eager "$name" "$pipeline --tune" "issued command by command" "${flags[@]}" --step-by-step --tune "$work/table-$count.json"
                queue "$count" graph "$name" "$pipeline --tune" "as captured graphs" "${flags[@]}" -G --tune "$work/table-$count.json"
                queue "$count" graph "$name" "$pipeline --tuning" "an entry for 1 of 1" "${flags[@]}" -w 1 -n 3 -G --tuning "$work/table-$count.json"
            done
            tune_passes "$count" "$file" "$name"
        done
    done
}

run_stress() {
    local pipeline kind count file sets flags mode
    for count in "${counts[@]}"; do
        enough "$count" || continue
        for pipeline in $(pipelines); do
            for kind in $(programs_of "$pipeline"); do
                file=$(make "$kind" "$count")
                read -ra sets < <(symbols "$file" "$pipeline")
                flags=("$file" --stress "$delayed" --seed 7 --passes "$pipeline" "${sets[@]}")
                for mode in eager graph; do
                    queue "$count" $mode "${kind}-$count.hir" "$pipeline" "# $delayed runs with delays" "${flags[@]}" ${delays_of[$mode]:-}
                done
            done
        done
        [ "$count" -gt 1 ] || continue
        # Collectives in one kernel: their signals, fences and packets.
        for kind in {,large-}allreduce-{one,two}-shot {,large-}{allgather,reduce-scatter,all-to-all}-one-shot \
            cold-allreduce-{one,two}-shot-ll{,128}; do
            flags=("$(make "$kind" "$count")" --stress "$delayed" --seed 7)
            for mode in eager graph; do
                queue "$count" $mode "$kind-$count.hir" - "# $delayed runs with delays" "${flags[@]}" ${delays_of[$mode]:-}
            done
        done
    done
}

# Checks the outcome of a fault. Arguments: name, ranks, expected exit code, words, actual exit code.
expect() {
    local name=$1 count=$2 code=$3 words=$4 came=$5
    if [ "$came" -ne "$code" ]; then
        fail "$count" - "$name" - "exit $came, expected $code: $(told)"
    elif ! grep -qE -- "$words" "$work/log"; then
        fail "$count" - "$name" - "the output does not contain '$words': $(told)"
    else
        pass "$count" - "$name" -
    fi
}
# Sends a signal to a rank of a long job. Arguments: name, ranks, signal, words.
struck() {
    local name=$1 count=$2 signal=$3 words=$4 status=0 rank victim
    start "$count" "$(make allreduce "$count")" --device=cuda -w 100000000 -n 1 -T 6
    # Rank 0 prints this line when all ranks have loaded everything.
    for ((rank = 0; rank < 300; rank++)); do
        grep -qs 'GPU memory' "$work/log.0" && break
        sleep 0.2
    done
    sleep 2
    victim=${jobs_started[$((count - 1))]}
    kill "-$signal" "$victim"
    wait "${jobs_started[0]}" 2>/dev/null || status=$?
    kill -9 "$victim" 2>/dev/null
    for rank in "${!jobs_started[@]}"; do wait "${jobs_started[$rank]}" 2>/dev/null; done
    collect
    # NCCL may notice the loss of a rank before the other ranks do.
    [ $status -ne 5 ] || status=4
    expect "$name" "$count" 4 "$words" $status
}

run_faults() {
    local count case file
    for count in "${counts[@]}"; do
        [ "$count" -gt 1 ] && enough "$count" || continue
        ! chosen "$count" - "a rank is killed" - || struck "a rank is killed" "$count" KILL "rank $((count - 1))"
        ! chosen "$count" - "a rank is stopped" - || struck "a rank is stopped" "$count" STOP "rank $((count - 1))"
        if chosen "$count" - "ranks hold different programs" -; then
            file=$(make allreduce "$count") other=$work/other.hir style=torchrun
            sed 's/SUM/MAX/' "$file" >"$other"
            launch "$count" "$file" --device=cuda -T 20
            expect "ranks hold different programs" "$count" 6 differ $?
            other="" style=ranks
        fi
    done
    # These are refused before anything runs. On GPUs, some would end by luck, as NCCL may buffer a send
    # without a receive.
    for case in deadlock/cuda-missing-send deadlock/one-rank-skips deadlock/both-receive-first; do
        count=$(grep -oE 'DeviceMesh\{[^}]*\}' tests/cases/$case.hir | grep -oE '[0-9]+' | sort -n | tail -1)
        count=$((count + 1))
        enough "$count" || continue
        chosen "$count" - "$case" - || continue
        launch "$count" tests/cases/$case.hir --device=cuda -T 5
        expect "$case" "$count" 4 "^\[FAILED\] deadlock: (rank [0-9]+ never|ranks [0-9]+ and [0-9]+ each wait in a receive)" $?
    done
    if is_wanted 1 && chosen 1 - "more memory than a GPU has" -; then
        cat >"$work/huge.hir" <<'TEXT'
%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0})) -> (T1_g_float[iS1{4}] (DeviceMesh{0})) :
  T2_g_float[iS2{1099511627776}] (DeviceMesh{0}) = ALLOCATE(mem_type=global, zero_init=false)
  T1_g_float[iS1{4}] (DeviceMesh{0})
     = T0_g_float[iS0{4}] (DeviceMesh{0})
     + T0_g_float[iS0{4}] (DeviceMesh{0});
} // %HostIrContainer
TEXT
        launch 1 "$work/huge.hir" --device=cuda
        expect "more memory than a GPU has" 1 6 "bytes of GPU memory are wanted" $?
    fi
}
run_sanitizer() {
    local tool program programs=() number log status found job jobs
    local -a program_of
    if is_wanted 1 && ! command -v compute-sanitizer >/dev/null; then
        skip 1 - "tests/cases/ops" - "no compute-sanitizer"
        return
    fi
    is_wanted 1 || return
    for program in tests/cases/ops/*.hir; do
        log=$("$run" "$program" --device=sim 2>/dev/null) && [[ $log == *" 1 simulated rank"[s,]* ]] && programs+=("$program")
    done
    for tool in memcheck racecheck; do
        program_of=() jobs=()
        for program in "${programs[@]}"; do
            chosen 1 eager "${program#tests/cases/}" $tool || continue
            runs=$((runs + 1)) program_of[$runs]=$program job=$tool
            # memcheck needs a process for each program, since the next program of a job may get more memory
            # than it requests.
            [ $tool = racecheck ] || job=$tool.$runs
            batch_add $job $runs "$program"
            [[ " ${jobs[*]} " == *" $job "* ]] || jobs+=("$job")
        done
        for job in "${jobs[@]}"; do batch_run "$job" sanitized $tool; done
        for number in "${!program_of[@]}"; do
            log=$work/entry.$number.log status=$(cat "$work/entry.$number.exit" 2>/dev/null)
            # The findings on a program are in its output. The name of the tool and its totals concern the
            # whole job.
            found=$(grep -h '^=====' "$log" | grep -vE 'COMPUTE-SANITIZER| SUMMARY: |Target application returned' | head -3 | tr '\n' ' ')
            if [ "$status" = 0 ] && [ -z "$found" ]; then
                pass 1 eager "${program_of[$number]#tests/cases/}" $tool
            else
                fail 1 eager "${program_of[$number]#tests/cases/}" $tool "(exit $status) $found $(told)"
            fi
        done
        rm -f "$work"/entry.*
        runs=0
    done
}
run_rules() {
    local rule trial verdict agrees folder=${kept:-$work}/rules
    is_wanted 2 && chosen 2 - rules - || return
    if [ -n "${HIR_EMULATED_GPUS:-}" ] || ! python3 -c 'import torch' 2>/dev/null; then
        skip 2 - rules - "it needs GPUs and PyTorch"
        return
    fi
    log=$folder/rules.log
    mkdir -p "$folder"
    [ ! -e "$folder/rules.json" ] || cp "$folder/rules.json" "$work/done.json"
    python3 tests/gpu/rules/run.py --out "$folder" --seconds "$(left)" $([ ! -e "$work/done.json" ] || echo "--done $work/done.json") >"$work/rules.txt"
    grep '^# not run' "$work/rules.txt"
    while IFS=$'\t' read -r rule trial verdict agrees; do
        case $agrees in
        True) pass 2 - "$rule" "$trial" ;;
        None) skip 2 - "$rule" "$trial" "$verdict" ;;
        *) fail 2 - "$rule" "$trial" "$verdict" ;;
        esac
    done < <(python3 -c '
import json, sys
for it in json.load(open(sys.argv[1]))["results"]:
    agrees = False if it["verdict"] == "no verdict" else it["agrees"]
    print(it["rule"], it["trial"], it["verdict"], agrees, sep="\t")' "$folder/rules.json")
    log=$work/log
}
# Runs a job of one rank under a tool of compute-sanitizer.
# compute-sanitizer starts threads before `main`, so hir-run cannot set the environment of CUDA and NCCL.
sanitized() {
    NCCL_NVLS_ENABLE=0 CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_DEVICE_MAX_COPY_CONNECTIONS=32 CUDA_LAUNCH_BLOCKING=0 \
        NVIDIA_TF32_OVERRIDE=0 timeout -k 5 $(($(left) + patience)) compute-sanitizer --tool "$1" "$run" --device=cuda --check=off --expect=sim "${@:2}" \
        >"$work/log" 2>&1 </dev/null
}

echo "# $gpus GPUs${HIR_EMULATED_GPUS:+, emulated}; $("$run" --version)"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^/# /'
printf '%-10s %5s  %-6s %-46s %-46s %s\n' part ranks issue program passes verdict
for count in "${counts[@]}"; do
    enough "$count" || echo "# skipping $count ranks: there are only $gpus GPUs"
done
for part in "${parts[@]}"; do
    # These parts have their own jobs; the others queue their runs.
    case $part in faults | sanitizer | rules) settle ;; esac
    run_"$part"
done
settle
all=0 wrong=0
printf '# %-10s %8s %8s %8s\n' part passed failed skipped
for part in "${parts[@]}"; do
    printf '# %-10s %8d %8d %8d\n' "$part" "${passed[$part]:-0}" "${failed[$part]:-0}" "${skipped[$part]:-0}"
    all=$((all + ${passed[$part]:-0})) wrong=$((wrong + ${failed[$part]:-0}))
done
echo "# $all passed, $wrong failed, $((SECONDS - since)) s"
[ "$wrong" -eq 0 ] && [ "$all" -gt 0 ]
