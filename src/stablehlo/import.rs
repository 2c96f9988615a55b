//! Makes a program of a module: walks over the operations of `main`, with the functions that it calls and the iterations of its
//! loops in place, and writes statements for each of them.
//!
//! Global tensors stay global: the program is not lowered, and its passes decide what to communicate. In a manual region
//! (`shard_map`) each value is the shards of all devices, with one device axis for each mesh axis along which the shards may
//! differ; so each collective is a resharding of that axis, and passes see it like any other.

mod bits;
mod collective;
mod complex;
mod complex_functions;
mod constant;
mod control;
mod convolution;
mod data_loop;
mod device_numbers;
mod dot;
mod elementwise;
mod errors;
mod extreme;
mod fold;
mod fourier;
mod gather;
mod index;
mod lift;
mod linear_algebra;
mod manual;
mod numbers;
mod opaque;
mod operators;
mod pad;
mod pieces;
mod points;
mod reduce;
mod scatter;
mod select_and_scatter;
mod selection;
mod shape;
mod sort;
mod tensors;
mod types;
mod uniform;
mod window;

use std::sync::Arc;

use grammar::{Code, Diagnostic, ExprId, Op, Program, Span, TensorId, ir};
use hir_ir::build::{ProgramBuilder, apply};
use rustc_hash::{FxHashMap, FxHashSet};

use lift::Combiner;
use operators::Import;
use uniform::Choice;

use crate::{
    sharding::{self, Mesh},
    tree::{Attribute, Block, Module, Operation, Type, Use},
    value::{AxisSet, Tensor, Value},
};

pub use operators::OPERATORS;
pub(crate) use operators::is_read;

/// The greatest number of operations and statements, with those of called functions and iterations.
const MAX_SIZE: usize = 1_000_000;

/// The greatest depth of calls.
const MAX_CALLS: usize = 200;

/// The greatest number of dimensions of a tensor.
const MAX_RANK: usize = 32;

/// The result of importing an operation.
pub(crate) type Imported<T> = Result<T, Box<Diagnostic>>;

/// The values that stand for the results of an operation.
pub(crate) type Results = Imported<Vec<Value>>;

/// A manual region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// The mesh of its shardings.
    mesh: usize,
    /// Its manual axes, one bit for each axis of the mesh.
    manual: AxisSet,
}

/// The state of the import.
#[derive(Clone, Default)]
pub(crate) struct Importer<'m, 's> {
    functions: FxHashMap<&'s str, &'m Operation<'s>>,
    meshes: Vec<Mesh>,
    /// The values of the functions being imported, by name, innermost scope last. A function begins at `frame`.
    scopes: Vec<FxHashMap<&'s str, Vec<Value>>>,
    frame: usize,
    calls: usize,
    visited: usize,
    region: Option<Region>,
    out: ProgramBuilder,
    /// The mesh of tensors outside of manual regions: none, so that passes choose it.
    no_mesh: Arc<ir::Mesh>,
    /// Tensors that a matrix product or a reduction computes and whose sharding nothing states yet.
    unsharded_sums: FxHashSet<TensorId>,
    /// Tensors whose elements are their indices in a dimension, and that dimension.
    iotas: FxHashMap<TensorId, usize>,
    /// Whether the module runs on one device.
    has_one_device: bool,
    /// The values of the numbers that the host computes, one for each device.
    device_values: FxHashMap<ExprId, Arc<[i64]>>,
    /// The parts of complex tensors, and whether the program stores the tensor.
    complex_parts: FxHashMap<TensorId, ([Value; 2], bool)>,
    /// The tensors that updates put together, of these pieces.
    joins: FxHashMap<TensorId, pieces::Pieces>,
    /// Numbers than which integers of a tensor are not greater.
    at_most: FxHashMap<TensorId, i64>,
    /// Whether an operation is imported for a part of complex numbers.
    has_parts: bool,
    /// The branches around the operation, outermost first.
    choices: Vec<Choice>,
    /// The places of loops that no constant bounds.
    unbounded: FxHashSet<Span>,
}

/// Imports a module.
///
/// # Errors
/// Returns an error for the first operation that hir cannot import.
pub(crate) fn import(module: &Module<'_>) -> Imported<Program> {
    let mut importer = Importer {
        has_one_device: matches!(
            Attribute::find(&module.attributes, "mhlo.num_partitions"),
            Some(Attribute::Int(1))
        ),
        ..Importer::default()
    };
    for op in &module.ops {
        match op.name {
            "func.func" => {
                if let Some(Attribute::String(name)) = op.attribute(&["sym_name"]) {
                    importer.functions.insert(name.trim_matches('"'), op);
                }
            }
            "sdy.mesh" => {
                let mesh = Mesh::read(op).map_err(|it| errors::unsupported_sharding(op.span, &it))?;
                importer.meshes.push(mesh);
            }
            _ => {
                importer.out.span = op.span;
                return Err(importer.unsupported(op.name));
            }
        }
    }
    sharding::split_axes(&mut importer.meshes, &module.ops);
    let main = importer.functions.get("main").copied().ok_or_else(|| {
        let it = Diagnostic::new(
            Code::BadModule,
            Span::default(),
            "the module has no function `main`",
            "expected `func.func public @main`",
        );
        Box::new(it.help("`jax.jit(f).lower(*args).as_text()` writes one"))
    })?;
    importer.main(main)
}

impl<'m, 's> Importer<'m, 's> {
    // ---- functions and blocks

    fn main(mut self, main: &'m Operation<'s>) -> Imported<Program> {
        self.out.span = main.span;
        let Some(body) = main.regions.first() else { return Err(self.missing(main, "body")) };
        let stated = main.attribute(&["arg_attrs"]);
        let mut inputs = Vec::new();
        let mut scope = FxHashMap::default();
        for (at, argument) in body.arguments.iter().enumerate() {
            self.out.span = argument.span;
            if argument.ty.is_token() {
                scope.insert(argument.name, vec![Value::token()]);
                continue;
            }
            let ty = self.tensor_type(&argument.ty)?.clone();
            let attributes = generic_attributes(stated, at).unwrap_or(&argument.attributes);
            if Attribute::find(attributes, "mhlo.sharding").is_some() {
                return Err(self.gspmd());
            }
            let sharding = self.sharding(Attribute::find(attributes, "sdy.sharding"), &ty.shape)?;
            let sharding = sharding.or_else(|| self.replicated(&ty.shape));
            let id = self.declare_sharded(&ty.shape, ty.dtype, sharding.as_ref());
            inputs.push(id);
            let value = Tensor { id, axes: 0, shape: ty.shape, dtype: ty.dtype };
            scope.insert(argument.name, vec![Value::Tensor(value)]);
        }
        self.scopes.push(scope);
        let stated = main.attribute(&["res_attrs"]);
        let is_old = |own: &[(&str, Attribute<'_>)]| Attribute::find(own, "mhlo.sharding").is_some();
        let mut generic = (0..).map_while(|at| generic_attributes(stated, at));
        if generic.any(is_old) || main.result_attributes.iter().any(|it| is_old(it)) {
            self.out.span = main.span;
            return Err(self.gspmd());
        }
        let results = self.block(body)?;
        self.check_function(main, &results)?;
        let mut outputs: Vec<TensorId> = Vec::new();
        let is_token = |at: usize| types::results_of(main).get(at).is_some_and(Type::is_token);
        for (at, value) in results.into_iter().enumerate().filter(|(at, _)| !is_token(*at)) {
            let own = main.result_attributes.get(at).map(Vec::as_slice);
            let attributes = generic_attributes(stated, at).or(own).unwrap_or(&[]);
            let mut tensor = self.stored(value);
            if let Some(sharding) =
                self.sharding(Attribute::find(attributes, "sdy.sharding"), &tensor.shape)?
            {
                tensor = self.constrained(tensor, &sharding);
            }
            if inputs.contains(&tensor.id) || outputs.contains(&tensor.id) {
                let mesh = Arc::clone(self.out.mesh(tensor.id));
                let dims = self.out.dims(tensor.id).iter().filter(|it| !it.is_reduced).cloned().collect();
                let dtype = tensor.dtype.part().unwrap_or(tensor.dtype);
                let copy = self.out.tensor(dims, dtype, mesh);
                self.out.assign(copy, apply(Op::Set, [tensor.id]));
                tensor.id = copy;
            }
            outputs.push(tensor.id);
        }
        Ok(self.out.finish(&inputs, &outputs))
    }

    /// Imports the operations of a block and returns the operands of its terminator.
    fn block(&mut self, block: &'m Block<'s>) -> Results {
        for (at, op) in block.ops.iter().enumerate() {
            self.out.span = op.span;
            self.visited += 1;
            if self.visited > MAX_SIZE || self.out.size() > MAX_SIZE {
                let message = format!("the module unrolls to more than {MAX_SIZE} operations");
                let it = Diagnostic::new(Code::UnboundedLoop, op.span, message, "the limit was reached here");
                return Err(Box::new(it.help("hir imports every iteration and every call: lower the function for fewer iterations or layers")));
            }
            if operators::is_terminator(op.name) {
                if at + 1 < block.ops.len() {
                    return Err(self.bad_module(
                        format!("`{}` is not the last operation of its region", op.name),
                        "expected `}` behind it",
                    ));
                }
                let values = op.operands.iter().map(|it| self.value(it)).collect::<Imported<Vec<_>>>()?;
                self.check_operands(op, &values)?;
                return Ok(values);
            }
            let values = self.operation(op)?;
            self.bind(op, values)?;
        }
        Err(self.bad_module("the region has no terminator", "expected a `return` behind it"))
    }

    fn operation(&mut self, op: &'m Operation<'s>) -> Results {
        let Some(import) = operators::import(op.name) else {
            return Err(self.unsupported(op.name));
        };
        if op.attribute(&["mhlo.sharding"]).is_some() {
            return Err(self.gspmd());
        }
        let operands = op.operands.iter().map(|it| self.value(it)).collect::<Imported<Vec<_>>>()?;
        self.check_operands(op, &operands)?;
        if operators::combines(op.name) {
            self.check_combination(op, &operands)?;
        }
        let results = self.imported(op, import, operands)?;
        match op.attribute(&["sdy.sharding"]) {
            Some(stated) => self.with_shardings(op, stated, results),
            None => Ok(results),
        }
    }

    fn imported(&mut self, op: &'m Operation<'s>, import: Import<'m, 's>, operands: Vec<Value>) -> Results {
        if !operators::keeps_pieces(op.name) {
            operands.iter().for_each(|it| self.store(it));
        }
        let results = if Self::is_complex(op, &operands) {
            self.complex_operation(op, import, operands)
        } else {
            import(self, op, operands)
        };
        self.in_few_bits(op, results?)
    }

    /// Imports an operation of a region that combines elements, for all elements at a time.
    fn elementwise(&mut self, op: &'m Operation<'s>, operands: Vec<Value>) -> Results {
        match operators::import(op.name) {
            // In a region with axes that are not manual, JAX states that a number has no sharding.
            _ if op.name == "sdy.sharding_constraint" => Ok(operands),
            _ if matches!(op.name, "call" | "func.call" | "stablehlo.composite") => {
                let function = self.callee(op)?;
                let Some(body) = function.regions.first() else { return Err(self.missing(function, "body")) };
                self.in_call(|it| it.combined(Combiner::Region(body), operands))
            }
            Some(import) if operators::is_elementwise(op.name) => self.imported(op, import, operands),
            _ => Err(self.unsupported_form(op, "in a region that combines elements")),
        }
    }

    /// Gives the values of an operation their names.
    fn bind(&mut self, op: &Operation<'s>, values: Vec<Value>) -> Imported<()> {
        let count: usize = op.results.iter().map(|it| it.1).fold(0, usize::saturating_add);
        if count != values.len() {
            let message = format!("`{}` has {} results, of which {count} are named", op.name, values.len());
            return Err(self.bad_module(message, "expected a name for each result"));
        }
        if op.result_types.len() != count {
            let message = format!(
                "`{}` states another number of types than of results: {}, not {count}",
                op.name,
                op.result_types.len()
            );
            return Err(self.bad_module(message, "expected a type for each result"));
        }
        for (value, ty) in values.iter().zip(&op.result_types) {
            let stated = self.tensor_type(ty)?;
            if value.ty() != (&stated.shape[..], stated.dtype) {
                let own = types::type_of(value);
                let message = format!("`{}` has a result `{own}`, not `{stated}`", op.name);
                return Err(self.bad_module(message, "its type does not follow from its operands"));
            }
        }
        let mut values = values.into_iter();
        let Some(scope) = self.scopes.last_mut() else { return Ok(()) };
        for (name, count) in &op.results {
            scope.insert(name, values.by_ref().take(*count).collect());
        }
        Ok(())
    }

    /// Returns the value of a name.
    fn value(&self, it: &Use<'s>) -> Imported<Value> {
        let scopes = self.scopes.get(self.frame..).unwrap_or_default();
        let found = scopes.iter().rev().find_map(|scope| scope.get(it.name));
        found.and_then(|values| values.get(it.index)).cloned().ok_or_else(|| {
            let message = format!("`{}` has no value here", it.name);
            let it =
                Diagnostic::new(Code::BadModule, it.span, message, "expected a value that is defined before");
            Box::new(it.help("the text was edited or damaged: write it again with `as_text()`"))
        })
    }

    /// Imports a region whose arguments have these values.
    fn region_with(&mut self, block: &'m Block<'s>, values: Vec<Value>) -> Results {
        if block.arguments.len() != values.len() {
            let message =
                format!("a region has {} arguments for {} values", block.arguments.len(), values.len());
            return Err(self.bad_module(message, "expected as many arguments as values"));
        }
        self.check_arguments(block, &values)?;
        let names = block.arguments.iter().map(|it| it.name);
        self.scopes.push(names.zip(values).map(|(name, value)| (name, vec![value])).collect());
        let span = self.out.span;
        let results = self.block(block);
        self.out.span = span;
        self.scopes.pop();
        results
    }
}

/// Returns the attributes of an argument or a result in the generic spelling.
fn generic_attributes<'a, 's>(
    stated: Option<&'a Attribute<'s>>,
    at: usize,
) -> Option<&'a [(&'s str, Attribute<'s>)]> {
    match stated? {
        Attribute::Array(all) => match all.get(at)? {
            Attribute::Dictionary(entries) => Some(entries),
            _ => Some(&[]),
        },
        _ => None,
    }
}
