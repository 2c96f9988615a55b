//! Resolves the definitions of scalars and sorts them.

use std::collections::HashMap;

use super::Resolver;
use crate::{
    ast,
    codes::Code,
    diagnostic::Diagnostic,
    ir::{SectionPart, SymbolId},
    text::expr_text,
};

impl<'s> Resolver<'s> {
    pub(super) fn resolve_definitions(&mut self, stmts: &[ast::Stmt<'s>]) {
        for stmt in stmts {
            let scalar = match &stmt.kind {
                ast::StmtKind::Assign { outs, value } => match outs.as_slice() {
                    [ast::Expr { kind: ast::ExprKind::Word(name), span }] => Some((*name, *span, value)),
                    _ => None,
                },
                ast::StmtKind::For { .. }
                | ast::StmtKind::If { .. }
                | ast::StmtKind::Post { .. }
                | ast::StmtKind::Wait(_)
                | ast::StmtKind::Group { .. }
                | ast::StmtKind::Call(_) => None,
            };
            let Some((name, span, value)) = scalar else {
                self.error(
                    Code::Syntax,
                    stmt.span,
                    "this is not the definition of a scalar",
                    "expected `name = expression;`",
                );
                continue;
            };
            if let Some(value) = self.scalar(value) {
                let symbol = self.program.intern_symbol(self.current_unit, name, span);
                self.program.spans.add_section_part(stmt.span, SectionPart::Definition(symbol));
                let earlier = self.program.definitions.insert(symbol, value);
                let first = self.definition_spans.insert(symbol, span);
                let text = |it| expr_text(&self.program, it);
                if let (Some(earlier), Some(first)) = (earlier, first)
                    && text(earlier) != text(value)
                {
                    self.stated_twice(&format!("`{name}`"), [first, span]);
                }
            }
        }
    }

    /// Sorts definitions so that each follows the definitions that it uses, and otherwise keeps the order of
    /// the text. Reports cycles.
    pub(super) fn sort_definitions(&mut self) {
        let definitions = std::mem::take(&mut self.program.definitions);
        let mut state: HashMap<SymbolId, bool> = HashMap::new();
        let mut ordered = indexmap::IndexMap::with_capacity(definitions.len());
        for root in definitions.keys() {
            // Depth-first search without recursion: a symbol is entered, and left when all symbols that it
            // uses are left.
            let mut stack = vec![(*root, false)];
            while let Some((symbol, leaving)) = stack.pop() {
                let Some(value) = definitions.get(&symbol) else { continue };
                if leaving {
                    state.insert(symbol, true);
                    ordered.insert(symbol, *value);
                    continue;
                }
                match state.get(&symbol) {
                    Some(true) => continue,
                    Some(false) => {
                        let name = self.program.symbols[symbol].clone();
                        let path = stack.iter().filter(|it| it.1).map(|it| it.0);
                        let cycle: Vec<&str> = path
                            .skip_while(|it| *it != symbol)
                            .chain([symbol])
                            .map(|it| self.program.symbols[it].as_str())
                            .collect();
                        let own = self.definition_spans.get(&symbol).copied();
                        let span = own.unwrap_or_else(|| self.program.symbol_span(symbol));
                        let message = format!("the definition of `{name}` depends on itself");
                        let it = Diagnostic::new(Code::CircularDefinition, span, message, cycle_text(&cycle));
                        self.diagnostics.push(it.help(
                            "define one of them without the others, or remove its definition and use `--set`",
                        ));
                        continue;
                    }
                    None => (),
                }
                state.insert(symbol, false);
                stack.push((symbol, true));
                let mut used = Vec::new();
                self.program.collect_symbols(*value, &mut used);
                for it in used.into_iter().rev().filter(|it| definitions.contains_key(it)) {
                    if state.get(&it) != Some(&true) {
                        stack.push((it, false));
                    }
                }
            }
        }
        self.program.definitions = ordered;
    }
}

/// Formats a cycle of definitions: `` `i5` uses `i6`, which uses `i5` ``.
fn cycle_text(cycle: &[&str]) -> String {
    match cycle {
        [first, rest @ ..] if !rest.is_empty() => {
            let uses: Vec<String> = rest.iter().map(|it| format!("uses `{it}`")).collect();
            format!("`{first}` {}", uses.join(", which "))
        }
        _ => "this definition is circular".to_owned(),
    }
}
