#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
# The report of a job that hangs is in hang-JOB.txt: the watch runs on the first node, and ends with the job.
dumps=/shared/dumps/$SLURM_JOB_ID
mkdir -p "$dumps"
export TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_TRACE_BUFFER_SIZE=20000 TORCH_NCCL_DUMP_ON_TIMEOUT=1
export TORCH_FR_DUMP_TEMP_FILE=$dumps/rank_ TORCH_NCCL_DEBUG_INFO_TEMP_FILE=$dumps/rank_
hir hang --watch "$dumps" --source "$SLURM_SUBMIT_DIR" > "hang-$SLURM_JOB_ID.txt" 2>&1 &
watch=$!
srun torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint="$(hostname):29500" train.py
# The last dumps are read before the job ends. Without dumps, nothing waits for them.
if [ -n "$(ls "$dumps")" ]; then wait $watch; else kill $watch; fi
