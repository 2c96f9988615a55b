//! What inline-definitions writes out, and what it leaves alone.

use super::{corpus, transform};

fn whole(body: &str, definitions: &str) -> String {
    let section =
        if definitions.is_empty() { String::new() } else { format!("\nIndex definitions:\n{definitions}") };
    format!(
        "%HostIrContainer {{ (T0_g_float[iS0{{i9}}]) -> (T1_g_float[iS1{{i9}}]) :\n{body}}} // %HostIrContainer\n{section}"
    )
}

fn check(body: &str, definitions: &str, after: &str, left: &str) {
    let once = transform("inline-definitions", &whole(body, definitions));
    assert_eq!(once, Ok(whole(after, left)));
    assert_eq!(transform("inline-definitions", &whole(after, left)), once);
}

#[test]
fn definitions_are_written_out_everywhere() {
    check(
        "  FOR i5 from i7 to i8:
    SetCurrentStream(Stream ( i5 % i7 ))
    IF Manual ( i8 == rank ):
      i6 = i8 + i7;
",
        "  i7 = 2 * 4;\n  i8 = i7 + rank;\n  i10 = i8 * 3;\n",
        "  FOR i5 from ( 2 * 4 ) to ( ( 2 * 4 ) + rank ):
    SetCurrentStream(Stream ( i5 % ( 2 * 4 ) ))
    IF Manual ( ( ( 2 * 4 ) + rank ) == rank ):
      i6 = ( ( 2 * 4 ) + rank ) + ( 2 * 4 );
",
        "",
    );
}

#[test]
fn extents_are_written_out() {
    let text = "%options numberOfStreams=i7
%HostIrContainer { (T0_g_float[iS0{i7}, iS1{( i7 * 2 )}]) -> (T0_g_float[iS0{i7}, iS1{( i7 * 2 )}]) :
} // %HostIrContainer

Index definitions:
  i7 = 8;
";
    let after = "%options numberOfStreams=8
%HostIrContainer { (T0_g_float[iS0{8}, iS1{( 8 * 2 )}]) -> (T0_g_float[iS0{8}, iS1{( 8 * 2 )}]) :
} // %HostIrContainer
";
    assert_eq!(transform("inline-definitions", text), Ok(after.to_owned()));
}

#[test]
fn axes_of_one_number_stay_apart() {
    let text = "%HostIrContainer { (T0_g_float[iS0{8}], T1_g_float[iS0{i7}]) -> () :
} // %HostIrContainer

Index definitions:
  i7 = 8;
";
    assert_eq!(transform("inline-definitions", text), Ok(text.to_owned()));
}

#[test]
fn a_statement_hides_a_definition() {
    let definitions = "  i7 = rank + 1;\n  i8 = i7 * 2;\n";
    let left = "  i7 = rank + 1;\n";
    let body = "  Synchronize(Stream i8)\n  i7 = 3;\n  Synchronize(Stream i8)\n";
    check(body, definitions, &body.replace("i8", "( i7 * 2 )"), left);
}

#[test]
fn what_grows_without_bound_is_refused() {
    let chain: String = (11..31).map(|at| format!("  i{at} = i{0} * i{0};\n", at - 1)).collect();
    let text = whole("  Synchronize(Stream i30)\n", &format!("  i10 = 1;\n{chain}"));
    let result = transform("inline-definitions", &text);
    assert!(result.as_ref().is_err_and(|it| it.contains("more than 10000 parts")), "{result:?}");
}

#[test]
fn programs_without_definitions_stay() {
    for (path, text) in corpus().iter().filter(|(_, text)| !text.contains("Index definitions:")) {
        assert_eq!(transform("inline-definitions", text), transform("", text), "{path}");
    }
}
