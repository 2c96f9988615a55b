//! Reads Host IR, runs passes over it, prints canonical text.

use std::{io::Write, process::ExitCode};

use clap::Parser;
use grammar::render::{Format, render};
use hir::{
    exit::Exit,
    plan,
    source::{Binding, Source, bind},
};

/// Reads Host IR, checks it, runs passes, prints canonical text.
#[derive(Parser)]
struct Options {
    /// The program; `-` for standard input.
    file: String,
    /// Print the plan of every rank instead of the program.
    #[arg(long)]
    print_plan: bool,
    /// Number of ranks; default: the smallest world that holds every mesh.
    #[arg(long)]
    ranks: Option<usize>,
    /// The rank whose plan is printed.
    #[arg(long)]
    rank: Option<usize>,
    /// Bind a symbol.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<Binding>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let Ok(source) = Source::open(&options.file) else { return Exit::Environment.into() };
    let (mut programs, mut diagnostics) = source.programs();
    let mut out = std::io::stdout().lock();
    if options.print_plan && !grammar::diagnostic::has_errors(&diagnostics) {
        for program in &mut programs {
            if let Err(it) = bind(program, &options.set) {
                diagnostics.push(it)
            }
            match plan::build(program, &source.lines, options.ranks.unwrap_or(plan::smallest_world(program)))
            {
                Ok(plans) => {
                    for plan in plans.iter().filter(|it| options.rank.is_none_or(|r| r == it.rank)) {
                        let _ = write!(out, "{}", plan::show(plan));
                    }
                }
                Err(more) => diagnostics.extend(more),
            }
        }
    } else {
        for program in &programs {
            let _ = write!(out, "{}", grammar::print(program));
        }
    }
    let _ = render(&diagnostics, &source.name, &source.text, Format::Human, false, &mut std::io::stderr());
    match grammar::diagnostic::has_errors(&diagnostics) {
        true => Exit::Rejected.into(),
        false => ExitCode::SUCCESS,
    }
}
