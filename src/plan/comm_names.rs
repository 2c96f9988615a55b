//! The names of a program's communications in reports: `P2PCommunication 38 (send, line 21)`. Also records
//! the statements whose tensors have their own namespace.

use grammar::{
    CommunicationType, LineIndex, Op, OpClass, OpStmt, P2pType, Program, Stmt, StmtId, SymbolId, attr,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::unbound::mirror;

/// The names of a program's communications, by statement. The plans of all ranks that run the program share
/// them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommNames {
    communications: FxHashMap<StmtId, CommName>,
    /// The statements that post a HostUnit. Its tensors have their own namespace.
    units: FxHashSet<StmtId>,
    /// The statements that wait for a communication.
    waits: FxHashSet<StmtId>,
}

/// The name of one communication.
#[derive(Clone, Debug, PartialEq)]
struct CommName {
    op: Op,
    /// The number of the statement, if it has one.
    number: Option<u32>,
    /// The kind of communication: `send`, `Allreduce`. Empty if the operator implies it.
    kind: String,
    line: u32,
    /// The inverse of the peer of a send or a receive, if it is known: the peer of the other side.
    partner_peer: Option<String>,
}

impl CommNames {
    /// Collects the names of all communications of a program.
    pub fn from_program(program: &Program, lines: &LineIndex) -> Self {
        let mut names = Self::default();
        let mut defined = FxHashSet::default();
        for (_, stmt) in program.stmts.iter() {
            if let Stmt::Let(symbol, _) = stmt {
                defined.insert(*symbol);
            }
        }
        for stmt in program.stmts.ids() {
            if let Stmt::Op(it) = &program.stmts[stmt] {
                let line = lines.line(program.stmt_span(stmt).start);
                names.communications.extend(name(program, it, line, &defined).map(|name| (stmt, name)));
                names.units.extend(it.get(attr::UNIT).map(|_| stmt));
                names.waits.extend((it.op.def().class == OpClass::Wait).then_some(stmt));
            }
        }
        names
    }

    /// Returns whether a statement posts a HostUnit. The names of the buffers that it allocates are known
    /// only inside the unit.
    pub fn posts_unit(&self, stmt: StmtId) -> bool {
        self.units.contains(&stmt)
    }

    /// Returns whether a statement posts a communication, or waits for one.
    pub fn posts_or_waits(&self, stmt: StmtId) -> bool {
        self.communications.contains_key(&stmt) || self.waits.contains(&stmt)
    }

    /// Returns the line of a communication.
    pub fn line(&self, stmt: StmtId) -> Option<u32> {
        self.communications.get(&stmt).map(|it| it.line)
    }

    /// Returns the peer with which the other side of a send or a receive meets it: `( rank + 3 ) % 4`. `None`
    /// if the inverse of the statement's peer is not known.
    pub fn partner_peer(&self, stmt: StmtId) -> Option<&str> {
        self.communications.get(&stmt)?.partner_peer.as_deref()
    }

    /// Returns the number of a communication, if it has one.
    pub fn number(&self, stmt: StmtId) -> Option<u32> {
        self.communications.get(&stmt)?.number
    }

    /// Returns the statement that waits for a communication: `Wait(Communication 38)`.
    pub fn wait_text(&self, stmt: StmtId) -> Option<String> {
        self.number(stmt).map(|number| format!("Wait(Communication {number})"))
    }

    /// Returns the name of a communication, with its iteration if it is in a loop; `None` for other
    /// statements.
    pub fn text(&self, stmt: StmtId, iteration: &str) -> Option<String> {
        let CommName { op, number, kind, line, .. } = self.communications.get(&stmt)?;
        let number = number.map_or(String::new(), |it| format!(" {it}"));
        let line = format!("line {line}");
        let parts = [kind, line.as_str(), iteration];
        let parts: Vec<&str> = parts.into_iter().filter(|it| !it.is_empty()).collect();
        Some(format!("{}{number} ({})", op.name(), parts.join(", ")))
    }
}

/// Returns the name of a communication. `defined` are the scalars that statements define.
fn name(program: &Program, it: &OpStmt, line: u32, defined: &FxHashSet<SymbolId>) -> Option<CommName> {
    let kind = match (it.op.def().class, it.op) {
        (OpClass::Communicate, Op::CollectivePermute) | (OpClass::ShareHandles, _) => "",
        (OpClass::Communicate, Op::P2PCommunication) => it.get(attr::P2P_TYPE).map_or("send", P2pType::text),
        (OpClass::Communicate, _) => it.get(attr::TYPE).map_or("", CommunicationType::text),
        (OpClass::Coalescing, Op::EndCoalescing) => "",
        _ => return None,
    };
    // The value of a scalar that a statement defines may differ between ranks.
    let peer = it.get(attr::PEER).filter(|it| !program.depends_on(*it, &|symbol| defined.contains(&symbol)));
    let partner_peer = peer.and_then(|peer| mirror(program, peer));
    Some(CommName { op: it.op, number: it.number, kind: kind.to_owned(), line, partner_peer })
}
