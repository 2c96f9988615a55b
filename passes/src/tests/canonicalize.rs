//! What canonicalize folds and drops, and what it leaves alone.

use super::{check, transform};

/// One input, one output, a program's statements.
fn same(before: &str, after: &str) {
    check("canonicalize", "(T0_g_float[iS0{8}]) -> (T1_g_float[iS1{8}])", before, after);
}

const SET: &str = "  T1_g_float[iS1{8}]\n     = Set( T0_g_float[iS0{8}] )\n";

#[test]
fn neutral_operands_go() {
    same(
        "  FOR i5 from ( 3 - 3 ) to ( 2 * i0 ):
    SetCurrentStream(Stream ( ( ( 0 + i5 ) % ( 4 / 1 ) ) * 1 ))
    i7 = ( i5 + 0 ) - ( 1 - 1 );
    i8 = max(3, 4) + ceilDiv(i0, ceilDiv(7, 2));
",
        "  FOR i5 from 0 to ( 2 * i0 ):
    SetCurrentStream(Stream ( i5 % 4 ))
    i7 = i5;
    i8 = 4 + ( ceilDiv(i0, 4) );
",
    );
}

#[test]
fn real_numbers_and_unknown_types_stay() {
    // -0.0 + 0 is 0.0, and a name that begins with `d` is a real number.
    let text = "  i7 = d3 + 0;\n  i8 = d3 * 1;\n  i9 = double(1.5) + 0;\n  i10 = i6 * 0;\n";
    same(text, text);
}

#[test]
fn faults_stay_for_the_planner() {
    let text = "  i7 = 1 / 0;\n  i8 = 9223372036854775807 + 1;\n  i9 = 1 % 0;\n";
    same(text, text);
}

#[test]
fn loop_bounds_decide_remainders_and_comparisons() {
    same(
        "  FOR i5 from 0 to 4:
    i7 = i5 % 4;
    i8 = i5 % 3;
    IF Manual ( i5 < 4 ):
      i9 = i5;
    IF Manual ( i5 == 3 ):
      i9 = i5;
    FOR i5 from 0 to i0:
      i10 = i5 % 4;
",
        "  FOR i5 from 0 to 4:
    i7 = i5;
    i8 = i5 % 3;
    i9 = i5;
    IF Manual ( i5 == 3 ):
      i9 = i5;
    FOR i5 from 0 to i0:
      i10 = i5 % 4;
",
    );
    let assigned = "  FOR i5 from 0 to 4:\n    i7 = i5 % 4;\n    i5 = 9;\n";
    same(assigned, assigned);
}

#[test]
fn constant_branches_become_the_taken_side() {
    same(
        &format!("  IF Manual ( 1 == 1 ):\n  {SET}  ELSE:\n    Synchronize(Stream 1)\n")
            .replace("\n     =", "\n       ="),
        SET,
    );
    same(
        "  IF Manual ( 2 < 1 ):\n    Synchronize(Stream 1)\n  ELSE:\n    Synchronize(Stream 2)\n",
        "  Synchronize(Stream 2)\n",
    );
    same("  IF Manual false:\n    Synchronize(Stream 1)\n", "");
}

#[test]
fn an_empty_then_gives_way_to_its_else() {
    same(
        "  IF Manual ( i5 == rank ):
  ELSE:
    Synchronize(Stream 1)
  IF Manual ( i5 < rank ):
  ELSE:
    Synchronize(Stream 1)
  IF Manual ( d5 < d6 ):
  ELSE:
    Synchronize(Stream 1)
  IF Manual ( !( i5 == rank ) ):
  ELSE:
    Synchronize(Stream 1)
  IF Manual b5:
  ELSE:
    Synchronize(Stream 1)
",
        "  IF Manual ( i5 != rank ):
    Synchronize(Stream 1)
  IF Manual ( i5 >= rank ):
    Synchronize(Stream 1)
  IF Manual ( !( d5 < d6 ) ):
    Synchronize(Stream 1)
  IF Manual ( i5 == rank ):
    Synchronize(Stream 1)
  IF Manual ( !b5 ):
    Synchronize(Stream 1)
",
    );
}

#[test]
fn loops_that_do_nothing_go() {
    same("  FOR i5 from 3 to ( 2 + 1 ):\n    Synchronize(Stream i5)\n", "");
    same(
        "  FOR i5 from 0 to i0:\n    FOR i6 from 0 to i5:\n      IF Manual false:\n        Synchronize(Stream 1)\n",
        "",
    );
}

#[test]
fn code_that_never_runs_stays_where_the_verifier_needs_it() {
    let text = "  IF Manual false:
    Communication 5 (type=Broadcast, team=(0 1), root=0, input=T0_g_float[iS0{8}], output=T1_g_float[iS1{8}])
  Wait(Communication 5)
";
    same(text, text);
}

const LONG: &str = "T2_g_float[iS2{8}] = ALLOCATE(buffer=T2_g_float[iS2{8}], mem_type=global, size=8, zero_init=false, \
                    resets_to_zero=false)\n";
const SHORT: &str = "T2_g_float[iS2{8}] = ALLOCATE(mem_type=global, zero_init=false)\n";
const DROP: &str = "Deallocate {\n    T2_g_float[iS2{8}]\n  }\n";

#[test]
fn a_long_allocate_of_a_bound_name_goes() {
    same(&format!("  {LONG}  {LONG}"), &format!("  {SHORT}"));
    same(
        &format!("  {SHORT}  FOR i5 from 0 to i0:\n    {LONG}    {SHORT}"),
        &format!("  {SHORT}  FOR i5 from 0 to i0:\n    {SHORT}"),
    );
    let both = format!("  IF Manual ( rank == 0 ):\n    {SHORT}  ELSE:\n    {LONG}");
    same(&format!("{both}  {LONG}"), &both);
    for stays in [
        format!("  {SHORT}  {SHORT}"),
        format!("  {SHORT}  {DROP}  {LONG}"),
        format!("  IF Manual ( rank == 0 ):\n    {SHORT}  {LONG}"),
        format!("  FOR i5 from 0 to i0:\n    {SHORT}  {LONG}"),
    ] {
        same(&stays, &stays);
    }
}

#[test]
fn a_long_allocate_of_an_unbound_name_becomes_short() {
    same(&format!("  {LONG}"), &format!("  {SHORT}"));
    let branch = |form: &str| format!("  IF Manual ( rank == 0 ):\n    {form}");
    same(&branch(LONG), &branch(SHORT));
    let zeroed = |form: &str| format!("  {}", form.replace("zero_init=false", "zero_init=true"));
    same(&zeroed(LONG), &zeroed(SHORT));
    let again = format!("  {}", LONG.replace("resets_to_zero=false", "resets_to_zero=true"));
    let input = format!("  {}", LONG.replace("T2_g_float[iS2{8}]", "T0_g_float[iS0{8}]"));
    let used = "  T2_g_float[iS2{8}]\n     = Set( T0_g_float[iS0{8}] )\n";
    for stays in [
        format!("  FOR i5 from 0 to i0:\n    {LONG}"),
        format!("  FOR i5 from 0 to i0:\n  {}  {LONG}", used.replace("     =", "       =")),
        format!("{used}  {LONG}").replace("i0:\n    T2", "i0:\n      T2"),
        again,
    ] {
        let result = transform(
            "canonicalize",
            &format!("%HostIrContainer {{ (T0_g_float[iS0{{8}}]) -> () :\n{stays}}}\n"),
        );
        assert!(
            result.as_ref().is_ok_and(|it| it.contains("buffer=") || !it.contains("ALLOCATE")),
            "{result:?}"
        );
    }
    // An input is bound: its ALLOCATE goes.
    same(&input, "");
}

#[test]
fn a_loop_over_an_axis_forgets_what_its_index_gave_a_meaning() {
    let text = |index: &str| {
        format!(
            "  T3_l_float[] \
             = ALLOCATE(mem_type=global, zero_init=false)\n  FOR i5 in iS0{{8}}:\n    \
             T3_l_float[] = ALLOCATE(buffer=T3_l_float[], mem_type=global, size=1, zero_init=false, \
             resets_to_zero=false)\n    T3_l_float[]\n       \
             = HirAliasSelect( T0_g_float[iS0{{8}}], axis = iS0{{8}}, index = {index} )\n"
        )
    };
    same(&text("i5"), &text("i5"));
    let first = transform(
        "canonicalize",
        &format!("%HostIrContainer {{ (T0_g_float[iS0{{8}}]) -> () :\n{}}}\n", text("0")),
    );
    assert!(first.is_ok_and(|it| !it.contains("buffer=")));
}

#[test]
fn a_view_in_effect_is_not_made_again() {
    let view = |index: &str| {
        format!(
            "T3_l_float[]\n     = HirAliasSelect( T0_g_float[iS0{{8}}], axis = iS0{{8}}, index = {index} )\n"
        )
    };
    same(&format!("  {0}  {0}", view("i5")), &format!("  {}", view("i5")));
    same(
        &format!("  {0}  Synchronize(Stream 1)\n  {0}", view("3")),
        &format!("  {}  Synchronize(Stream 1)\n", view("3")),
    );
    for stays in [
        format!("  {}  {}  {}", view("0"), view("1"), view("0")),
        format!("  {0}  i5 = 3;\n  {0}", view("i5")),
        format!("  {0}  T3_l_float[]\n     = neg(T3_l_float[]);\n  {0}", view("0"))
            .replace("neg(T3_l_float[])", "-T3_l_float[]"),
    ] {
        same(&stays, &stays);
    }
}

#[test]
fn folded_definitions_keep_their_names() {
    let text = "\
%HostIrContainer { (T0_g_float[iS0{( 2 * i74 )}]) -> (T0_g_float[iS0{( 2 * i74 )}]) :
} // %HostIrContainer

Index definitions:
  i74 = 8 * 128;
  i76 = i74 * 1;
";
    let folded = text.replace("8 * 128", "1024").replace("i74 * 1;", "i74;");
    assert_eq!(transform("canonicalize", text), Ok(folded));
}

#[test]
fn two_axes_of_one_number_stay_apart() {
    let text = "%HostIrContainer { (T0_g_float[iS0{8}], T1_g_float[iS0{( 2 * 4 )}]) -> () :\n} // %HostIrContainer\n";
    assert_eq!(transform("canonicalize", text), Ok(text.to_owned()));
    assert_eq!(
        transform("canonicalize", &text.replace("iS0{8}", "iS1{( 9 - 1 )}")),
        Ok(text.replace("iS0{8}", "iS1{8}").replace("( 2 * 4 )", "8"))
    );
}
