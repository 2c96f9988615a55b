//! What reports call the communications of a program: `P2PCommunication 38 (send, line 21)`.

use grammar::{
    attr,
    ir::{OpStmt, Program, Stmt, StmtId},
    ops::{Effect, Op},
    span::LineIndex,
    words::{CommunicationType, P2pType},
};
use rustc_hash::FxHashMap;

/// The names of a program's communications, by statement; shared by the plans of all ranks that run it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names(FxHashMap<StmtId, Name>);

/// What one communication is called.
#[derive(Clone, Debug, PartialEq)]
struct Name {
    /// The operator and its number: `P2PCommunication 38`.
    operator: String,
    /// What it does: `send`, `Allreduce`; empty where the operator says it.
    kind: String,
    line: u32,
}

impl Names {
    /// The names of all communications of a program.
    pub fn of(program: &Program, lines: &LineIndex) -> Self {
        let mut names = FxHashMap::default();
        for stmt in program.stmts.ids() {
            if let Stmt::Op(it) = &program.stmts[stmt] {
                let line = lines.line(program.stmt_span(stmt).start);
                names.extend(name(it, line).map(|name| (stmt, name)));
            }
        }
        Self(names)
    }

    /// The line of a communication.
    pub fn line(&self, stmt: StmtId) -> Option<u32> {
        self.0.get(&stmt).map(|it| it.line)
    }

    /// A communication and, where it is in a loop, its iteration; `None` for other statements.
    pub fn text(&self, stmt: StmtId, iteration: &str) -> Option<String> {
        let Name { operator, kind, line } = self.0.get(&stmt)?;
        let line = format!("line {line}");
        let parts = [kind, line.as_str(), iteration];
        let parts: Vec<&str> = parts.into_iter().filter(|it| !it.is_empty()).collect();
        Some(format!("{operator} ({})", parts.join(", ")))
    }
}

fn name(it: &OpStmt, line: u32) -> Option<Name> {
    let kind = match (it.op.row().effect, it.op) {
        (Effect::Communicate, Op::CollectivePermute) | (Effect::Share, _) => "",
        (Effect::Communicate, Op::P2PCommunication) => it.get(attr::P2P_TYPE).map_or("send", P2pType::text),
        (Effect::Communicate, _) => it.get(attr::TYPE).map_or("", CommunicationType::text),
        (Effect::Group, Op::EndCoalescing) => "",
        _ => return None,
    };
    let number = it.number.map_or(String::new(), |it| format!(" {it}"));
    Some(Name { operator: format!("{}{number}", it.op.name()), kind: kind.to_owned(), line })
}
