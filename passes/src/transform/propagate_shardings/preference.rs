//! Decides between operands of which only one can stay as it is, by a rule for the whole program, or reports them all.

use std::{fmt::Write as _, sync::Arc};

use grammar::{
    Aliasing, Code, Diagnostic, Mesh, Op, OpStmt, Program, StmtId, TensorId, domain_clauses, tensor_text,
};

use super::{
    Propagation, TensorUses,
    choice::{Claims, Conflict},
    with_pieces,
};
use crate::{
    analysis::sharding::{DimPiece, gathered_bytes},
    pass::Remarks,
};

/// The number of open choices that are reported with their texts.
const MOST_REPORTS: usize = 64;

grammar::named_enum! {
    /// The rule of `prefer=`.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(super) enum Preference {
        /// Weights stay where they are, and activations are resharded.
        WeightsStay = "weights-stay",
        /// Activations stay where they are, and weights are gathered.
        ActivationsStay = "activations-stay",
        /// The operand that is less to gather is gathered, statement by statement.
        LeastBytes = "least-bytes",
    }
}

impl Preference {
    /// Returns what it does with the operands of a statement.
    pub(super) fn rule_text(self) -> &'static str {
        match self {
            Self::WeightsStay => "weights stay",
            Self::ActivationsStay => "activations stay",
            Self::LeastBytes => "each statement reshards its smaller operand",
        }
    }
}

/// Returns the options that decide for the whole program, the one that moves the fewest bytes first.
pub(super) fn ways_out(program: &Program, uses: &TensorUses) -> String {
    let rules = [Preference::WeightsStay, Preference::ActivationsStay, Preference::LeastBytes];
    let mut found = rules.map(|rule| {
        let (mut trial, mut remarks) = (program.clone(), Remarks::default());
        let moved = Propagation::of(&mut trial, uses, &mut remarks, Some(rule)).moved_bytes;
        (moved.unwrap_or(usize::MAX), rule)
    });
    found.sort_by_key(|it| it.0);
    let text = |(bytes, rule): (usize, Preference)| match bytes {
        usize::MAX => format!("`{}`", rule.name()),
        _ => format!("`{}` (reshards up to {bytes} bytes per rank)", rule.name()),
    };
    let [best, second, third] = found;
    format!(
        "a rule for the whole program decides, for instance `propagate-shardings{{prefer={}}}` at the beginning of `--passes`, before `@overlap` or `@auto`: {}, {} or {}",
        best.1.name(),
        text(best),
        text(second),
        text(third)
    )
}

impl Propagation<'_> {
    /// Returns whether the first of two operands is resharded instead of the second one. Without a rule, weights stay, so
    /// that the rest of the program can be examined.
    pub(super) fn yields(&self, it: &OpStmt, first: TensorId, second: TensorId) -> bool {
        let weight_yields = !self.is_first_weight(it, first, second);
        match self.prefer.unwrap_or(Preference::WeightsStay) {
            Preference::WeightsStay => weight_yields,
            Preference::ActivationsStay => !weight_yields,
            Preference::LeastBytes => {
                match (gathered_bytes(self.program, first), gathered_bytes(self.program, second)) {
                    (Some(first), Some(second)) if first != second => first < second,
                    _ => weight_yields,
                }
            }
        }
    }

    /// Returns whether the first of two operands is the weight: a parameter, which no arithmetic has computed, or else the second
    /// operand of a product.
    fn is_first_weight(&self, it: &OpStmt, first: TensorId, second: TensorId) -> bool {
        match (self.computed.contains(&first), self.computed.contains(&second)) {
            (false, true) => true,
            (true, false) => false,
            (true, true) | (false, false) => !it.rule().is_matrix_product(),
        }
    }

    /// Records which tensors arithmetic computes. All others are parameters, data or copies of them.
    pub(super) fn note_computed(&mut self, stmt: &OpStmt) {
        let is_copied = stmt.rule().aliasing() != Aliasing::Never || matches!(stmt.op, Op::Cat | Op::Pad);
        if !is_copied || stmt.tensor_operands().iter().any(|it| self.computed.contains(it)) {
            self.computed.extend(Program::tensors_of(&stmt.outs));
        }
    }

    /// Reports a conflict: as a remark on what the rule of the program decides, or as a choice that the program leaves, with
    /// the texts that determine it.
    pub(super) fn report(
        &mut self,
        stmt: StmtId,
        out: TensorId,
        conflict: &Conflict,
        alternatives: [(Arc<Mesh>, Claims); 2],
    ) {
        let [(first, first_label), (second, second_label)] = &conflict.operands;
        let span = self.program.stmt_span(stmt);
        let name = self.program.tensor_name(out);
        let grammar::ir::Stmt::Op(it) = self.program.stmts[stmt].clone() else { return };
        let yields = self.yields(&it, *first, *second);
        let (kept, moved) = if yields { (*second, *first) } else { (*first, *second) };
        if self.prefer.is_some() {
            let bytes = gathered_bytes(self.program, moved);
            self.moved_bytes = self.moved_bytes.zip(bytes).map(|(sum, own)| sum.saturating_add(own));
            let [kept_name, moved_name] = [kept, moved].map(|it| self.program.tensor_name(it));
            let message = format!(
                "{}: `{kept_name}` stays, `{moved_name}` is resharded{}",
                conflict.message,
                self.bytes(moved)
            );
            self.remarks.note(span, message, format!("`{name}` gets the sharding of `{kept_name}`"));
            return;
        }
        let label = format!("`{name}` has no DeviceMesh, so its operands determine its sharding");
        let mut report = Diagnostic::new(Code::NotRewritten, span, conflict.message.clone(), label)
            .label(self.program.tensor_span(*first), first_label)
            .label(self.program.tensor_span(*second), second_label);
        if self.ambiguities.len() < MOST_REPORTS {
            let [of_first, of_second] = alternatives;
            let mut texts = [(of_first, *second), (of_second, *first)]
                .map(|(alternative, moved)| self.declaration(out, alternative, moved));
            if yields {
                texts.reverse();
            }
            report = report.help(format!("declare `{name}` as {}, or as {}", texts[0], texts[1]));
        }
        self.ambiguities.push(report);
    }

    /// Returns the text that declares a tensor with these pieces, and what is then resharded.
    fn declaration(&mut self, out: TensorId, (mesh, claims): (Arc<Mesh>, Claims), moved: TensorId) -> String {
        let mut program = self.program.clone();
        let count = program.dimensions(out).count();
        let mut pieces: Vec<Vec<DimPiece>> = vec![Vec::new(); count];
        for (pieces, claim) in pieces.iter_mut().zip(claims) {
            *pieces = claim.map_or(Vec::new(), |it| it.dim.pieces);
        }
        if let Ok(sharding) = with_pieces(&program, out, &mesh, pieces) {
            // The texts of all reports can be in one program: each has axis numbers of its own.
            sharding.apply_to(&mut program, &mut self.builder, out);
        }
        let mut text = format!("`{}`", tensor_text(&program, out));
        if !program.has_plain_domains(out) {
            let (name, clauses) = (program.tensor_name(out), domain_clauses(&program, out));
            let _ = write!(text, " with `{name}: {clauses}` below `Domains:`");
        }
        let moved_name = self.program.tensor_name(moved);
        let _ = write!(text, ", which reshards `{moved_name}`{}", self.bytes(moved));
        text
    }

    /// Returns how much each rank receives if a tensor is gathered, for messages.
    fn bytes(&self, tensor: TensorId) -> String {
        gathered_bytes(self.program, tensor)
            .map_or(String::new(), |bytes| format!(" (up to {bytes} bytes per rank)"))
    }
}
