//! Tests that expressions of tensor libraries are refused with what to write.

use grammar::read;

/// Returns message and help of the first fault of a program that computes `T4` in this way.
fn fault(value: &str) -> (String, String) {
    let text = format!(
        "%tensor T0_g_float[iS0{{8}}, iS1{{8}}]\n%tensor T3_g_float[iS2{{8}}, iS3{{8}}]\n\
         %tensor T4_g_float[iS4{{8}}, iS5{{8}}]\n%HostIrContainer {{ (T0, T3) -> (T4) :\n  T4_g_float[iS4{{8}}, iS5{{8}}] = {value}\n}} // %HostIrContainer\n"
    );
    let (_, diagnostics) = read(&text);
    assert_eq!(diagnostics.len(), 1, "{value}: {diagnostics:?}");
    let help = diagnostics[0].help.as_deref().unwrap_or_default();
    (diagnostics[0].message.clone(), help.to_owned())
}

#[test]
fn an_operation_inside_another_one_becomes_two_statements() {
    for (value, inner, outer) in [
        ("relu(relu(T3))", "relu(T3)", "relu(T5)"),
        ("T3 - T3 * T3", "T3 * T3", "T3 - T5"),
        ("T3 + T0 + T3", "T3 + T0", "T5 + T3"),
        ("matmul(T3, (T0 + T3))", "T0 + T3", "matmul(T3, T5)"),
        ("exp(relu(T0 - T3))", "T0 - T3", "exp(relu(T5))"),
    ] {
        let (message, help) = fault(value);
        assert_eq!(message, format!("`{inner}` is an operation inside another one"));
        let expected = format!("write one statement for each operation: `T5 = {inner}`, then `T4 = {outer}`");
        assert_eq!(help, expected);
    }
}

#[test]
fn functions_of_libraries_have_advice() {
    for (value, advice) in [
        ("transpose(T3)", "`Set.Permute"),
        ("T3.t()", "`Set.Permute"),
        ("sum(T3)", "`reduction`"),
        ("torch.sum(T3)", "`reduction`"),
        ("allreduce(T3)", "`--passes @lower`"),
        ("all_gather(T3)", "`--passes @lower`"),
        ("T3 @ T0", "`matmul(a, b)`"),
        ("T3 ** 2", "`pow( x, y )`"),
        ("T3.relu()", "write `relu` as a function: `T3` is its first operand"),
        ("torch.nn.functional.relu(T3)", "write `relu` without `torch.nn.functional.`"),
        ("torch.add(T0, T3)", "`a + b`"),
        ("dist.all_gather_into_tensor(T3)", "`--passes @lower`"),
        ("T3.bfloat16()", "`__"),
        ("torch.zeros(8, 8)", "`full( {4, 8}"),
        ("gelu(T3)", "`erf`"),
    ] {
        let (_, help) = fault(value);
        assert!(help.contains(advice), "{value}: {help}");
    }
}
