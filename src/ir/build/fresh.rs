//! New names, axes and tensors for a program that exists.
//!
//! Invariant: a number returned here is not used by anything else in the program.

use grammar::{
    Arena, Axis, AxisId, AxisKind, Domains, ExprId, Memory, ParallelType, Program, Span, Stream, StreamId,
    SymbolId, Tensor, TensorId, Transform, free_number,
};
use rustc_hash::FxHashMap;

/// The next free number of each kind of name.
pub struct IrBuilder {
    tensor: u32,
    axis: u32,
    work: u32,
    scalar: u32,
    stream: u32,
}

impl IrBuilder {
    /// Returns a builder whose numbers the program does not use.
    pub fn of(program: &Program) -> Self {
        let scalar = |name: &String| name.strip_prefix('i').and_then(|it| it.parse().ok());
        let named = |stream: &Stream| match stream {
            Stream::Named(number) => Some(*number),
            Stream::Index(_) => None,
        };
        let units = program.units.iter().map(|(_, it)| it.number);
        let works = program.stmts.iter().filter_map(|(_, it)| it.op()?.number).chain(units);
        Self {
            tensor: free_number(values(&program.tensors).map(|it| it.number)),
            axis: free_number(values(&program.axes).map(|it| it.number)),
            work: free_number(works),
            scalar: free_number(values(&program.symbols).filter_map(scalar)),
            stream: free_number(values(&program.streams).filter_map(named)),
        }
    }

    /// Creates a serial axis.
    pub fn axis(&mut self, program: &mut Program, extent: ExprId) -> AxisId {
        self.axis_of(program, AxisKind::Iteration, ParallelType::Serial, extent)
    }

    /// Creates an axis of any kind.
    pub fn axis_of(
        &mut self,
        program: &mut Program,
        kind: AxisKind,
        parallel: ParallelType,
        extent: ExprId,
    ) -> AxisId {
        let number = next(&mut self.axis);
        program.axes.push(Axis::new(kind, parallel, number, extent))
    }

    /// Copies an axis under a new number.
    pub fn axis_like(&mut self, program: &mut Program, axis: AxisId) -> AxisId {
        let copy = Axis { number: next(&mut self.axis), ..program.axes[axis].clone() };
        program.axes.push(copy)
    }

    /// Creates a tensor with the element type and mesh of `like` and the given domains.
    pub fn tensor_like(
        &mut self,
        program: &mut Program,
        like: TensorId,
        memory: Memory,
        loops: Vec<AxisId>,
        domains: Domains,
    ) -> TensorId {
        let Tensor { dtype, mesh, unit, .. } = program.tensors[like].clone();
        let (span, number) = (program.tensor_span(like), next(&mut self.tensor));
        let positions = String::new();
        program.add_tensor(
            Tensor { number, memory, dtype, loop_domain: loops, positions, mesh, unit, domains },
            span,
        )
    }

    /// Copies a tensor under a new number, with axes of its own.
    pub fn tensor_copy(&mut self, program: &mut Program, like: TensorId) -> TensorId {
        let Tensor { memory, loop_domain: loops, domains, .. } = program.tensors[like].clone();
        let mut known: FxHashMap<AxisId, AxisId> = FxHashMap::default();
        let mut copy = |program: &mut Program, axis: AxisId| {
            *known.entry(axis).or_insert_with(|| self.axis_like(program, axis))
        };
        let loops = loops.into_iter().map(|axis| copy(program, axis)).collect();
        let logical = domains.logical.into_iter().map(|axis| copy(program, axis)).collect();
        let allocation = domains.allocation;
        let allocation =
            allocation.map(|axes| axes.into_iter().map(|axis| copy(program, axis)).collect::<Vec<_>>());
        let mut transforms = domains.transforms;
        for transform in &mut transforms {
            let axes = match transform {
                Transform::Split { input, outer, inner, .. } => vec![input, outer, inner],
                Transform::Merge { outer, inner, output } => vec![outer, inner, output],
                Transform::Swizzle1D { input, output } => vec![input, output],
            };
            axes.into_iter().for_each(|axis| *axis = copy(program, *axis));
        }
        let domains = Domains { logical, transforms, allocation };
        self.tensor_like(program, like, memory, loops, domains)
    }

    /// Returns a new number for a communication.
    pub fn work(&mut self) -> u32 {
        next(&mut self.work)
    }

    /// Creates a named integer, such as `i84`.
    pub fn scalar(&mut self, program: &mut Program) -> SymbolId {
        let number = next(&mut self.scalar);
        program.intern_symbol(None, &format!("i{number}"), Span::default())
    }

    /// Creates a named stream for GetCurrentStream.
    pub fn stream(&mut self, program: &mut Program) -> StreamId {
        program.streams.push(Stream::Named(next(&mut self.stream)))
    }
}

fn next(number: &mut u32) -> u32 {
    *number += 1;
    *number - 1
}

fn values<I: grammar::arena::Id, T>(arena: &Arena<I, T>) -> impl Iterator<Item = &T> {
    arena.iter().map(|(_, it)| it)
}
