//! Resolves the statements of May 2024, which describe operations in words: an inline fusion becomes a
//! HostUnit, and an inline communication becomes a numbered statement.
//!
//! Invariant: no section and no earlier communication uses the numbers that are assigned here.

use super::{Resolver, argument_errors::found_text, params::WORK_NAMES};
use crate::{
    ast, attr,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{BlockId, HostUnit, Memory, OpStmt, Operand, PartRole, Stmt, StmtId, TensorId, UnitId},
    ops::Op,
    span::Span,
    text::tensor_text,
};

/// The keys whose values are lists of ranks.
const LISTS_OF_RANKS: [&str; 4] = ["team", "mesh", "sender mesh", "receiver mesh"];

impl<'s> Resolver<'s> {
    /// Resolves `Execute the following Fusion …` or `PostOnStream the operation …`.
    pub(super) fn resolve_post_phrase(
        &mut self,
        inputs: &[ast::Expr<'s>],
        outputs: &[ast::Expr<'s>],
        operation: &ast::Operation<'s>,
        span: Span,
    ) -> Option<OpStmt> {
        let lists = [inputs, outputs];
        let (inputs, outputs) = (self.values(inputs), self.values(outputs));
        match operation {
            ast::Operation::Kernel(body) => {
                let numbers = [attr::INPUTS.name(), attr::OUTPUTS.name()]
                    .map(|it| Op::PostOnStream.def().attr_number(it));
                for (list, number) in lists.into_iter().zip(numbers) {
                    for (at, item) in (0..=u16::MAX).zip(list) {
                        self.add_part(item.span, PartRole::Element(number, at));
                    }
                }
                let unit = self.inline_unit(body, inputs.len(), outputs.len(), span);
                let attrs =
                    vec![attr::UNIT.with(unit), attr::INPUTS.with(inputs), attr::OUTPUTS.with(outputs)];
                Some(OpStmt { op: Op::PostOnStream, number: None, outs: Vec::new(), args: Vec::new(), attrs })
            }
            ast::Operation::Communication { kind, args, .. } => {
                let mut stmt = self.communication(*kind, args)?;
                for ((key, operands), list) in
                    [(attr::INPUT, inputs), (attr::OUTPUT, outputs)].into_iter().zip(lists)
                {
                    match operands[..] {
                        [] => (),
                        [Operand::Tensor(tensor)] => {
                            stmt.attrs.push(key.with(tensor));
                            let number = Op::Communication.def().attr_number(key.name());
                            for item in list {
                                self.add_part(item.span, PartRole::Attr(number));
                                self.add_part(item.span, PartRole::Element(number, 0));
                            }
                        }
                        _ => {
                            let message = format!("a communication has one tensor as its {}", key.name());
                            self.error(Code::BadOperands, span, message, "posted here with other operands");
                            return None;
                        }
                    }
                }
                self.add_implied_red_op(&mut stmt, span);
                self.resolve_root(&mut stmt, span);
                if !self.report_missing_attrs(&stmt, args, span) {
                    return None;
                }
                stmt.number = Some(self.next_free_number());
                super::params::order_attrs(&mut stmt);
                Some(stmt)
            }
            ast::Operation::Call(call) => self.resolve_call(&[], call, span),
        }
    }

    /// Resolves `Wait the communication :{ … }`.
    pub(super) fn resolve_wait_phrase(
        &mut self,
        operation: &ast::Operation<'s>,
        span: Span,
    ) -> Option<OpStmt> {
        let number = match operation {
            ast::Operation::Call(ast::Expr {
                kind: ast::ExprKind::Call { name, number: Some(number), .. },
                ..
            }) if WORK_NAMES.contains(&name.text) => u32::try_from(*number).ok(),
            ast::Operation::Communication { kind, args, .. } => {
                let wanted = self.communication(*kind, args)?;
                let ops = self.program.stmts.iter().filter_map(|(_, stmt)| stmt.op());
                let mut posted = ops.filter(|it| it.op == Op::Communication);
                let same = |it: &&OpStmt| {
                    it.get(attr::TYPE) == wanted.get(attr::TYPE)
                        && it.get(attr::TEAM) == wanted.get(attr::TEAM)
                };
                posted.rfind(same).and_then(|it| it.number)
            }
            ast::Operation::Call(_) | ast::Operation::Kernel(_) => None,
        };
        let Some(number) = number else {
            self.error(
                Code::UnknownWork,
                span,
                "no earlier statement posts this communication",
                "the wait is here",
            );
            return None;
        };
        let attrs = vec![attr::WORK.with(number)];
        Some(OpStmt { op: Op::Wait, number: None, outs: Vec::new(), args: Vec::new(), attrs })
    }

    /// Returns the Wait that posting a communication implied until June 2024, when nvFuser added statements
    /// that wait. A container with such a statement is newer and has no implied waits.
    pub(super) fn implied_wait(&mut self, posted: StmtId, span: Span) -> Option<StmtId> {
        let number = self.program.posted_work(posted).filter(|_| !self.has_waits)?;
        let message =
            "no statement waits for this communication; until June 2024, posting one also waited for it";
        let it = Diagnostic::new(
            Code::LossyWait,
            span,
            message,
            "a wait is assumed directly after this statement",
        );
        self.diagnostics
            .push(it.help(format!("write `Wait(Communication {number})` after it to make this explicit")));
        self.needs_canonical_fix = true;
        let wait = OpStmt {
            op: Op::Wait,
            number: None,
            outs: Vec::new(),
            args: Vec::new(),
            attrs: vec![attr::WORK.with(number)],
        };
        Some(self.program.add_stmt(Stmt::Op(wait), span))
    }

    /// Resolves `Communication Allgather: { root: 0, team: 0 1 2, }`. The second and later elements of a list
    /// are arguments without a key.
    fn communication(&mut self, kind: ast::Name<'s>, args: &[ast::Arg<'s>]) -> Option<OpStmt> {
        let mut stmt = OpStmt {
            op: Op::Communication,
            number: None,
            outs: Vec::new(),
            args: Vec::new(),
            attrs: Vec::new(),
        };
        let errors = self.diagnostics.len();
        let row = Op::Communication.def();
        let word = ast::Expr { span: kind.span, kind: ast::ExprKind::Word(kind.text) };
        let param = row.attr_def(attr::TYPE)?;
        self.bind_attr(&mut stmt, param, kind.span, row.attr_number(param.key()), &word);
        let mut team = Vec::new();
        let mut team_span: Option<Span> = None;
        let mut list = None;
        for arg in args {
            if let Some(key) = arg.key {
                list = LISTS_OF_RANKS.into_iter().find(|it| it.eq_ignore_ascii_case(key.text));
            }
            match (list, arg.key) {
                (Some(name), _) => match ranks_of(&arg.value) {
                    // The text of the tensors already contains the meshes.
                    Some(ranks) if name == "team" => {
                        team.extend(ranks);
                        let own = arg.key.map_or(arg.value.span, |key| key.span.join(arg.value.span));
                        team_span = Some(team_span.map_or(own, |it| it.join(own)));
                    }
                    Some(_) => (),
                    None => {
                        let message = format!("`{name}` is a list of ranks");
                        let label = format!("this is {}", found_text(&arg.value));
                        self.error(Code::BadOperands, arg.value.span, message, label);
                    }
                },
                (None, Some(key)) => self.bind_keyed(&mut stmt, args, key, &arg.value),
                (None, None) => self.extra_operand(row, &arg.value),
            }
        }
        stmt.attrs.push(attr::TEAM.with(team));
        let number = row.attr_number(attr::TEAM.name());
        team_span.into_iter().for_each(|it| self.add_part(it, PartRole::Attr(number)));
        (self.diagnostics.len() == errors).then_some(stmt)
    }

    /// Infers the input and output lists of a unit whose section has none; `place` is the offset at which
    /// they belong.
    pub(super) fn infer_unit_lists(&mut self, unit: UnitId, body: BlockId, span: Span, place: u32) {
        let number = self.program.units[unit].number;
        let (taken, given) = self.unit_inputs_outputs(body);
        if !(taken.is_empty() && given.is_empty()) {
            let list = |list: &[TensorId]| {
                let texts: Vec<String> = list.iter().map(|it| tensor_text(&self.program, *it)).collect();
                texts.join(", ")
            };
            let lists = format!(" Inputs={{{}}} -> Outputs={{{}}}", list(&taken), list(&given));
            let guess = inferred_lists_warning(number, span).fix(Span { start: place, end: place }, lists);
            self.diagnostics.push(guess);
            self.set_lists(unit, taken, given);
        }
    }

    fn set_lists(&mut self, unit: UnitId, taken: Vec<TensorId>, given: Vec<TensorId>) {
        let list = |tensors: Vec<TensorId>| tensors.into_iter().map(Operand::Tensor).collect();
        let it = &mut self.program.units[unit];
        (it.inputs, it.outputs) = (list(taken), list(given));
    }

    fn inline_unit(&mut self, body: &[ast::Stmt<'s>], inputs: usize, outputs: usize, span: Span) -> UnitId {
        let number = self.next_free_number();
        let unit =
            self.program.units.push(HostUnit { number, inputs: Vec::new(), outputs: Vec::new(), body: None });
        let outer = self.current_unit.replace(unit);
        let body = self.block(body);
        self.current_unit = outer;
        let (taken, given) = self.unit_inputs_outputs(body);
        let certain = taken.len() <= 1 && given.len() <= 1;
        if taken.len() != inputs || given.len() != outputs {
            let message = format!(
                "the fusion has {} inputs and {} outputs, but is posted with {inputs} and {outputs}",
                taken.len(),
                given.len()
            );
            self.error(Code::BadOperands, span, message, "expected as many operands as the fusion has");
        } else if !certain {
            // An inline unit cannot list its tensors. Only the canonical text, which has a section for it,
            // can.
            self.diagnostics.push(inferred_lists_warning(number, span));
            self.needs_canonical_fix = true;
        }
        self.program.units[unit].body = Some(body);
        self.set_lists(unit, taken, given);
        unit
    }

    /// Returns the tensors that a fusion reads and never defines, and those in global memory that it defines,
    /// each sorted by number.
    fn unit_inputs_outputs(&self, body: BlockId) -> (Vec<TensorId>, Vec<TensorId>) {
        let program = &self.program;
        let (mut used, mut defined) = (Vec::new(), Vec::new());
        for stmt in program.block(body) {
            if let Stmt::Op(it) = &program.stmts[*stmt] {
                used.extend(it.args.iter().filter_map(|it| it.tensor()));
                defined.extend(it.outs.iter().filter_map(|it| it.tensor()));
            }
        }
        used.retain(|it| !defined.contains(it));
        defined.retain(|it| program.tensors[*it].memory == Memory::Global);
        for list in [&mut used, &mut defined] {
            list.sort_by_key(|it| program.tensors[*it].number);
            list.dedup();
        }
        (used, defined)
    }

    fn next_free_number(&mut self) -> u32 {
        while self.units_by_number.contains_key(&self.next_number)
            || self.posted_work.contains(&self.next_number)
        {
            self.next_number += 1;
        }
        self.next_number += 1;
        self.next_number - 1
    }
}

/// Returns the ranks that an element of a list contains: `0`, `(0 1)` or `{0, 1}`.
fn ranks_of(value: &ast::Expr<'_>) -> Option<Vec<usize>> {
    let rank = |it: &ast::Expr<'_>| match it.kind {
        ast::ExprKind::Int(rank) => usize::try_from(rank).ok(),
        _ => None,
    };
    match &value.kind {
        ast::ExprKind::Braces(members) => members.iter().map(rank).collect(),
        ast::ExprKind::Team(members) => members.iter().map(|it| usize::try_from(*it).ok()).collect(),
        _ => rank(value).map(|it| vec![it]),
    }
}

fn inferred_lists_warning(number: u32, span: Span) -> Diagnostic {
    let message = "the text does not state which tensors of this fusion are its inputs and outputs";
    Diagnostic::new(Code::LossyUnit, span, message, "mapped in the order of the tensors' numbers")
        .help(format!("write `HostUnit{number}: Inputs={{…}} -> Outputs={{…}}` to make this explicit"))
}
