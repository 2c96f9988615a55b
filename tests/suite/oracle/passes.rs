//! Programs without a fault go through random lists of passes, which have to keep them free of faults and equal in values; and through the
//! certifier, together with what passes make of them and with changed programs.

use std::collections::BTreeMap;

use grammar::{codes::Code, diagnostic::has_errors, ir, span::LineIndex};
use hir_certify::{Settings, certify};
use hir_check::{Checks, check};
use passes::PASSES;

use super::{
    Rules, change, checks_of, faults,
    program::{Item, Node, Program, Role, Scalar, Shape, Stmt},
    random::{Mix, skeleton},
    repaired,
};
use crate::{certify::agree, lowered::each_lowered, pass_mutations::PASSES_WITH_OPTIONS, rng::Rng};

/// The number of lists of passes for a program. The first one is certified, too.
const LISTS: usize = 4;

/// Judges passes and certificates of the program of a seed.
pub fn attempt(seed: usize, mix: Mix, counts: &mut BTreeMap<String, usize>) -> Option<String> {
    let mut rng = Rng(seed as u64 ^ ((mix as u64) << 40) ^ 0xba_55e5);
    let rules = Rules { pairs: rng.below(2) == 0, connects: rng.below(2) == 0 };
    let program = repaired(skeleton(&mut rng, mix), rules, &mut rng)?.without_kernels();
    if !faults(&program, rules, true).is_empty() {
        return None;
    }
    let (text, checks) = (program.text().0, checks_of(rules, true));
    let (original, lines) = read(&text)?;
    let plans = hir_plan::build(&original, &lines, program.ranks).ok()?;
    if !check(&plans, checks).findings.is_empty() {
        return None;
    }
    let mut count = |what: String| *counts.entry(what).or_default() += 1;
    let pipelines: Vec<String> = (0..LISTS)
        .map(|_| (0..1 + rng.below(3)).map(|_| pass(&mut rng)).collect::<Vec<_>>().join(","))
        .collect();
    let fault =
        |list: &str, it: String| Some(format!("seed {seed} {mix:?} {rules:?} `{list}`: {it}\n{text}"));
    let all = match each_lowered(&text, &pipelines, checks) {
        Ok(it) => it,
        // The simulator compares whole tensors.
        Err(it) if it.contains("if each rank keeps its own") => return None,
        Err(it) => return fault("", it),
    };
    let mut lowered = Vec::new();
    for (list, it) in pipelines.iter().zip(all) {
        match it {
            Ok((_, it)) => {
                count(format!("passes {}", if it.is_some() { "kept" } else { "refused" }));
                lowered.push(it);
            }
            Err(it) => return fault(list, it),
        }
    }
    let (pipeline, lowered) = (&pipelines[0], lowered.swap_remove(0));
    let settings = Settings { ranks: Some(program.ranks), runs: 1, seed: Some(7) };
    for other in [&original].into_iter().chain(&lowered) {
        match certify(&original, other, &settings) {
            Ok(_) => count("certified".to_owned()),
            Err(it) if it.diagnostic.code == Code::NotCertifiable => {
                count(format!("not certified: {}", it.diagnostic.message));
            }
            Err(it) if !is_believed(&it.diagnostic.code, checks) => {
                let (code, message) = (it.diagnostic.code.text(), &it.diagnostic.message);
                return fault(pipeline, format!("equal, but {code} {message}\n{}", grammar::print(other)));
            }
            Err(it) => count(format!("order {}", it.diagnostic.code.text())),
        }
    }
    // Outputs of which ranks have different copies are not compared.
    let is_compared = agree(&original, &original) == Some(true);
    for _ in 0..3 {
        let mut changed = program.clone();
        let Some(kind) = change(&mut changed, &mut rng) else { continue };
        let text = changed.text().0;
        let Some((other, _)) = read(&text) else { continue };
        let is_certified = certify(&original, &other, &settings).is_ok();
        let codes: Vec<&str> = faults(&changed, rules, false).iter().map(|it| it.code).collect();
        let is_wrong = codes.contains(&"E0701") && !rules.pairs
            || is_compared && agree(&original, &other) == Some(false);
        if is_certified && is_wrong {
            return fault(pipeline, format!("certified after {kind}, but {codes:?}:\n{text}"));
        }
        count(format!(
            "changed, {}",
            if is_wrong {
                "refused"
            } else if is_certified {
                "certified"
            } else {
                "open"
            }
        ));
    }
    None
}

/// Returns whether a difference of the orders that the certifier believes and the checker examines may explain a refusal.
fn is_believed(code: &Code, checks: Checks) -> bool {
    *code != Code::ProgramsDiffer && checks.p2p != Some(hir_plan::sync::P2pQueues::Communicator)
}

/// Returns a random pass for the program of all ranks, sometimes with options.
fn pass(rng: &mut Rng) -> &'static str {
    let plain = PASSES.iter().map(|it| it.name);
    let all = if rng.below(4) == 0 { PASSES_WITH_OPTIONS.to_vec() } else { plain.collect() };
    let all: Vec<&str> = all.into_iter().filter(|it| !it.starts_with("specialize-rank")).collect();
    rng.choose_cloned(&all)
}

fn read(text: &str) -> Option<(ir::Program, LineIndex)> {
    let (mut programs, diagnostics) = grammar::read(text);
    let program = programs.pop().filter(|_| !has_errors(&diagnostics))?;
    (!has_errors(&grammar::verify(&program))).then(|| (program, LineIndex::new(text)))
}

impl Program {
    /// Returns the program in which statements of the language compute what kernels do whose code is not in the text: row by row.
    pub fn without_kernels(mut self) -> Self {
        for node in std::mem::take(&mut self.nodes) {
            match node {
                Node::One(Item { ranks, stream, stmt: Stmt::Compute { out, from } })
                    if self.is_opaque(&out, &from) =>
                {
                    let stmts: Vec<Stmt> = out.iter().flat_map(|it| self.by_rows(*it, &from)).collect();
                    self.nodes.extend(stmts.into_iter().map(|stmt| Node::One(Item { ranks, stream, stmt })));
                }
                node => self.nodes.push(node),
            }
        }
        self
    }

    fn by_rows(&mut self, out: usize, from: &[usize]) -> Vec<Stmt> {
        let mut all = Vec::new();
        let outs = self.rows(out, &mut all);
        let rows: Vec<usize> = from.iter().flat_map(|it| self.rows(*it, &mut all)).collect();
        for out in outs {
            for (at, row) in rows.iter().enumerate() {
                let from = if at == 0 { vec![*row] } else { vec![out, *row] };
                all.push(Stmt::Compute { out: vec![out], from });
            }
        }
        all
    }

    /// Returns views of the rows of a tensor, or the tensor itself.
    fn rows(&mut self, of: usize, all: &mut Vec<Stmt>) -> Vec<usize> {
        if self.tensors[of].0 != Shape::Wide {
            return vec![of];
        }
        let row = |(index, out)| Stmt::Select { out, of, index: Scalar::Const(index) };
        let first = self.tensors.len();
        self.tensors.extend((0..self.ranks).map(|_| (Shape::Part, Role::View)));
        let views: Vec<usize> = (first..self.tensors.len()).collect();
        all.extend(views.iter().copied().enumerate().map(row));
        views
    }
}
