# Runs many command lines of hir-run in few jobs, which start GPUs and communicators once each. For run.sh and compare.sh,
# which source this and set $work, a folder.
#
#   $gpus                           how many GPUs are visible
#   batch_add JOB NUMBER WORD...    a command line for a job
#   batch_reason FILE               why a run failed, by its output
#   batch_run JOB COMMAND...        runs what was added for it, by COMMAND... --batch FILE, whose output goes to $work/log
#
# Afterwards $work/entry.NUMBER.log is what each has printed, and $work/entry.NUMBER.exit its exit code. A job that is lost
# ends with the command line that it was at; the rest runs in another.

gpus=${HIR_EMULATED_GPUS:-$(
    tr , '\n' <<<"${CUDA_VISIBLE_DEVICES-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null)}" |
        grep -cE '^ *[0-9A-Za-z-]+ *$'
)}

# The reason that an output gives for a failure, on the last such line; ranks that hir-run starts say whose it is.
batch_reason() { grep -hE '^\[FAILED\]|^(\[[0-9]+\] )?hir-run:|panicked' "$1" | tail -1; }

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
        # Prints how many command lines have begun; those that have ended have told their exit codes.
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
                # Lost in a command line, or after the last one that ended well, or before the first.
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
