//! What reports call the communications of a program, `P2PCommunication 38 (send, line 21)`, and whose tensors have names of their own.

use grammar::{
    attr,
    ir::{OpStmt, Program, Stmt, StmtId},
    ops::{Op, OpClass},
    span::LineIndex,
    words::{CommunicationType, P2pType},
};
use rustc_hash::{FxHashMap, FxHashSet};

/// The names of a program's communications, by statement; shared by the plans of all ranks that run it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommNames {
    communications: FxHashMap<StmtId, CommName>,
    /// Statements that post a HostUnit, whose tensors have a namespace of their own.
    units: FxHashSet<StmtId>,
}

/// What one communication is called.
#[derive(Clone, Debug, PartialEq)]
struct CommName {
    /// The operator and its number: `P2PCommunication 38`.
    operator: String,
    /// What it does: `send`, `Allreduce`; empty where the operator says it.
    kind: String,
    line: u32,
}

impl CommNames {
    /// The names of all communications of a program.
    pub fn from_program(program: &Program, lines: &LineIndex) -> Self {
        let mut names = Self::default();
        for stmt in program.stmts.ids() {
            if let Stmt::Op(it) = &program.stmts[stmt] {
                let line = lines.line(program.stmt_span(stmt).start);
                names.communications.extend(name(it, line).map(|name| (stmt, name)));
                names.units.extend(it.get(attr::UNIT).map(|_| stmt));
            }
        }
        names
    }

    /// Whether a statement posts a HostUnit: the buffers that it allocates have names that only the unit knows.
    pub fn posts_unit(&self, stmt: StmtId) -> bool {
        self.units.contains(&stmt)
    }

    /// The line of a communication.
    pub fn line(&self, stmt: StmtId) -> Option<u32> {
        self.communications.get(&stmt).map(|it| it.line)
    }

    /// A communication and, where it is in a loop, its iteration; `None` for other statements.
    pub fn text(&self, stmt: StmtId, iteration: &str) -> Option<String> {
        let CommName { operator, kind, line } = self.communications.get(&stmt)?;
        let line = format!("line {line}");
        let parts = [kind, line.as_str(), iteration];
        let parts: Vec<&str> = parts.into_iter().filter(|it| !it.is_empty()).collect();
        Some(format!("{operator} ({})", parts.join(", ")))
    }
}

fn name(it: &OpStmt, line: u32) -> Option<CommName> {
    let kind = match (it.op.def().class, it.op) {
        (OpClass::Communicate, Op::CollectivePermute) | (OpClass::ShareHandles, _) => "",
        (OpClass::Communicate, Op::P2PCommunication) => it.get(attr::P2P_TYPE).map_or("send", P2pType::text),
        (OpClass::Communicate, _) => it.get(attr::TYPE).map_or("", CommunicationType::text),
        (OpClass::Coalescing, Op::EndCoalescing) => "",
        _ => return None,
    };
    let number = it.number.map_or(String::new(), |it| format!(" {it}"));
    Some(CommName { operator: format!("{}{number}", it.op.name()), kind: kind.to_owned(), line })
}
