# Runs many command lines of hir-run in few jobs, which start GPUs and communicators once each. run.sh and
# compare.sh source this file and set $work, a folder.
#
#   $gpus                           number of visible GPUs
#   batch_add JOB NUMBER WORD...    adds a command line to a job
#   batch_reason FILE               prints why a run failed, from its output
#   batch_run JOB COMMAND...        runs the command lines of a job, by COMMAND... --batch FILE; the output
#                                   goes to $work/log
#
# Afterwards $work/entry.NUMBER.log is the output of each command line, and $work/entry.NUMBER.exit its exit
# code. A job that is lost ends with the current command line; the remaining ones run in another job.

gpus=${HIR_EMULATED_GPUS:-$(
    tr , '\n' <<<"${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)}" |
        grep -cE '^ *[0-9A-Za-z-]+ *$'
)}

# Prints the last line of an output that gives the reason for a failure. Lines of ranks that hir-run starts
# have a prefix.
batch_reason() { grep -hE '^\[(FAILED|UNDECIDED)\]|^(\[[0-9]+\] )?hir-run:|panicked' "$1" | tail -1; }

batch_add() {
    local job=$1 number=$2
    shift 2
    printf '%q ' "$@" >>"$work/batch.$job"
    echo >>"$work/batch.$job"
    echo "$number" >>"$work/batch.$job.numbers"
}

batch_run() {
    local job=$1 status ended
    shift
    local lines=$work/batch.$job numbers=$work/batch.$job.numbers
    while [ -s "$lines" ]; do
        status=0
        "$@" --batch "$lines" || status=$?
        # Prints the number of command lines that have begun. Those that have ended have printed their exit
        # codes.
        ended=$(awk -v folder="$work/entry." -v numbers="$numbers" -v status="$status" '
            function told(at, code) { print code >(all[at] ".exit"); close(all[at] ".exit") }
            BEGIN { while ((getline number < numbers) > 0) all[++count] = folder number }
            /^\$ hir-run / {
                if (at) close(log_file)
                log_file = all[++at] ".log"
                printf "" >log_file
                running = 1
                next
            }
            running && /^# exit code [0-9]+$/ { told(at, $4); failed = failed || $4 != 0; running = 0; next }
            at { print >log_file; next }
            { before = before $0 "\n" }
            END {
                # The job was lost in a command line, or after the last one that succeeded, or before the
                # first.
                if (running || (at && status != 0 && !failed)) told(at, status)
                if (!at) while (at < count) {
                    log_file = all[++at] ".log"
                    printf "%s", before >log_file
                    close(log_file)
                    told(at, status == 0 ? 1 : status)
                }
                print at
            }' "$work/log")
        if ! [ "${ended:-0}" -gt 0 ]; then
            echo "batch.sh: the output of a job could not be read" >&2
            return 1
        fi
        for file in "$lines" "$numbers"; do
            tail -n "+$((ended + 1))" "$file" >"$work/rest" && mv "$work/rest" "$file"
        done
    done
    rm -f "$lines" "$numbers"
}
