//! The text of scalar expressions, iteration domains, tensors and streams.

use std::fmt::{Display, Write};

use crate::{
    dtype::DType,
    ir::{
        Axis, AxisId, AxisKind, Domains, Expr, ExprId, Function, ParallelType, Program, Stream, StreamId,
        TensorId, Transform,
    },
};

/// Returns a scalar expression in the form that it has inside other text.
pub fn expr_text(program: &Program, expr: ExprId) -> String {
    Inline(program, expr).to_string()
}

/// Returns the text of an iteration domain, such as `istreamIdx10{8}`.
pub fn axis_text(program: &Program, axis: AxisId) -> String {
    AxisText(program, &program.axes[axis]).to_string()
}

/// Returns the text of an iteration domain with another number.
pub(crate) fn axis_text_with_number(program: &Program, axis: AxisId, number: u32) -> String {
    AxisText(program, &Axis { number, ..program.axes[axis].clone() }).to_string()
}

/// Returns the full text of a tensor, such as `T0_g_float[iS0{i0}] (DeviceMesh{0 1})`.
pub fn tensor_text(program: &Program, tensor: TensorId) -> String {
    let it = &program.tensors[tensor];
    let mut out = format!("T{}_{}", it.number, it.memory.name());
    if let Some(dtype) = it.dtype {
        let _ = write!(out, "_{dtype}");
    }
    out.push('[');
    write_separated(&mut out, it.loop_domain.iter().map(|axis| AxisText(program, &program.axes[*axis])));
    out.push(']');
    if !it.positions.is_empty() {
        let _ = write!(out, " {}", it.positions);
    }
    if !it.mesh.is_empty() {
        out.push_str(" (DeviceMesh");
        mesh(&mut out, &it.mesh.shape, &it.mesh.devices);
        out.push(')');
    }
    out
}

/// Returns the text of a stream, such as `Stream s0`, `Stream i535` or
/// `Stream ( streamIdx % numberOfStreams )`.
pub fn stream_text(program: &Program, stream: StreamId) -> String {
    format!("Stream {}", stream_operand_text(program, stream))
}

/// Returns what follows `Stream` in the text of a stream.
pub fn stream_operand_text(program: &Program, stream: StreamId) -> String {
    match &program.streams[stream] {
        Stream::Named(number) => format!("s{number}"),
        // A sign after `Stream` would not be read as part of it.
        Stream::Index(index) if program.constant(*index).is_some_and(|it| it < 0) => {
            format!("( {} )", Inline(program, *index))
        }
        Stream::Index(index) => expr_text(program, *index),
    }
}

/// Returns the clauses of a tensor's line in `Domains:`.
pub fn domain_clauses(program: &Program, tensor: TensorId) -> String {
    let Domains { logical, transforms, allocation } = &program.tensors[tensor].domains;
    let list = |axes: &[AxisId]| {
        let mut text = String::new();
        write_separated(&mut text, axes.iter().map(|axis| axis_text(program, *axis)));
        text
    };
    let mut clauses = vec![format!("logical({})", list(logical))];
    clauses.extend(transforms.iter().map(|it| match it {
        Transform::Split { input, factor, outer_split, outer, inner } => format!(
            "{}({}, {}) -> ({})",
            if *outer_split { "outer_split" } else { "split" },
            axis_text(program, *input),
            Inline(program, *factor),
            list(&[*outer, *inner])
        ),
        Transform::Merge { outer, inner, output } => {
            format!("merge({}) -> ({})", list(&[*outer, *inner]), axis_text(program, *output))
        }
        Transform::Swizzle1D { input, output } => {
            format!("swizzle1d({}) -> ({})", axis_text(program, *input), axis_text(program, *output))
        }
    }));
    clauses.extend(allocation.iter().map(|axes| format!("allocation({})", list(axes))));
    clauses.join(", ")
}

fn mesh(out: &mut String, shape: &[usize], devices: &[usize]) {
    out.push('{');
    match shape {
        [] | [_] => {
            for (at, device) in devices.iter().enumerate() {
                let _ = write!(out, "{}{device}", if at == 0 { "" } else { " " });
            }
        }
        [slowest, rest @ ..] => {
            devices.chunks(devices.len() / (*slowest).max(1)).for_each(|row| mesh(out, rest, row));
        }
    }
    out.push('}');
}

/// Writes the items separated by `, `.
pub(crate) fn write_separated(out: &mut String, items: impl Iterator<Item = impl Display>) {
    for (at, item) in items.enumerate() {
        let _ = write!(out, "{}{item}", if at == 0 { "" } else { ", " });
    }
}

/// An expression in which every operation is in parentheses, as nvFuser prints it inline.
pub(crate) struct Inline<'p>(pub(crate) &'p Program, pub(crate) ExprId);

impl Display for Inline<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0.exprs[self.1] {
            Expr::Prefix(..) | Expr::Infix(..) | Expr::Call(..) => {
                write!(f, "( {} )", Unparenthesized(self.0, self.1))
            }
            Expr::Int(_) | Expr::Bool(_) | Expr::Float(..) | Expr::Symbol(_) => {
                Unparenthesized(self.0, self.1).fmt(f)
            }
        }
    }
}

/// An expression without its outermost parentheses.
pub(crate) struct Unparenthesized<'p>(pub(crate) &'p Program, pub(crate) ExprId);

impl Display for Unparenthesized<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inline = |id: &ExprId| Inline(self.0, *id);
        match &self.0.exprs[self.1] {
            Expr::Int(value) => write!(f, "{value}"),
            Expr::Bool(value) => write!(f, "{value}"),
            // A bare literal is a double; with a type before it, it would be read back as a conversion.
            Expr::Float(DType::Double, text) if text.parse::<f64>().is_ok_and(f64::is_finite) => {
                write!(f, "double({text})")
            }
            Expr::Float(dtype, text) => write!(f, "{dtype}({text})"),
            Expr::Symbol(symbol) => f.write_str(&self.0.symbols[*symbol]),
            Expr::Prefix(op, operand) => write!(f, "{op}{}", inline(operand)),
            Expr::Infix(op, lhs, rhs) => write!(f, "{} {op} {}", inline(lhs), inline(rhs)),
            Expr::Call(function, args) => {
                let mut list = String::new();
                write_separated(&mut list, args.iter().map(inline));
                match (function, args.as_slice()) {
                    (Function::Element, [array, at]) => write!(f, "({})[{}]", inline(array), inline(at)),
                    (Function::Member(name), [whole]) => write!(f, "({}){name}", inline(whole)),
                    (Function::Array, _) => write!(f, "{{{list}}}"),
                    _ => write!(f, "{function}({list})"),
                }
            }
        }
    }
}

struct AxisText<'p>(&'p Program, &'p Axis);

impl Display for AxisText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let AxisText(program, axis) = self;
        let letter =
            AxisKind::LETTERS.iter().find(|(_, kind)| *kind == axis.kind).map_or("i", |(text, _)| text);
        let word =
            ParallelType::WORDS.iter().find(|(_, it)| *it == axis.parallel).map_or("S", |(text, _)| text);
        write!(f, "{letter}{word}{}", axis.number)?;
        if axis.is_ragged {
            return write!(f, "Ragged{{extents={}}}{}", Inline(program, axis.extent), axis.suffix);
        }
        f.write_str("{")?;
        for bound in [axis.start, axis.stop].into_iter().flatten() {
            write!(f, "{} : ", Inline(program, bound))?;
        }
        write!(f, "{}", Inline(program, axis.extent))?;
        if let Some(expanded) = axis.expanded {
            write!(f, " ex {}", Inline(program, expanded))?;
        }
        write!(f, "}}{}", axis.suffix)
    }
}
