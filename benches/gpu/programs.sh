#!/usr/bin/env bash
# Prints a program for any number of ranks, for the GPU tests and benchmarks.
#
#   programs.sh allgather-linear RANKS M N K
#       C[m,n] = allgather(A[m/d,k]) · B[n,k]ᵀ, not lowered
#   programs.sh linear-allreduce RANKS M N K [CHUNKS]
#       Y[m,n] = allreduce(X[m,k/d] · W[n,k/d]ᵀ), not lowered, with the rows in chunks; with 0, not in chunks
#   programs.sh matmul-reduce-scatter RANKS M N K
#       Y[m/d,n] = reduce_scatter(A[m,k/d] · B[n,k/d]ᵀ), not lowered
#   programs.sh column-parallel RANKS M N K [CALLS]
#       Y[m,n/d] = allgather(X[m/d,k]) · W[n/d,k]ᵀ, not lowered
#   programs.sh row-parallel RANKS M N K [CALLS]
#       Y[m,n] = allreduce(X[m,k/d] · W[n,k/d]ᵀ), not lowered
#   programs.sh mlp RANKS M N K
#       Y[m/d,n] = reduce_scatter(relu(allgather(X[m/d,n]) · V[k/d,n]ᵀ) · W[n,k/d]ᵀ), not lowered
#   programs.sh block RANKS M N K [HEADS [SEQUENCES]]
#       a transformer block without norms, not lowered: H = X + attention(X), Y[m/d,n] = H + mlp(H), where the MLP is
#       that of `mlp`. Attention is computed with matmuls and softmax, for M rows of SEQUENCES sequences. Rank r has
#       HEADS/d of the heads, and the rows of its weight are, for each head, its queries, keys and values.
#   programs.sh local-block RANKS M N K [HEADS [SEQUENCES]]
#       what a rank of `block` computes without communication and without the two sums, on all rows
#   programs.sh block-sdpa RANKS M N K [HEADS [SEQUENCES]]
#       `block` with attention by sdpa
#   programs.sh matmul RANKS M N K [CALLS]
#       C[m,n] = A[m,k] · B[n,k]ᵀ, by every rank for itself
#   programs.sh local-mlp RANKS M N K
#       Y[m,n] = relu(X[m,n] · V[k,n]ᵀ) · W[n,k]ᵀ, by every rank for itself
#   programs.sh pipeline-stages RANKS B M N
#       RANKS linear layers, one per rank: B micro-batches of M rows, N·N weights, not lowered
#   programs.sh allgather|allreduce|reduce-scatter|all-to-all RANKS COUNT [BACKEND [ALGO [CALLS [SLICES [FLUSH]]]]]
#       a collective, CALLS times; COUNT elements of the whole tensor, or of one rank's part for all-to-all; ALGO
#       is - for the backend's own. With SLICES > 1 the calls go over slices of larger tensors in turn. The
#       slices of the result are the first ones of an input of FLUSH elements or more: hir-run restores inputs
#       that a program writes before each run, which overwrites the L2 cache.
#
# Layers and collectives run CALLS times, once by default. All tensors are bf16.
set -eu
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
# Checks that arguments are decimal numbers of at most 15 digits that are not less than the first one.
numbers() {
    local least=$1 it
    shift
    for it; do
        [[ $it =~ ^(0|[1-9][0-9]{0,14})$ && $it -ge $least ]] || {
            echo "programs.sh: \`$it\` is not a number from $least on, in decimal digits without a sign" >&2
            exit 2
        }
    done
}
[ $# -ge 3 ] || usage # at least one number behind the number of ranks
kind=$1 d=$2 with_sdpa=""
shift 2
[ $kind != block-sdpa ] || kind=block with_sdpa=yes
numbers 1 "$d"
# A collective has the names of a backend and of an algorithm between its numbers. The number of chunks and the last
# number of a collective may be 0.
case $kind in
allgather | allreduce | reduce-scatter | all-to-all) numbers 1 "$1" "${4:-1}" "${5:-1}" && numbers 0 "${6:-0}" ;;
linear-allreduce) [ $# -ge 3 ] && numbers 1 "${@:1:3}" && numbers 0 "${@:4}" || usage ;;
*) [ $# -ge 3 ] && numbers 1 "$@" || usage ;;
esac
ranks=$(seq -s ' ' 0 $((d - 1)))
mesh="(DeviceMesh{$ranks})"
divides() { [ $(($1 % $2)) -eq 0 ] || { echo "programs.sh: $2 does not divide $1" >&2; exit 2; }; }

# Prints a tensor: its name, its axes and its mesh.
t() { echo "$1_g___bfloat[$2] $mesh"; }
# Prints a declaration, after which the name alone stands for the tensor.
declare_tensor() { echo "%tensor $(t "$1" "$2")"; }
# Prints statements, in a loop if there is more than one call.
times() {
    local indent="  "
    if [ "$1" -gt 1 ]; then
        echo "  FOR i99 from 0 to $1:"
        indent="    "
    fi
    sed "s/^/$indent/"
}

# Prints the tensors T5 to T24 of attention, from the projections to the heads' results. Arguments: number of heads, and
# the axes and the mesh of the projections. Their intermediate results get meshes from propagate-shardings.
attention_tensors() {
    local heads=$1 at
    echo "%tensor T5_g___bfloat[$2] $3"
    local_tensor() { echo "%tensor $1_g___bfloat[$2]"; }
    local_tensor T6 "iS34{$b}, iS35{$s}, iS36{$heads}, iS37{3}, iS38{$e}"
    for at in 7 8 9; do local_tensor T$at "iS${at}0{$b}, iS${at}1{$s}, iS${at}2{$heads}, iS${at}3{$e}"; done
    for at in 10 12; do local_tensor T$at "iS${at}0{$b}, iS${at}2{$heads}, iS${at}1{$s}, iS${at}3{$e}"; done
    if [ -n "$with_sdpa" ]; then
        local_tensor T11 "iS110{$b}, iS112{$heads}, iS111{$s}, iS113{$e}"
    else
        local_tensor T11 "iS110{$b}, iS112{$heads}, iS113{$e}, iS111{$s}"
        for at in 13 16 17 18; do local_tensor T$at "iS${at}0{$b}, iS${at}1{$heads}, iS${at}2{$s}, iS${at}3{$s}"; done
        for at in 14 19; do local_tensor T$at "iS${at}0{$b}, iS${at}1{$heads}, iS${at}2{$s}, rS${at}3{$s}"; done
        for at in 15 20; do local_tensor T$at "iS${at}0{$b}, iS${at}1{$heads}, iS${at}2{$s}, bS${at}3{1}"; done
        local_tensor T21 "iS210{$b}, iS211{$heads}, iS212{$s}, iS213{$e}"
    fi
    local_tensor T22 "iS220{$b}, iS221{$heads}, iS222{$s}, iS223{$e}"
    local_tensor T23 "iS230{$b}, iS232{$s}, iS231{$heads}, iS233{$e}"
    local_tensor T24 "iS240{$m}, iS241{$((heads * e))}"
}
# Prints the statements of attention: softmax(Q · Kᵀ · scale) · V. For inputs between -1 and 1, the scale makes the
# deviation of the scores 1.
attention() {
    local scale
    scale=$(awk "BEGIN { printf \"%.6g\", 9 / ($n * sqrt($e)) }")
    cat <<TEXT
  T5 = linear(T0, T1)
  T6 = reshape( T5 )
  T7 = select( T6, axis = iS37{3}, index = 0 )
  T8 = select( T6, axis = iS37{3}, index = 1 )
  T9 = select( T6, axis = iS37{3}, index = 2 )
  T10 = Set.Permute( T7 )
  T11 = Set.Permute( T8 )
  T12 = Set.Permute( T9 )
$(scores_to_heads "$scale")
  T23 = Set.Permute( T22 )
  T24 = reshape( T23 )
TEXT
}
# Prints the statements from queries, keys and values to the heads' results. Without sdpa, the sum of a row divides its
# result, which is smaller than its probabilities. Argument: the scale.
scores_to_heads() {
    if [ -n "$with_sdpa" ]; then
        echo "  T22 = sdpa(T10, T11, T12, dropout_p=double(0), is_causal=false, scale=double($1))"
        return
    fi
    cat <<TEXT
  T13 = matmul(T10, T11)
  T14 = reduction( T13, op = max, initial value = double(-inf), allreduce = false )
  T15 = broadcast( T14, flags = {false, false, false, true} )
  T16 = T13 - T15;
  T17 = T16 * double($1);
  T18 = exp(T17);
  T19 = reduction( T18, op = add, initial value = double(0), allreduce = false )
  T20 = broadcast( T19, flags = {false, false, false, true} )
  T21 = matmul(T18, T12)
  T22 = T21 / T20;
TEXT
}

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
    divides "$k" "$d"
    if [ "$chunks" = 0 ]; then
        declare_tensor T0 "iS0{$m}, ideviceIdx.x1{$d}, iS2{$((k / d))}"
        declare_tensor T1 "iS3{$n}, ideviceIdx.x4{$d}, iS5{$((k / d))}"
        declare_tensor T3 "iS6{$m}, iS7{$n}"
        cat <<TEXT
%HostIrContainer { (T0, T1) -> (T3) :
  T3 = linear(T0, T1)
} // %HostIrContainer

Domains:
  T0: logical(iS0{$m}, iS8{$k}), outer_split(iS8{$k}, $d) -> (ideviceIdx.x1{$d}, iS2{$((k / d))})
  T1: logical(iS3{$n}, iS9{$k}), outer_split(iS9{$k}, $d) -> (ideviceIdx.x4{$d}, iS5{$((k / d))})
TEXT
        exit
    fi
    divides "$m" "$chunks"
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
matmul)
    m=$1 n=$2 k=$3
    declare_tensor T0 "iS0{$m}, iS1{$k}"
    declare_tensor T1 "iS2{$n}, iS3{$k}"
    declare_tensor T2 "iS4{$m}, iS5{$n}, rS6{$k}"
    echo "%HostIrContainer { (T0, T1) -> (T2) :"
    echo "T2 = linear(T0, T1)" | times "${4:-1}"
    echo "} // %HostIrContainer"
    ;;
local-mlp)
    m=$1 n=$2 k=$3
    declare_tensor T0 "iS0{$m}, iS1{$n}"
    declare_tensor T1 "iS2{$k}, iS3{$n}"
    declare_tensor T2 "iS4{$n}, iS5{$k}"
    declare_tensor T3 "iS6{$m}, iS7{$k}, rS8{$n}"
    declare_tensor T5 "iS9{$m}, iS10{$k}"
    declare_tensor T4 "iS11{$m}, iS12{$n}, rS13{$k}"
    cat <<TEXT
%HostIrContainer { (T0, T1, T2) -> (T4) :
  T3 = linear(T0, T1)
  T5 = relu(T3);
  T4 = linear(T5, T2)
} // %HostIrContainer
TEXT
    ;;
column-parallel)
    m=$1 n=$2 k=$3
    divides "$m" "$d"
    divides "$n" "$d"
    declare_tensor T0 "ideviceIdx.x0{$d}, iS1{$((m / d))}, iS2{$k}"
    declare_tensor T1 "ideviceIdx.x3{$d}, iS4{$((n / d))}, iS5{$k}"
    declare_tensor T2 "iS6{$m}, ideviceIdx.x7{$d}, iS8{$((n / d))}"
    echo "%HostIrContainer { (T0, T1) -> (T2) :"
    echo "T2 = linear(T0, T1)" | times "${4:-1}"
    cat <<TEXT
} // %HostIrContainer

Domains:
  T0: logical(iS9{$m}, iS2{$k}), outer_split(iS9{$m}, $d) -> (ideviceIdx.x0{$d}, iS1{$((m / d))})
  T1: logical(iS10{$n}, iS5{$k}), outer_split(iS10{$n}, $d) -> (ideviceIdx.x3{$d}, iS4{$((n / d))})
  T2: logical(iS6{$m}, iS11{$n}), outer_split(iS11{$n}, $d) -> (ideviceIdx.x7{$d}, iS8{$((n / d))})
TEXT
    ;;
row-parallel)
    m=$1 n=$2 k=$3
    divides "$k" "$d"
    declare_tensor T0 "iS0{$m}, ideviceIdx.x1{$d}, iS2{$((k / d))}"
    declare_tensor T1 "iS3{$n}, ideviceIdx.x4{$d}, iS5{$((k / d))}"
    declare_tensor T2 "iS6{$m}, iS7{$n}"
    echo "%HostIrContainer { (T0, T1) -> (T2) :"
    echo "T2 = linear(T0, T1)" | times "${4:-1}"
    cat <<TEXT
} // %HostIrContainer

Domains:
  T0: logical(iS0{$m}, iS8{$k}), outer_split(iS8{$k}, $d) -> (ideviceIdx.x1{$d}, iS2{$((k / d))})
  T1: logical(iS3{$n}, iS9{$k}), outer_split(iS9{$k}, $d) -> (ideviceIdx.x4{$d}, iS5{$((k / d))})
TEXT
    ;;
mlp)
    m=$1 n=$2 k=$3
    divides "$m" "$d"
    divides "$k" "$d"
    rows=$((m / d)) part=$((k / d))
    declare_tensor T0 "ideviceIdx.x0{$d}, iS1{$rows}, iS2{$n}"
    declare_tensor T1 "ideviceIdx.x3{$d}, iS4{$part}, iS5{$n}"
    declare_tensor T2 "iS6{$n}, ideviceIdx.x7{$d}, iS8{$part}"
    declare_tensor T3 "iS9{$m}, ideviceIdx.x10{$d}, iS11{$part}"
    declare_tensor T4 "iS12{$m}, ideviceIdx.x13{$d}, iS14{$part}"
    declare_tensor T5 "ideviceIdx.x15{$d}, iS16{$rows}, iS17{$n}"
    cat <<TEXT
%HostIrContainer { (T0, T1, T2) -> (T5) :
  T3 = linear(T0, T1)
  T4 = relu(T3);
  T5 = linear(T4, T2)
} // %HostIrContainer

Domains:
  T0: logical(iS20{$m}, iS2{$n}), outer_split(iS20{$m}, $d) -> (ideviceIdx.x0{$d}, iS1{$rows})
  T1: logical(iS21{$k}, iS5{$n}), outer_split(iS21{$k}, $d) -> (ideviceIdx.x3{$d}, iS4{$part})
  T2: logical(iS6{$n}, iS22{$k}), outer_split(iS22{$k}, $d) -> (ideviceIdx.x7{$d}, iS8{$part})
  T3: logical(iS9{$m}, iS23{$k}), outer_split(iS23{$k}, $d) -> (ideviceIdx.x10{$d}, iS11{$part})
  T4: logical(iS12{$m}, iS24{$k}), outer_split(iS24{$k}, $d) -> (ideviceIdx.x13{$d}, iS14{$part})
  T5: logical(iS25{$m}, iS17{$n}), outer_split(iS25{$m}, $d) -> (ideviceIdx.x15{$d}, iS16{$rows})
TEXT
    ;;
block | local-block)
    m=$1 n=$2 k=$3 heads=${4:-64} b=${5:-8}
    divides "$heads" "$d"
    divides "$n" "$heads"
    divides "$m" "$b"
    divides "$m" "$d"
    divides "$k" "$d"
    rows=$((m / d)) inner=$((n / d)) part=$((k / d)) s=$((m / b)) e=$((n / heads))
    if [ "$kind" = local-block ]; then
        declare_tensor T0 "iS0{$m}, iS1{$n}"
        declare_tensor T1 "iS2{$((3 * inner))}, iS3{$n}"
        declare_tensor T2 "iS4{$n}, iS5{$inner}"
        declare_tensor T3 "iS6{$part}, iS7{$n}"
        declare_tensor T4 "iS8{$n}, iS9{$part}"
        declare_tensor T25 "iS10{$m}, iS11{$n}"
        declare_tensor T26 "iS12{$m}, iS13{$part}"
        declare_tensor T27 "iS14{$m}, iS15{$part}"
        declare_tensor T28 "iS16{$m}, iS17{$n}"
        attention_tensors $((heads / d)) "iS20{$m}, iS21{$((3 * inner))}" "$mesh"
        cat <<TEXT
%HostIrContainer { (T0, T1, T2, T3, T4) -> (T28) :
$(attention)
  T25 = linear(T24, T2)
  T26 = linear(T25, T3)
  T27 = relu(T26);
  T28 = linear(T27, T4)
} // %HostIrContainer
TEXT
        exit
    fi
    declare_tensor T0 "ideviceIdx.x0{$d}, iS1{$rows}, iS2{$n}"
    declare_tensor T1 "ideviceIdx.x3{$d}, iS4{$((3 * inner))}, iS5{$n}"
    declare_tensor T2 "iS6{$n}, ideviceIdx.x7{$d}, iS8{$inner}"
    declare_tensor T3 "ideviceIdx.x9{$d}, iS10{$part}, iS11{$n}"
    declare_tensor T4 "iS12{$n}, ideviceIdx.x13{$d}, iS14{$part}"
    for at in 25 26 29 30; do declare_tensor T$at "ideviceIdx.x${at}0{$d}, iS${at}1{$rows}, iS${at}2{$n}"; done
    for at in 27 28; do declare_tensor T$at "iS${at}0{$m}, ideviceIdx.x${at}1{$d}, iS${at}2{$part}"; done
    attention_tensors "$heads" "iS20{$m}, ideviceIdx.x21{$d}, iS22{$((3 * inner))}" "$mesh"
    cat <<TEXT
%HostIrContainer { (T0, T1, T2, T3, T4) -> (T30) :
$(attention)
  T25 = linear(T24, T2)
  T26 = T0 + T25;
  T27 = linear(T26, T3)
  T28 = relu(T27);
  T29 = linear(T28, T4)
  T30 = T26 + T29;
} // %HostIrContainer

Domains:
  T0: logical(iS40{$m}, iS2{$n}), outer_split(iS40{$m}, $d) -> (ideviceIdx.x0{$d}, iS1{$rows})
  T1: logical(iS41{$((3 * n))}, iS5{$n}), outer_split(iS41{$((3 * n))}, $d) -> (ideviceIdx.x3{$d}, iS4{$((3 * inner))})
  T2: logical(iS6{$n}, iS42{$n}), outer_split(iS42{$n}, $d) -> (ideviceIdx.x7{$d}, iS8{$inner})
  T3: logical(iS43{$k}, iS11{$n}), outer_split(iS43{$k}, $d) -> (ideviceIdx.x9{$d}, iS10{$part})
  T4: logical(iS12{$n}, iS44{$k}), outer_split(iS44{$k}, $d) -> (ideviceIdx.x13{$d}, iS14{$part})
  T5: logical(iS20{$m}, iS45{$((3 * n))}), outer_split(iS45{$((3 * n))}, $d) -> (ideviceIdx.x21{$d}, iS22{$((3 * inner))})
$(for at in 25 26 29 30; do
        echo "  T$at: logical(iS${at}3{$m}, iS${at}2{$n}), outer_split(iS${at}3{$m}, $d) -> (ideviceIdx.x${at}0{$d}, iS${at}1{$rows})"
    done
    for at in 27 28; do
        echo "  T$at: logical(iS${at}0{$m}, iS${at}3{$k}), outer_split(iS${at}3{$k}, $d) -> (ideviceIdx.x${at}1{$d}, iS${at}2{$part})"
    done)
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
    count=$1 backend=${2:-NCCL} calls=${4:-1} slices=${5:-1} flush=${6:-0}
    [ "${3:--}" = - ] || backend+=", algo=$3"
    [ "$kind" = allreduce ] || divides "$count" "$d"
    part=$((count / d)) op="" received=$count
    case $kind in
    allgather) type=Allgather x="ideviceIdx.x0{$d}, iS1{$part}" y="iS2{$d}, iS3{$part}" ;;
    allreduce) type=Allreduce op=" red_op=SUM," x="ideviceIdx.x0{$d}, iS1{$count}" y="iS2{$count}" ;;
    reduce-scatter)
        type=ReduceScatter op=" red_op=SUM," x="ideviceIdx.x0{$d}, iS1{$d}, iS2{$part}" y="ideviceIdx.x3{$d}, iS4{$part}"
        received=$part
        ;;
    all-to-all) type=AllToAll x="ideviceIdx.x0{$d}, iS1{$d}, iS2{$part}" y="ideviceIdx.x3{$d}, iS4{$d}, iS5{$part}" ;;
    esac
    # Prints the communication. Arguments: input, output.
    communicate() {
        echo "Communication 3 (type=$type, team=($ranks),$op input=$1, output=$2, backend=$backend)"
        echo "Wait(Communication 3)"
    }
    if [ "$slices" -gt 1 ]; then
        copies=$(((flush + slices * received - 1) / (slices * received)))
        declare_tensor T0 "iS10{$slices}, $x"
        declare_tensor T1 "iS11{$slices}, $y"
        declare_tensor T2 "iS12{$((copies > 1 ? copies : 1))}, iS13{$slices}, $y"
        declare_tensor T3 "$x"
        declare_tensor T4 "$y"
        echo "%HostIrContainer { (T0, T2) -> (T1) :"
        echo "  T1 = HirAliasSelect( T2, axis = iS12{$((copies > 1 ? copies : 1))}, index = 0 )"
        {
            echo "T3 = HirAliasSelect( T0, axis = iS10{$slices}, index = ( i99 % $slices ) )"
            echo "T4 = HirAliasSelect( T1, axis = iS11{$slices}, index = ( i99 % $slices ) )"
            communicate T3 T4
        } | times "$calls"
    else
        x=$(t T0 "$x") y=$(t T1 "$y")
        echo "%HostIrContainer { ($x) -> ($y) :"
        echo "  $y = ALLOCATE(mem_type=global, zero_init=false)"
        communicate "$x" "$y" | times "$calls"
    fi
    echo "} // %HostIrContainer"
    ;;
*) usage ;;
esac
