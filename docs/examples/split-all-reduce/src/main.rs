//! Runs passes on a program and prints it: those of hir, `split-all-reduce` and `remove-unused-allocations`.
//!
//! ```text
//! split-all-reduce program.hir split-all-reduce,remove-redundant-sync
//! ```

use std::{
    env, fs,
    io::{self, Write},
    process::ExitCode,
};

use grammar::{Source, has_errors};
use passes::{Catalog, PassEvent, Settings};

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let result = match (arguments.next(), arguments.next()) {
        (Some(file), Some(list)) => rewrite(&file, &list),
        _ => Err("write `split-all-reduce FILE PASSES`".to_owned()),
    };
    match result.and_then(|text| io::stdout().write_all(text.as_bytes()).map_err(|it| it.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            let _ = writeln!(io::stderr(), "split-all-reduce: {message}");
            ExitCode::FAILURE
        }
    }
}

fn rewrite(file: &str, list: &str) -> Result<String, String> {
    let text = fs::read_to_string(file).map_err(|fault| format!("`{file}`: {fault}"))?;
    let (mut programs, diagnostics) = Source::new(file.to_owned(), text).programs();
    let program = programs.first_mut().filter(|_| !has_errors(&diagnostics));
    let program = program.ok_or_else(|| format!("`{file}` is faulty: hir-opt says where"))?;
    // The passes of hir, and two more.
    let mut catalog = Catalog::default();
    catalog.passes.extend([&split_all_reduce::PASS, &split_all_reduce::unused::PASS]);
    let calls = catalog.parse(list).map_err(|fault| fault.message)?;
    passes::run(program, &calls, Settings::default(), &mut |event| {
        if let PassEvent::After { remarks, .. } = event {
            remarks.iter().for_each(|it| _ = writeln!(io::stderr(), "{}: {}", it.code.text(), it.message));
        }
    })
    .map_err(|fault| format!("{fault:?}"))?;
    Ok(grammar::print(program))
}
