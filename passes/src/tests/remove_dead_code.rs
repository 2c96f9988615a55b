//! What remove-dead-code removes, and what it has to keep.

use super::check;

/// T0 and T9 come in, T1 goes out.
fn same(before: &str, after: &str) {
    let expand = |text: &str| {
        let shapes = [
            ("T0", "T0_g_float[iS0{4}, iS1{8}]"),
            ("T9", "T9_g_float[iS90{8}]"),
            ("T1", "T1_g_float[iS10{8}]"),
            ("T2", "T2_g_float[iS20{8}]"),
            ("T3", "T3_g_float[iS30{4}, iS31{8}]"),
            ("T4", "T4_l_float[iS40{8}]"),
            ("T5", "T5_l_float[iS50{8}]"),
        ];
        shapes.iter().fold(text.to_owned(), |text, (name, full)| text.replace(&format!("{name}."), full))
    };
    check("remove-dead-code", &expand("(T0., T9.) -> (T1.)"), &expand(before), &expand(after));
}

/// Statements that only need their results.
fn set(out: &str, arg: &str) -> String {
    format!("  {out}.\n     = Set( {arg}. )\n")
}

fn select(out: &str, arg: &str, axis: &str) -> String {
    format!("  {out}.\n     = HirAliasSelect( {arg}., axis = {axis}{{4}}, index = 0 )\n")
}

fn allocate(out: &str) -> String {
    format!("  {out}. = ALLOCATE(mem_type=global, zero_init=false)\n")
}

#[test]
fn chains_that_nobody_reads_go() {
    let live = set("T1", "T9");
    let dead = allocate("T3")
        + &select("T4", "T3", "iS30")
        + &set("T4", "T9")
        + &set("T2", "T4")
        + "  Deallocate {\n    T3.\n  }\n";
    same(&(dead + &live), &live);
}

#[test]
fn copies_of_an_input_that_nobody_reads_go() {
    same(&(set("T2", "T9") + &set("T1", "T9")), &set("T1", "T9"));
    same(&(select("T4", "T0", "iS0") + &set("T1", "T9")), &set("T1", "T9"));
}

#[test]
fn a_write_through_a_view_of_something_read_stays() {
    let text = allocate("T3")
        + &select("T4", "T3", "iS30")
        + &set("T4", "T9")
        + &select("T5", "T3", "iS30")
        + &set("T1", "T5");
    same(&text, &text);
}

#[test]
fn a_write_through_a_view_of_an_input_stays() {
    let text = select("T4", "T0", "iS0") + &set("T4", "T9") + &set("T1", "T9");
    same(&text, &text);
}

#[test]
fn a_write_through_an_alias_that_a_copy_made_stays() {
    // The first copy makes T2 another name of T9, the second writes into T9.
    let text = set("T2", "T9") + &select("T4", "T0", "iS0") + &set("T2", "T4") + &set("T1", "T9");
    same(&text, &text);
    // With storage of its own, T2 is no alias.
    same(&(allocate("T2") + &text), &set("T1", "T9"));
}

#[test]
fn a_write_into_an_alias_of_an_allocation_stays() {
    let alias = "  T2. = ALLOCATE(buffer=T2., mem_type=global, size=8, zero_init=false, resets_to_zero=false, alias=T5.)\n";
    let text = allocate("T5") + alias + &set("T2", "T9") + &set("T1", "T5");
    same(&text, &text);
}

#[test]
fn communications_and_what_they_name_stay() {
    let text = allocate("T2")
        + &set("T2", "T9")
        + "  Communication 7 (type=Broadcast, team=(0 1), root=0, input=T2., output=T5., backend=NCCL)\n"
        + "  Wait(Communication 7)\n"
        + "  P2PCommunication 8 (type=recv, buffer=T4., peer=1, backend=NCCL)\n"
        + &set("T1", "T9");
    same(&text, &text);
    let shared = allocate("T2")
        + "  ShareMemHandles(P2PCommunication 8 (type=recv, buffer=T2., peer=1, backend=CUDA))\n"
        + &set("T1", "T9");
    same(&shared, &shared);
}

#[test]
fn emptied_loops_and_branches_go() {
    same(
        "  FOR i5 from 0 to 4:
    IF Manual ( i5 == rank ):
      T2. = ALLOCATE(mem_type=global, zero_init=false)
    ELSE:
      T4. = ALLOCATE(mem_type=global, zero_init=false)
  FOR i5 from 0 to 4:
    T4. = ALLOCATE(mem_type=global, zero_init=false)
    i7 = i5 + 1;
  T1.
     = Set( T9. )
",
        "  FOR i5 from 0 to 4:
    i7 = i5 + 1;
  T1.
     = Set( T9. )
",
    );
}

#[test]
fn storage_of_outputs_stays() {
    let text = allocate("T1") + "  SetCurrentStream(Stream 1)\n" + &set("T1", "T9");
    same(&text, &text);
}
