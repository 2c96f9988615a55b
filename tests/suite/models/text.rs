//! The text of a program of several ranks with two streams, each of which is that of the entry or `Stream 1`.

use std::fmt::Write as _;

/// Returns the name of a stream. Stream 0 is the one that is current at entry and at exit.
pub fn stream_name(stream: usize) -> String {
    if stream == 0 { "s0".to_owned() } else { stream.to_string() }
}

/// Returns the text of a program. `T0` is an input, the next `outputs` tensors are outputs; `tensors` has the memory and the number of elements of
/// `T1` and of all tensors behind it. The statements of a rank each have the stream on which they run.
pub fn text(tensors: &[(&str, usize)], outputs: usize, statements: &[Vec<(usize, String)>]) -> String {
    let mut text = "%options roots=team\n".to_owned();
    let mesh: Vec<String> = (0..statements.len()).map(|it| it.to_string()).collect();
    let mesh = mesh.join(" ");
    for (tensor, (_, extent)) in [("global", 4)].iter().chain(tensors).enumerate() {
        let _ = writeln!(text, "%tensor T{tensor}_g_float[iS{tensor}{{{extent}}}] (DeviceMesh{{{mesh}}})");
    }
    let outputs: Vec<String> = (1..=outputs).map(|it| format!("T{it}")).collect();
    let outputs = outputs.join(", ");
    let _ = writeln!(text, "%HostIrContainer {{ (T0) -> ({outputs}) :\n  Stream s0 = GetCurrentStream()");
    for (before, (memory, _)) in tensors.iter().enumerate() {
        let _ = writeln!(text, "  T{} = ALLOCATE(mem_type={memory}, zero_init=true)", before + 1);
    }
    for (rank, statements) in statements.iter().enumerate().filter(|it| !it.1.is_empty()) {
        let _ = writeln!(text, "  IF Manual ( rank == {rank} ):");
        let mut current = 0;
        for (stream, statement) in statements {
            if *stream != current {
                let _ = writeln!(text, "    SetCurrentStream(Stream {})", stream_name(*stream));
                current = *stream;
            }
            let _ = writeln!(text, "    {statement}");
        }
        if current != 0 {
            text += "    SetCurrentStream(Stream s0)\n";
        }
    }
    text + "} // %HostIrContainer\n"
}
