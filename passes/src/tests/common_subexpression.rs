//! What is equal, and what only looks so.

use super::{check, transform};

const HEADER: &str =
    "(T0_g_float[iS0{2}, iS1{4}], T1_g_float[iS2{4}, iS3{4}]) -> (T9_g_float[iS90{2}, iS91{4}])";

fn product(out: u32) -> String {
    format!(
        "T{out}_g_float[iS{out}0{{2}}, iS{out}1{{4}}]\n     = linear(T0_g_float[iS0{{2}}, iS1{{4}}],\n              \
         T1_g_float[iS2{{4}}, iS3{{4}}])\n"
    )
}

fn sum(a: u32, b: u32) -> String {
    format!(
        "T9_g_float[iS90{{2}}, iS91{{4}}]\n     = T{a}_g_float[iS{a}0{{2}}, iS{a}1{{4}}]\n     + T{b}_g_float[iS{b}0{{2}}, iS{b}1{{4}}];\n"
    )
}

fn storage(out: u32) -> String {
    format!("T{out}_g_float[iS{out}0{{2}}, iS{out}1{{4}}] = ALLOCATE(mem_type=global, zero_init=false)\n")
}

#[test]
fn equal_products_are_one() {
    let before = format!("  {}  {}  {}  {}  {}", storage(2), product(2), storage(3), product(3), sum(2, 3));
    check(
        "common-subexpression",
        HEADER,
        &before,
        &format!("  {}  {}  {}", storage(2), product(2), sum(2, 2)),
    );
}

#[test]
fn what_only_looks_equal_stays() {
    let two = |between: &str| format!("  {}{between}  {}  {}", product(2), product(3), sum(2, 3));
    let written = "  T0_g_float[iS0{2}, iS1{4}]\n     = -T0_g_float[iS0{2}, iS1{4}];\n";
    let result_written = "  T2_g_float[iS20{2}, iS21{4}]\n     = -T2_g_float[iS20{2}, iS21{4}];\n";
    let dropped = "  Deallocate {\n    T2_g_float[iS20{2}, iS21{4}]\n  }\n";
    for stays in [
        two(written),
        two(result_written),
        two("  SetCurrentStream(Stream 3)\n"),
        two(dropped).replace(&sum(2, 3), &sum(3, 3)),
        // One of two storages that somebody else names.
        format!("  {}  {}  {}", product(9), product(3), sum(9, 3)),
        // In a branch, and behind it.
        format!("  IF Manual ( rank == 0 ):\n    {}  {}", product(2).replace("\n  ", "\n    "), product(3)),
    ] {
        let result =
            transform("common-subexpression", &format!("%HostIrContainer {{ {HEADER} :\n{stays}}}\n"));
        let same = transform("", &format!("%HostIrContainer {{ {HEADER} :\n{stays}}}\n"));
        assert!(same.is_ok(), "{same:?}");
        assert_eq!(result, same);
    }
}

#[test]
fn iterations_need_storage_of_their_own() {
    let indented = |text: &str| text.replace("\n  ", "\n    ");
    let body = |storage: &dyn Fn(u32) -> String| {
        let parts = [storage(2), product(2), storage(3), product(3), sum(2, 3)];
        parts.iter().filter(|it| !it.is_empty()).map(|it| format!("    {}", indented(it))).collect::<String>()
    };
    let products = |text: &str| {
        let whole = format!("%HostIrContainer {{ {HEADER} :\n  FOR i5 from 0 to i9:\n{text}}}\n");
        transform("common-subexpression", &whole).map(|it| it.matches("linear").count())
    };
    assert_eq!(products(&body(&storage)), Ok(1));
    assert_eq!(products(&body(&|_| String::new())), Ok(2));
}

#[test]
fn definitions_with_equal_values_are_one() {
    let text = |streams: &str, definitions: &str| {
        format!(
            "%HostIrContainer {{ () -> () :\n  i7 = 3;\n{streams}}} // %HostIrContainer\n\nIndex definitions:\n{definitions}"
        )
    };
    let before = text(
        "  Synchronize(Stream i10)\n  Synchronize(Stream i13)\n  Synchronize(Stream i7)\n",
        "  i10 = rank + 1;\n  i11 = rank + 1;\n  i12 = i10 * 2;\n  i13 = i11 * 2;\n  i7 = rank + 1;\n",
    );
    let after = text(
        "  Synchronize(Stream i10)\n  Synchronize(Stream i12)\n  Synchronize(Stream i7)\n",
        "  i10 = rank + 1;\n  i12 = i10 * 2;\n  i7 = rank + 1;\n",
    );
    assert_eq!(transform("common-subexpression", &before), Ok(after));
}
