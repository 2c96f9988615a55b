//! Statistics of passes: how many times each pass ran and changed the program, and how it changed the number
//! of statements.

use grammar::{Program, Stmt};
use indexmap::IndexMap;
use passes::{Change, PassEvent};

/// Numbers of statements by operator or kind.
type OpCounts = IndexMap<&'static str, i64>;

/// Collects statistics from the events of the pass driver.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    before: OpCounts,
    rows: IndexMap<&'static str, PassStatistics>,
}

#[derive(Clone, Debug, Default)]
struct PassStatistics {
    runs: usize,
    changes: usize,
    statements: OpCounts,
}

impl Statistics {
    /// Updates the statistics for an event.
    pub fn handle_event(&mut self, event: PassEvent<'_>) {
        match event {
            PassEvent::Before { program, .. } => self.before = counts(program),
            PassEvent::After { call, program, change, .. } => {
                let row = self.rows.entry(call.pass.name).or_default();
                row.runs += 1;
                row.changes += usize::from(change.get() == Change::Changed);
                for (name, count) in counts(program) {
                    *row.statements.entry(name).or_default() += count;
                }
                for (name, count) in &self.before {
                    *row.statements.entry(name).or_default() -= count;
                }
            }
            PassEvent::Failed { .. } => (),
        }
    }

    /// Returns the table of `--statistics`.
    pub fn table(&self) -> String {
        let mut out = String::from("// -----// Statistics //----- //\n");
        for (name, row) in &self.rows {
            out += &format!("  {name}: ran {}, changed the program {}", row.runs, row.changes);
            let mut changes: Vec<_> = row.statements.iter().filter(|(_, count)| **count != 0).collect();
            changes.sort_unstable();
            let changes: Vec<String> =
                changes.into_iter().map(|(name, count)| format!("{count:+} {name}")).collect();
            if !changes.is_empty() {
                out += &format!(" ({})", changes.join(", "));
            }
            out.push('\n');
        }
        out
    }
}

fn counts(program: &Program) -> OpCounts {
    let mut counts = OpCounts::default();
    for stmt in program.bodies().flat_map(|it| program.stmts_in(it)) {
        let name = match &program.stmts[stmt] {
            Stmt::Op(it) => it.op.name(),
            Stmt::Let(..) => "definition",
            Stmt::For(_) => "FOR",
            Stmt::If(_) => "IF",
        };
        *counts.entry(name).or_default() += 1;
    }
    counts
}
