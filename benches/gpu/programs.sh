#!/usr/bin/env bash
# Prints a program for any number of ranks, for the GPU tests and benchmarks.
#
#   programs.sh allgather-linear RANKS M N K
#       C[m,n] = allgather(A[m/d,k]) · B[n,k]ᵀ, not lowered
#   programs.sh linear-allreduce RANKS M N K [CHUNKS]
#       Y[m,n] = allreduce(X[m,k/d] · W[n,k/d]ᵀ), not lowered, with the rows in chunks
#   programs.sh matmul-reduce-scatter RANKS M N K
#       Y[m/d,n] = reduce_scatter(A[m,k/d] · B[n,k/d]ᵀ), not lowered
#   programs.sh pipeline-stages RANKS B M N
#       RANKS linear layers, one per rank: B micro-batches of M rows, N·N weights, not lowered
#   programs.sh allgather|allreduce|reduce-scatter|all-to-all RANKS COUNT [BACKEND [ALGO [CALLS]]]
#       a collective, CALLS times (default: once); COUNT elements of the whole tensor, or of one rank's part for
#       all-to-all; ALGO is - for the backend's own
#
# All tensors are bf16.
set -eu
kind=$1 d=$2
shift 2
ranks=$(seq -s ' ' 0 $((d - 1)))
mesh="(DeviceMesh{$ranks})"
divides() { [ $(($1 % $2)) -eq 0 ] || { echo "programs.sh: $2 does not divide $1" >&2; exit 2; }; }

# Prints a tensor: its name, its axes and its mesh.
t() { echo "$1_g___bfloat[$2] $mesh"; }

case $kind in
allgather-linear)
    m=$1 n=$2 k=$3
    divides "$m" "$d"
    a=$(t T0 "ideviceIdx.x0{$d}, iS1{$((m / d))}, iS2{$k}") b=$(t T1 "iS3{$n}, iS4{$k}")
    c=$(t T2 "istreamIdx5{$d}, iS6{$((m / d))}, iS7{$n}, rS8{$k}")
    cat <<TEXT
%HostIrContainer { ($a, $b) -> ($c) :
  $c
     = linear($a,
              $b)
} // %HostIrContainer
TEXT
    ;;
linear-allreduce)
    m=$1 n=$2 k=$3 chunks=${4:-4}
    divides "$m" "$chunks"
    divides "$k" "$d"
    rows=$((m / chunks)) part=$((k / d))
    x=$(t T0 "istreamIdx0{$chunks}, ideviceIdx.x1{$d}, iS2{$rows}, iS3{$part}")
    w=$(t T1 "ideviceIdx.x4{$d}, iS5{$n}, iS6{$part}")
    sums=$(t T2 "istreamIdx7{$chunks}, ideviceIdx.x8{$d}rf, iS9{$rows}, iS10{$n}, rS11{$part}rf")
    y=$(t T3 "istreamIdx12{$chunks}, rdeviceIdx.x13{$d}, iS14{$rows}, iS15{$n}")
    cat <<TEXT
%HostIrContainer { ($x, $w) -> ($y) :
  $sums
     = linear($x,
              $w)
  $y
     = reduction( $sums, op = add, initial value = float(0), allreduce = false )
} // %HostIrContainer

Domains:
  T0: logical(iS16{$m}, iS17{$k}), outer_split(iS16{$m}, $chunks) -> (istreamIdx0{$chunks}, iS2{$rows}), outer_split(iS17{$k}, $d) -> (ideviceIdx.x1{$d}, iS3{$part})
  T1: logical(iS5{$n}, iS18{$k}), outer_split(iS18{$k}, $d) -> (ideviceIdx.x4{$d}, iS6{$part})
  T2: logical(iS19{$m}, iS10{$n}, ideviceIdx.x8{$d}rf, rS11{$part}rf), outer_split(iS19{$m}, $chunks) -> (istreamIdx7{$chunks}, iS9{$rows})
  T3: logical(iS20{$m}, iS15{$n}, rdeviceIdx.x13{$d}), outer_split(iS20{$m}, $chunks) -> (istreamIdx12{$chunks}, iS14{$rows})
TEXT
    ;;
matmul-reduce-scatter)
    m=$1 n=$2 k=$3
    divides "$m" "$d"
    divides "$k" "$d"
    a=$(t T0 "iS0{$m}, ideviceIdx.x1{$d}, iS2{$((k / d))}") b=$(t T1 "iS5{$n}, ideviceIdx.x6{$d}, iS7{$((k / d))}")
    y=$(t T2 "ideviceIdx.x10{$d}, iS11{$((m / d))}, iS12{$n}")
    cat <<TEXT
%HostIrContainer { ($a, $b) -> ($y) :
  $y
     = linear($a,
              $b)
} // %HostIrContainer

Domains:
  T0: logical(iS0{$m}, iS3{$k}), outer_split(iS3{$k}, $d) -> (ideviceIdx.x1{$d}, iS2{$((k / d))})
  T1: logical(iS5{$n}, iS8{$k}), outer_split(iS8{$k}, $d) -> (ideviceIdx.x6{$d}, iS7{$((k / d))})
  T2: logical(iS13{$m}, iS12{$n}), outer_split(iS13{$m}, $d) -> (ideviceIdx.x10{$d}, iS11{$((m / d))})
TEXT
    ;;
pipeline-stages)
    b=$1 m=$2 n=$3
    axis=0 ins="" body=""
    # Sets $tensor to a tensor of one stage. Arguments: name, stage, extents.
    on() {
        local name=$1 stage=$2 axes="" extent
        shift 2
        for extent; do axes+="${axes:+, }iS$axis{$extent}" axis=$((axis + 1)); done
        tensor="${name}_g___bfloat[$axes] (DeviceMesh{$stage})"
    }
    on T0 0 "$b" "$m" "$n"
    x=$tensor ins=$x
    for ((stage = 0; stage < d; stage++)); do
        if [ $stage -gt 0 ]; then
            on T$((3 * stage)) $stage "$b" "$m" "$n"
            body+="  $tensor
     = Set( $x )
"
            x=$tensor
        fi
        on T$((3 * stage + 1)) $stage "$n" "$n"
        w=$tensor ins+=", $w"
        on T$((3 * stage + 2)) $stage "$b" "$m" "$n"
        body+="  $tensor
     = linear($x,
              $w)
"
        x=$tensor
    done
    echo "%HostIrContainer { ($ins) -> ($x) :"
    echo "$body} // %HostIrContainer"
    ;;
allgather | allreduce | reduce-scatter | all-to-all)
    count=$1 backend=${2:-NCCL} calls=${4:-1} indent=""
    [ "${3:--}" = - ] || backend+=", algo=$3"
    case $kind in
    allgather)
        divides "$count" "$d"
        type=Allgather op="" x=$(t T0 "ideviceIdx.x0{$d}, iS1{$((count / d))}") y=$(t T1 "iS2{$d}, iS3{$((count / d))}")
        ;;
    allreduce)
        type=Allreduce op=" red_op=SUM," x=$(t T0 "ideviceIdx.x0{$d}, iS1{$count}") y=$(t T1 "iS2{$count}")
        ;;
    reduce-scatter)
        divides "$count" "$d"
        type=ReduceScatter op=" red_op=SUM," x=$(t T0 "ideviceIdx.x0{$d}, iS1{$d}, iS2{$((count / d))}")
        y=$(t T1 "ideviceIdx.x3{$d}, iS4{$((count / d))}")
        ;;
    all-to-all)
        divides "$count" "$d"
        type=AllToAll op="" x=$(t T0 "ideviceIdx.x0{$d}, iS1{$d}, iS2{$((count / d))}")
        y=$(t T1 "ideviceIdx.x3{$d}, iS4{$d}, iS5{$((count / d))}")
        ;;
    esac
    [ "$calls" -eq 1 ] || indent="  "
    cat <<TEXT
%HostIrContainer { ($x) -> ($y) :
  $y = ALLOCATE(mem_type=global, zero_init=false)
${indent:+  FOR i9 from 0 to $calls:
}$indent  Communication 3 (type=$type, team=($ranks),$op input=$x, output=$y, backend=$backend)
$indent  Wait(Communication 3)
} // %HostIrContainer
TEXT
    ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
