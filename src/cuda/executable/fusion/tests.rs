//! Tests which instructions are fused into one kernel.

use grammar::Source;

use super::{FusionRole, FusionScope, fusion_roles};
use crate::{
    buffer_assignment::{BufferAssignment, PortMemory, Segment},
    executable::assign_memory,
    kernels::{DeviceView, Kernel},
};
use hir_plan::{Inst, InstKind, World};

/// Returns the text of a program. `f1` stands for the float tensor `T1` of 64 elements, `h1` for a bfloat
/// tensor; `r1` and `b1` stand for reductions of them.
fn program(inputs: &[&str], outputs: &[&str], body: &str) -> String {
    let named = |word: &str| -> String {
        let (sign, word) = word.split_at(usize::from(word.starts_with('-')));
        let (name, end) = word.split_at(word.trim_end_matches([';', ',', '\n']).len());
        let number = name.get(1..).unwrap_or_default();
        match (name.chars().next(), number.parse::<u32>()) {
            (Some('f'), Ok(_)) => format!("{sign}T{number}_g_float[iS{number}{{64}}]{end}"),
            (Some('h'), Ok(_)) => format!("{sign}T{number}_g___bfloat[iS{number}{{64}}]{end}"),
            (Some('b'), Ok(_)) => format!("{sign}T{number}_g___bfloat[rS{number}{{64}}]{end}"),
            (Some('r'), Ok(_)) => format!("{sign}T{number}_g_float[rS{number}{{64}}]{end}"),
            _ => format!("{sign}{word}"),
        }
    };
    let list = |them: &[&str]| them.iter().map(|it| named(it)).collect::<Vec<_>>().join(", ");
    let body: Vec<String> = body.split(' ').map(named).collect();
    format!(
        "%HostIrContainer {{ ({}) -> ({}) :\n{}\n}} // %HostIrContainer\n",
        list(inputs),
        list(outputs),
        body.join(" ")
    )
}

fn plans(text: &str) -> Result<World, String> {
    let source = Source::new("chains.hir".to_owned(), text.to_owned());
    let (programs, faults) = source.programs();
    let program = programs.first().ok_or_else(|| format!("{faults:?}\n{text}"))?;
    hir_plan::build(program, &source.lines, 1).map_err(|it| format!("{it:?}\n{text}"))
}

/// Returns the fusion roles of a plan.
fn roles_of(world: &World) -> Result<Vec<FusionRole>, String> {
    let assignment = BufferAssignment::of(world).map_err(|it| format!("{it:?}"))?;
    let plan = &world[0];
    let slices = &assignment.ranks[0].buffers;
    let dtype = |it: u32| plan.buffers[it as usize].dtype;
    let escapes = assignment.ranks[0].escapes(plan);
    let source = |it: &hir_plan::ViewOnRank| Err(crate::ExecutorError::Internal(format!("{it:?}")));
    let scope = FusionScope {
        rank: 0,
        code: &plan.code,
        peer_collectives: &[],
        escapes,
        dtype: &dtype,
        source: &source,
    };
    Ok(fusion_roles(&scope, |view| {
        let (dtype, slice) = (dtype(view.buffer), slices[view.buffer as usize]);
        Ok(DeviceView { address: (4096 + slice.offset + view.offset * dtype.size()) as u64, dtype, view })
    }))
}

/// Returns the results of each fused kernel of a plan, and its access width or "in rows". A result that is not stored is
/// in parentheses.
fn fused_kernels_of(world: &World) -> Result<Vec<String>, String> {
    let (plan, roles) = (&world[0], roles_of(world)?);
    let result = |inst: &Inst| match &inst.kind {
        InstKind::Map { out, .. } => plan.buffers[out.buffer as usize].name.clone(),
        InstKind::Fill { to, .. } => plan.buffers[to.buffer as usize].name.clone(),
        InstKind::Reduce(it) => plan.buffers[it.out.buffer as usize].name.clone(),
        InstKind::Copy { to, .. } => plan.buffers[to.view.buffer as usize].name.clone(),
        other => format!("{other:?}"),
    };
    let mut all = Vec::new();
    for (at, role) in roles.iter().enumerate() {
        let FusionRole::Leader(launch) = role else { continue };
        let (stored, form) = match &launch.kernel {
            Kernel::Elementwise(it) => {
                (it.ops.iter().map(|op| op.is_stored).collect(), format!("by {}", it.width))
            }
            Kernel::Row(it) => (it.stored(), "in rows".to_owned()),
            other => return Err(format!("{other:?}")),
        };
        let later = (at + 1..roles.len()).filter(|it| roles[*it] == FusionRole::FusedInto(at as u32));
        let names = std::iter::once(at).chain(later).map(|it| result(&plan.code[it]));
        let shown = names.zip(stored).map(|(it, is_stored)| if is_stored { it } else { format!("({it})") });
        all.push(format!("{} {form}", shown.collect::<Vec<_>>().join(" ")));
    }
    Ok(all)
}

fn fused_kernels(inputs: &[&str], outputs: &[&str], body: &str) -> Result<Vec<String>, String> {
    fused_kernels_of(&plans(&program(inputs, outputs, body))?)
}

#[test]
fn what_is_read_at_once_comes_from_a_register() -> Result<(), String> {
    let body = "f3 = f0 + f1; f4 = relu( f3 ); h5 = __float2bfloat( f4 ); h6 = h5 * h2;";
    assert_eq!(fused_kernels(&["f0", "f1", "h2"], &["f4", "h6"], body)?, ["(T3) T4 (T5) T6 by 4"]);
    // Without a float in memory, accesses take more elements.
    let body = "f1 = __bfloat2float( h0 ); f2 = relu( f1 ); h3 = __float2bfloat( f2 );";
    assert_eq!(fused_kernels(&["h0"], &["h3"], body)?, ["(T1) (T2) T3 by 8"]);
    // A result without a reader is stored.
    assert_eq!(fused_kernels(&["f0"], &["f2"], "f1 = -f0; f2 = relu( f1 ); f3 = -f2;")?, ["(T1) T2 T3 by 4"]);
    Ok(())
}

#[test]
fn what_has_nothing_to_do_with_each_other_stays_apart() -> Result<(), String> {
    assert_eq!(fused_kernels(&["f0", "f1"], &["f2", "f3"], "f2 = -f0; f3 = relu( f1 );")?, [""; 0]);
    // A later instruction uses both.
    let body = "f2 = -f0; f3 = relu( f1 ); f4 = f2 + f3;";
    assert_eq!(fused_kernels(&["f0", "f1"], &["f4"], body)?, ["(T2) (T3) T4 by 4"]);
    Ok(())
}

#[test]
fn what_two_instructions_read_is_read_once() -> Result<(), String> {
    let body = "f2 = -f0; f3 = f2 * f1; f4 = f0 * f1;";
    assert_eq!(fused_kernels(&["f0", "f1"], &["f3", "f4"], body)?, ["(T2) T3 T4 by 4"]);
    // An operand that is overwritten in between is another one.
    let body = "f2 = -f0; f0 = f2 * f1; f3 = relu( f0 );";
    assert_eq!(fused_kernels(&["f0", "f1"], &["f0", "f3"], body)?, ["(T2) T0 T3 by 4"]);
    Ok(())
}

#[test]
fn small_copies_of_one_shape_are_one_kernel() -> Result<(), String> {
    // Copies of new rows to caches.
    let copies = |a: usize, b: usize, end: &str| {
        let row = |number: usize, extent| format!("T{number}_g_float[iS{number}{{{extent}}}]");
        let cache =
            |number: usize, extent| format!("T{number}_g_float[iS1{number}{{2}}, iS{number}{{{extent}}}]");
        let inputs = [row(0, a), row(1, b), cache(2, a), cache(3, b)];
        let body = format!(
            "{} = HirAliasSelect( T2, axis = iS12{{2}}, index = 1 )\nT4 = Set( T0 )\n{} = HirAliasSelect( T3, axis = \
             iS13{{2}}, index = 1 )\nT5 = Set( T1 ){end}",
            row(4, a),
            row(5, b)
        );
        fused_kernels(&inputs.each_ref().map(String::as_str), &["f6"][usize::from(end.is_empty())..], &body)
    };
    assert_eq!(copies(64, 64, "")?, ["T2 T3 by 4"]);
    assert_eq!(copies(64, 32, "")?, [""; 0]);
    assert_eq!(copies(1 << 18, 1 << 18, "")?, [""; 0]);
    // A copy that a later instruction reads is fused with it.
    assert_eq!(copies(64, 64, "\n f6 = -T5;")?, ["T3 T6 by 4"]);
    Ok(())
}

#[test]
fn chains_end() -> Result<(), String> {
    // At the maximum number of operations.
    let steps: Vec<String> = (1..=18).map(|it| format!("f{it} = -f{};", it - 1)).collect();
    let expected = [
        "(T1) (T2) (T3) (T4) (T5) (T6) (T7) (T8) (T9) (T10) (T11) (T12) (T13) (T14) (T15) T16 by 4",
        "(T17) T18 by 4",
    ];
    assert_eq!(fused_kernels(&["f0"], &["f18"], &steps.join(" "))?, expected);
    // At the maximum number of views.
    let inputs: Vec<String> = (0..16).map(|it| format!("f{it}")).collect();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let body = "f16 = where( f0, f1, f2 ); f17 = where( f16, f3, f4 ); f18 = where( f17, f5, f6 ); f19 = where( f18, f7, \
                f8 ); f20 = where( f19, f9, f10 ); f21 = where( f20, f11, f12 );";
    let expected = ["(T16) (T17) (T18) (T19) T20 by 4"];
    assert_eq!(fused_kernels(&inputs, &["f21"], body)?, expected);
    // At another instruction on the stream: a sum of columns.
    let columns = column_sum("T2", "T3", 8);
    let body = format!("f1 = -f0; f2 = relu( f1 ); {columns} f4 = f2 + f1; f5 = f4 * f4;");
    let outputs = ["T3_g_float[rS30{8}, iS31{8}]", "f5"];
    assert_eq!(fused_kernels(&["f0"], &outputs, &body)?, ["T1 T2 by 4", "(T4) T5 by 4"]);
    Ok(())
}

/// Returns the statements that sum the columns of `from`, which is viewed as a matrix of eight columns.
fn column_sum(from: &str, to: &str, rows: usize) -> String {
    let (from_number, number, extent) = (&from[1..], &to[1..], 8 * rows);
    let matrix = format!("T9{number}_g_float[iS{number}2{{{rows}}}, iS{number}3{{8}}]");
    format!(
        "{matrix} = reshape( {from}_g_float[iS{from_number}{{{extent}}}] )\n {to}_g_float[rS{number}0{{{rows}}}, \
         iS{number}1{{8}}] = reduction( {matrix}, op = add, initial value = float(0), allreduce = false )\n"
    )
}

#[test]
fn reductions_of_rows_are_fused() -> Result<(), String> {
    let sum = "op = add, initial value = float(0), allreduce = false";
    // Both directions: a reduction of what is computed, and what is computed from a reduction.
    let body = format!("f1 = -f0; f2 = relu( f1 ); r3 = reduction( f2, {sum} ) f4 = f2 + f1; f5 = f4 * f4;");
    assert_eq!(fused_kernels(&["f0"], &["r3", "f5"], &body)?, ["(T1) (T2) T3 (T4) T5 in rows"]);
    let repeated = "T4_g_float[bS4{1}] = broadcast( T3_g_float[rS3{64}], flags = {true} )\n";
    let body = format!(
        "r3 = reduction( f0, {sum} ) {repeated} T5_g_float[iS5{{64}}] = T0_g_float[iS0{{64}}] / T4_g_float[bS4{{1}}];"
    );
    assert_eq!(fused_kernels(&["f0"], &["f5"], &body)?, ["(T3) T5 in rows"]);
    // A row that does not fit in registers.
    let long = body.replace("{64}", "{32768}");
    let text = program(&["f0"], &["f5"], &long).replace("{64}", "{32768}");
    assert_eq!(fused_kernels_of(&plans(&text)?)?, [""; 0]);
    Ok(())
}

#[test]
fn sums_of_few_parts_are_fused_with_what_follows() -> Result<(), String> {
    let fused = |rows: usize| {
        let inputs = [format!("T0_g_float[iS0{{{}}}]", 8 * rows), "T3_g_float[iS3{8}]".to_owned()];
        let sum = column_sum("T0", "T1", rows);
        let add =
            format!("T2_g_float[iS2{{8}}] = T1_g_float[rS10{{{rows}}}, iS11{{8}}] + T3_g_float[iS3{{8}}];");
        fused_kernels(&inputs.each_ref().map(String::as_str), &["T2_g_float[iS2{8}]"], &(sum + &add))
    };
    assert_eq!(fused(2)?, ["(T1) T2 by 4"]);
    assert_eq!(fused(8)?, [""; 0]);
    Ok(())
}

#[test]
fn streams_have_chains_of_their_own() -> Result<(), String> {
    let body = "Stream s0 = GetCurrentStream()\n f1 = -f0;\n SetCurrentStream(Stream 1)\n f2 = -f0;\n \
                SetCurrentStream(Stream s0)\n f3 = relu( f1 );\n SetCurrentStream(Stream 1)\n f4 = relu( f2 );";
    assert_eq!(fused_kernels(&["f0"], &["f3", "f4"], body)?, ["(T1) T3 by 4", "(T2) T4 by 4"]);
    // A wait ends a run; a result that the other stream reads is stored.
    let body = "Stream s0 = GetCurrentStream()\n f1 = -f0;\n f2 = relu( f1 );\n SetCurrentStream(Stream 1)\n \
                Synchronize(Stream s0)\n f3 = -f1;\n SetCurrentStream(Stream s0)\n Synchronize(Stream 1)\n f4 = f2 + f3;";
    assert_eq!(fused_kernels(&["f0"], &["f4"], body)?, ["T1 T2 by 4"]);
    Ok(())
}

#[test]
fn a_product_computes_the_sum_that_follows() -> Result<(), String> {
    let matrix = |name: u32, [rows, columns]: [u32; 2]| {
        format!("T{name}_g___bfloat[iS{name}0{{{rows}}}, iS{name}1{{{columns}}}]")
    };
    let [a, b, other] = [matrix(0, [8, 16]), matrix(1, [16, 8]), matrix(2, [8, 8])];
    let has_epilogue = |body: &str, output: &str| -> Result<bool, String> {
        let header = format!("%HostIrContainer {{ ({a}, {b}, {other}) -> ({output}) :");
        let roles = roles_of(&plans(&format!("{header}\n{body}\n}} // %HostIrContainer\n"))?)?;
        Ok(roles.iter().any(|it| matches!(it, FusionRole::ProductWithEpilogue(_))))
    };
    let (product, sum) = (format!("{} = matmul(T0, T1)", matrix(3, [8, 8])), matrix(4, [8, 8]));
    for operands in ["T3 + T2", "T2 + T3"] {
        assert!(has_epilogue(&format!("{product}\n{sum} = {operands};"), &sum)?, "{operands}");
    }
    // Of a product with itself, of one that is read again, and of one that is a result itself.
    assert!(!has_epilogue(&format!("{product}\n{sum} = T3 + T3;"), &sum)?);
    let again = format!("{product}\n{} = T3 + T2;\n{sum} = T5 * T3;", matrix(5, [8, 8]));
    assert!(!has_epilogue(&again, &sum)?);
    assert!(!has_epilogue(
        &format!("{product}\n{sum} = T3 + T2;"),
        &format!("{sum}, {}", matrix(3, [8, 8]))
    )?);
    Ok(())
}

#[test]
fn what_kernels_keep_in_registers_has_no_memory() -> Result<(), String> {
    let of = |inputs: &[&str], outputs: &[&str], body: &str| -> Result<(String, usize), String> {
        let world = plans(&program(inputs, outputs, body))?;
        let assignment = assign_memory(&world, PortMemory::Segments).map_err(|it| format!("{it:?}"))?;
        let rank = &assignment.ranks[0];
        let names =
            world[0].buffers.iter().zip(&rank.buffers).filter(|(_, it)| it.segment == Segment::Registers);
        let names: Vec<&str> = names.map(|(it, _)| it.name.as_str()).collect();
        Ok((names.join(" "), rank.private_bytes))
    };
    let expect = |names: &str, buffers: usize| Ok((names.to_owned(), 256 * buffers));
    let chain = "f1 = -f0; f2 = relu( f1 ); f3 = f2 * f0;";
    assert_eq!(of(&["f0"], &["f3"], chain), expect("T1 T2", 2));
    // An output, and what another kernel reads.
    assert_eq!(of(&["f0"], &["f1", "f3"], chain), expect("T2", 3));
    let (sum, output) = (column_sum("T1", "T5", 8), "T5_g_float[rS50{8}, iS51{8}]");
    let body = format!("{chain} {sum}");
    let (names, _) = of(&["f0"], &["f3", output], &body)?;
    assert_eq!(names, "T2");
    Ok(())
}

#[test]
fn an_operand_may_be_written_in_place() -> Result<(), String> {
    let body = "f1 = f0 + f0; f0 = f1 * f0; f2 = f0 + f1;";
    assert_eq!(fused_kernels(&["f0"], &["f0", "f2"], body)?, ["(T1) T0 T2 by 4"]);
    Ok(())
}

#[test]
fn memory_that_two_buffers_share_ends_a_chain() -> Result<(), String> {
    // T4 reuses the memory of T1, with longer elements: its writer must follow all readers of T1.
    let sum = "op = add, initial value = float(0), allreduce = false";
    let (fifth, sixth) = (column_sum("T3", "T5", 8), column_sum("T4", "T6", 8));
    let body = format!(
        "h1 = -h0; b2 = reduction( h1, {sum} ) f3 = __bfloat2float( h1 ); f4 = f3 * f3; {fifth} {sixth}"
    );
    let [fifth, sixth] = ["T5_g_float[rS50{8}, iS51{8}]", "T6_g_float[rS60{8}, iS61{8}]"];
    let plan = plans(&program(&["h0"], &["b2", fifth, sixth], &body))?;
    let assignment = BufferAssignment::of(&plan).map_err(|it| format!("{it:?}"))?;
    let offset = |name: &str| {
        let at = plan[0].buffers.iter().position(|it| it.name == name);
        at.map(|at| assignment.ranks[0].buffers[at].offset)
    };
    assert_eq!(offset("T4"), offset("T1"));
    assert_eq!(fused_kernels_of(&plan)?, ["T1 T2 in rows"]);
    // While T1 is in use, its memory is not reused.
    let more = format!("{body} b7 = reduction( h1, {sum} )");
    assert_eq!(fused_kernels(&["h0"], &["b2", fifth, sixth, "b7"], &more)?, ["T1 T2 in rows", "T3 T4 by 4"]);
    Ok(())
}

#[test]
fn a_buffer_takes_memory_of_its_size() -> Result<(), String> {
    // Before the last three instructions, the memory of T1 and T2 is free and adjacent. T4 and T5 would overlap T2 in
    // part if they took the first gap that is large enough.
    let [half, full] =
        [64, 128].map(|extent| move |name: u32| format!("T{name}_g_float[iS{name}{{{extent}}}]"));
    let sum = |of: String, to: u32| {
        format!(
            "T{to}_g_float[rS{to}{{{}}}] = reduction( {of}, op = add, initial value = float(0), allreduce = false )\n",
            if to == 6 { 64 } else { 128 }
        )
    };
    let body = [
        format!("{} = -{};\n", half(1), half(0)),
        format!("{} = -{};\n", full(2), full(9)),
        sum(half(1), 6),
        sum(full(2), 7),
        format!("{} = -{};\n{} = relu( {} );\n", full(3), full(2), full(4), full(3)),
        format!("{} = exp( {} );\n", full(5), full(4)),
        column_sum("T5", "T8", 16),
    ];
    let inputs = [half(0), full(9)].join(", ");
    let outputs = "T6_g_float[rS6{64}], T7_g_float[rS7{128}], T8_g_float[rS80{16}, iS81{8}]";
    let text =
        format!("%HostIrContainer {{ ({inputs}) -> ({outputs}) :\n{}}} // %HostIrContainer\n", body.concat());
    assert_eq!(fused_kernels_of(&plans(&text)?)?, ["(T3) (T4) T5 by 4"]);
    Ok(())
}

#[test]
fn no_result_takes_memory_of_which_its_chain_reads_parts() -> Result<(), String> {
    // T1 is not read behind the casts of its two parts, so T6 would take its memory, and then T8, which has half of its size.
    let part = |name: u32, dtype: &str| format!("T{name}_g_{dtype}[iS{name}0{{16}}, iS{name}1{{16}}]");
    let both = |name: u32| format!("T{name}_g___bfloat[iS{name}0{{16}}, iS{name}1{{2}}, iS{name}2{{16}}]");
    let select = |to: u32, index: usize| {
        let to = part(to, "__bfloat");
        format!("{to} = select( {}, axis = iS11{{2}}, index = {index} )\n", both(1))
    };
    let sum = "T9_g___bfloat[rS90{16}, iS91{16}]";
    let body = [
        format!("{} = -{};\n", both(1), both(0)),
        format!("{}{} = __bfloat2float(T2);\n", select(2, 0), part(3, "float")),
        format!("{}{} = __bfloat2float(T4);\n", select(4, 1), part(5, "float")),
        format!("{} = relu(T3);\n{} = T6 * T5;\n", part(6, "float"), part(7, "float")),
        format!("{} = __float2bfloat(T7);\n", part(8, "__bfloat")),
        format!("{sum} = reduction( T8, op = add, initial value = float(0), allreduce = false )\n"),
    ];
    let body = body.concat();
    let text = format!("%HostIrContainer {{ ({}) -> ({sum}) :\n{body}}} // %HostIrContainer\n", both(0));
    assert_eq!(fused_kernels_of(&plans(&text)?)?, ["(T3) (T5) (T6) (T7) T8 by 8"]);
    Ok(())
}

#[test]
fn a_row_and_a_column_overlap() -> Result<(), String> {
    let matrix = "T0_g_float[iS0{8}, iS1{8}]";
    let aliases = format!(
        "T1_g_float[iS2{{8}}] = HirAliasSelect( {matrix}, axis = iS0{{8}}, index = 2 )\n T2_g_float[iS3{{8}}] = \
         HirAliasSelect( {matrix}, axis = iS1{{8}}, index = 2 )\n T3_g_float[iS4{{8}}] = HirAliasSelect( {matrix}, axis = \
         iS0{{8}}, index = 3 )\n"
    );
    let (row, column, other) = ("T1_g_float[iS2{8}]", "T2_g_float[iS3{8}]", "T3_g_float[iS4{8}]");
    let of = |body: String| fused_kernels(&[matrix], &[matrix], &format!("{aliases} {body}"));
    assert_eq!(of(format!("{row} = -{row};\n {column} = relu({row});"))?, [""; 0]);
    assert_eq!(of(format!("{row} = -{column};\n {row} = relu({row});"))?, [""; 0]);
    assert_eq!(of(format!("{row} = -{row};\n {other} = relu({row});"))?, ["T0 T0 by 4"]);
    Ok(())
}
