//! Programs that grow in something else than statements: ranks, streams, axes, operands, scalars, containers, faults,
//! or the length of a line.

use std::fmt::Write as _;

use super::statements::container;

const INPUT: &str = "T0_g_float[iS0{4}]";

/// Returns a tensor with its own axis.
fn tensor(number: usize) -> String {
    format!("T{number}_g_float[iS{number}{{4}}]")
}

fn mesh(ranks: std::ops::Range<usize>) -> String {
    let members: Vec<String> = ranks.map(|it| it.to_string()).collect();
    format!("(DeviceMesh{{{}}})", members.join(" "))
}

/// Returns a linear layer whose rows are sharded over a mesh.
pub fn ranks(ranks: usize) -> String {
    let mesh = mesh(0..ranks);
    let rows = 8 * ranks;
    let input = format!("T0_g_float[ideviceIdx.x0{{{ranks}}}, iS1{{8}}, iS2{{8}}] {mesh}");
    let weight = format!("T1_g_float[iS3{{8}}, iS4{{8}}] {mesh}");
    let out = format!("T2_g_float[iS5{{{rows}}}, iS6{{8}}, rS8{{8}}] {mesh}");
    let text = container(
        &format!("({input}, {weight}) -> ({out})"),
        &format!("  {out}\n     = linear({input},\n              {weight})\n"),
    );
    format!(
        "{text}\nDomains:\n  T0: logical(iS7{{{rows}}}, iS2{{8}}), outer_split(iS7{{{rows}}}, {ranks}) -> \
         (ideviceIdx.x0{{{ranks}}}, iS1{{8}})\n"
    )
}

/// Returns a program in which each rank sends to the next one.
pub fn ring(ranks: usize) -> String {
    let mesh = mesh(0..ranks);
    let (input, out) = (format!("T0_g_float[iS0{{4}}] {mesh}"), format!("T1_g_float[iS1{{4}}] {mesh}"));
    let send = format!(
        "P2PCommunication 1 (type=send, buffer={input}, peer=( ( rank + 1 ) % {ranks} ), backend=NCCL)"
    );
    let last = format!("( ( ( rank + {ranks} ) - 1 ) % {ranks} )");
    let receive = format!("P2PCommunication 2 (type=recv, buffer={out}, peer={last}, backend=NCCL)");
    let body = format!(
        "  {out} = ALLOCATE(mem_type=global, zero_init=false)\n  StartCoalescing\n  {send}\n  {receive}\n  EndCoalescing \
         3\n  Wait(Communication 3)\n"
    );
    container(&format!("({input}) -> ({out})"), &body)
}

/// Returns a pipeline of one linear layer on each rank.
pub fn meshes(ranks: usize) -> String {
    let mut axis = 0;
    let mut tensor = |number: usize, rank: usize, extents: &[usize]| {
        let axes: Vec<String> = extents.iter().map(|it| (axis += 1, format!("iS{axis}{{{it}}}")).1).collect();
        format!("T{number}_g_float[{}] (DeviceMesh{{{rank}}})", axes.join(", "))
    };
    let (input, mut weights, mut body) = (tensor(0, 0, &[4, 2, 4]), Vec::new(), String::new());
    let mut last = input.clone();
    for rank in 0..ranks {
        if rank > 0 {
            let moved = tensor(3 * rank, rank, &[4, 2, 4]);
            let _ = writeln!(body, "  {moved}\n     = Set( {last} )");
            last = moved;
        }
        let weight = tensor(3 * rank + 1, rank, &[4, 4]);
        let out = tensor(3 * rank + 2, rank, &[4, 2, 4]);
        let _ = writeln!(body, "  {out}\n     = linear({last},\n              {weight})");
        weights.push(weight);
        last = out;
    }
    container(&format!("({input}, {}) -> ({last})", weights.join(", ")), &body)
}

/// Returns a loop with a stream for each iteration.
pub fn streams(streams: usize) -> String {
    let (input, out) = (
        format!("T0_g_float[iS0{{{streams}}}, iS1{{4}}]"),
        format!("T1_g_float[iS2{{{streams}}}, iS3{{4}}]"),
    );
    let (from, to) = ("T2_l_float[iS4{4}]", "T3_l_float[iS5{4}]");
    let body = format!(
        "  {out} = ALLOCATE(mem_type=global, zero_init=false)\n  Stream s0 = GetCurrentStream()\n  FOR i5 from 0 to \
         {streams}:\n    SetCurrentStream(Stream i5)\n    Synchronize(Stream s0)\n    {from} = HirAliasSelect( {input}, axis \
         = iS0{{{streams}}}, index = i5 )\n    {to} = HirAliasSelect( {out}, axis = iS2{{{streams}}}, index = i5 )\n    {to} \
         = relu({from})\n  SetCurrentStream(Stream s0)\n  FOR i6 from 0 to {streams}:\n    Synchronize(Stream i6)\n"
    );
    container(&format!("({input}) -> ({out})"), &body)
}

/// Returns an operator on a tensor of many axes.
pub fn axes(axes: usize) -> String {
    let tensor = |number: usize| {
        let axes: Vec<String> = (0..axes).map(|it| format!("iS{}{{1}}", number * axes + it)).collect();
        format!("T{number}_g_float[{}]", axes.join(", "))
    };
    container(
        &format!("({}) -> ({})", tensor(0), tensor(1)),
        &format!("  {} = relu({})\n", tensor(1), tensor(0)),
    )
}

/// Returns a concatenation of all inputs.
pub fn operands(operands: usize) -> String {
    let inputs: Vec<String> = (0..operands).map(tensor).collect();
    concatenation(&inputs.join(", "), &inputs)
}

/// Returns a concatenation of one input with itself, in one line.
pub fn line(operands: usize) -> String {
    concatenation(INPUT, &vec![INPUT.to_owned(); operands])
}

fn concatenation(inputs: &str, operands: &[String]) -> String {
    let count = operands.len();
    let out = format!("T{count}_g_float[iS{count}{{{}}}]", 4 * count);
    container(&format!("({inputs}) -> ({out})"), &format!("  {out} = cat( {}, 0 )\n", operands.join(", ")))
}

/// Returns a chain of definitions of scalars.
pub fn scalars(scalars: usize) -> String {
    let definitions: String = (1..scalars).map(|it| format!("  i{it} = i{} + 1;\n", it - 1)).collect();
    let body = format!("  {} = relu({INPUT})\n", tensor(1));
    container(&format!("({INPUT}) -> ({})", tensor(1)), &format!("  i0 = 3;\n{definitions}{body}"))
}

/// Returns many containers, with the lines that `--split-input-file` looks for between them.
pub fn containers(containers: usize) -> String {
    vec![scalars(1); containers].join("// -----\n")
}

/// Returns statements with an undeclared operand each.
pub fn undeclared(statements: usize) -> String {
    faults(statements, |at| format!("relu(T{})", 2 * statements + at))
}

/// Returns statements with an unknown operator each.
pub fn misspelled(statements: usize) -> String {
    faults(statements, |_| format!("relo({INPUT})"))
}

fn faults(statements: usize, value: impl Fn(usize) -> String) -> String {
    let body: String = (1..=statements).map(|at| format!("  {} = {}\n", tensor(at), value(at))).collect();
    container(&format!("({INPUT}) -> ({})", tensor(statements)), &body)
}

/// Returns statements that write one tensor on two streams in turns.
pub fn races(statements: usize) -> String {
    let out = tensor(1);
    let write = |at: usize| format!("  SetCurrentStream(Stream {})\n  {out} = relu({INPUT})\n", at % 2);
    let writes: String = (0..statements).map(write).collect();
    let body = format!("  {out} = ALLOCATE(mem_type=global, zero_init=false)\n{writes}");
    container(&format!("({INPUT}) -> ({out})"), &body)
}

/// Returns layers of two products on two devices, with tensor and sequence parallelism: each layer all-gathers its input and
/// reduce-scatters its result. Only inputs, the first products and outputs state their shardings.
pub fn layers(layers: usize) -> String {
    let mesh = "(DeviceMesh{0 1})";
    let (mut declared, mut domains, mut body) = (String::new(), String::new(), String::new());
    let mut axis = 0;
    // A tensor of 8 by 8 elements whose dimension `dim` is sharded.
    let mut sharded = |name: &str, dim: usize| {
        axis += 4;
        let [other, whole, device, part] = [axis, axis + 1, axis + 2, axis + 3];
        let split = format!("ideviceIdx.x{device}{{2}}, iS{part}{{4}}");
        let (loops, logical) = match dim {
            0 => (format!("{split}, iS{other}{{8}}"), format!("iS{whole}{{8}}, iS{other}{{8}}")),
            _ => (format!("iS{other}{{8}}, {split}"), format!("iS{other}{{8}}, iS{whole}{{8}}")),
        };
        let _ = writeln!(declared, "%tensor {name}_g_float[{loops}] {mesh}");
        let _ = writeln!(
            domains,
            "  {name}: logical({logical}), outer_split(iS{whole}{{8}}, 2) -> (ideviceIdx.x{device}{{2}}, iS{part}{{4}})"
        );
    };
    let name = |layer: usize, at: usize| format!("T{}", 5 * layer + at);
    let mut inputs = vec![name(0, 0)];
    sharded(&name(0, 0), 0);
    for layer in 0..layers {
        let [x, up, down, wide, out, next] = [0, 1, 2, 3, 4, 5].map(|at| name(layer, at));
        for (tensor, dim) in [(&up, 0), (&down, 1), (&wide, 1), (&out, 0), (&next, 0)] {
            sharded(tensor, dim);
        }
        let _ = writeln!(
            body,
            "  {wide} = linear({x}, {up})\n  {out} = linear({wide}, {down})\n  {next} = {x} + {out};"
        );
        inputs.extend([up, down]);
    }
    format!(
        "{declared}%HostIrContainer {{ ({}) -> ({}) :\n{body}}} // %HostIrContainer\n\nDomains:\n{domains}",
        inputs.join(", "),
        name(layers, 0)
    )
}
