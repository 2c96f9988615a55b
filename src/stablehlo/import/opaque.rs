//! Calls of libraries and of Python: hir knows what they read and write, and not what they compute.

use grammar::{Op, Operand, attr, token::TokenKind};
use hir_ir::build;
use logos::Logos;

use super::{Importer, Results, errors};
use crate::{
    sharding::UnsupportedSharding,
    tree::{Attribute, Operation, Type},
    value::Value,
};

impl<'m, 's> Importer<'m, 's> {
    /// Imports a call as the launch of a kernel that the text does not contain: it is checked, and not run.
    pub(crate) fn custom_call(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        let stated = op.attribute(&["call_target_name"]).or(op.positional.first());
        let Some(Attribute::String(target) | Attribute::Symbol(target)) = stated else {
            return Err(self.missing(op, "call_target_name"));
        };
        if matches!(*target, "Sharding" | "SPMDFullToShardShape" | "SPMDShardToFullShape") {
            return Err(self.gspmd());
        }
        if target.starts_with("xla.sdy.") {
            let why = UnsupportedSharding::CallOfXla((*target).to_owned());
            return Err(errors::unsupported_sharding(op.span, &why));
        }
        if let Some(found) = self.lapack(op, target, &operands)? {
            return Ok(found);
        }
        let axes = operands.iter().fold(0, |axes, it| axes | it.axes());
        let mut inputs: Vec<Operand> = Vec::with_capacity(operands.len());
        let is_token = |at: usize| op.operand_types.get(at).is_some_and(Type::is_token);
        for (_, it) in operands.into_iter().enumerate().filter(|(at, _)| !is_token(*at)) {
            let it = self.stored(it);
            inputs.push(self.on_axes(it, axes).id.into());
        }
        let (mut outputs, mut results) = (Vec::new(), Vec::new());
        for at in 0..op.result_types.len() {
            if op.result_types[at].is_token() {
                results.push(Value::token());
                continue;
            }
            let ty = self.result_type(op, at)?;
            let it = self.tensor(axes, &ty.shape, ty.dtype);
            self.out.allocate(it.id);
            outputs.push(Operand::Tensor(it.id));
            results.push(Value::Tensor(it));
        }
        let launch = build::op(Op::LaunchKernel)
            .with(attr::INPUTS, inputs)
            .with(attr::OUTPUTS, outputs)
            .with(attr::KERNEL, kernel_name(target));
        self.out.add(launch);
        Ok(results)
    }

    pub(crate) fn token(&mut self, _: &'m Operation<'s>, _: Vec<Value>) -> Results {
        Ok(vec![Value::token()])
    }
}

/// Returns a name of Host IR for the target of a call.
fn kernel_name(target: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let name: String = target.chars().map(|it| if is_plain(it) { it } else { '_' }).collect();
    if TokenKind::lexer(&name).eq([Ok(TokenKind::Word)]) { name } else { format!("_{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_becomes_a_word() {
        for (target, name) in [
            ("xla_python_cpu_callback", "xla_python_cpu_callback"),
            ("cublas$gemm", "cublas_gemm"),
            ("1x", "_1x"),
            ("", "_"),
            ("T0", "_T0"),
            ("Stream", "_Stream"),
            ("FOR", "_FOR"),
            ("in", "_in"),
        ] {
            assert_eq!(kernel_name(target), name);
            assert!(TokenKind::lexer(name).eq([Ok(TokenKind::Word)]), "{name}");
        }
    }
}
