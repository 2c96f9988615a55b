//! Makes a program of a module: walks over the operations of `main`, with the functions that it calls and the iterations of its
//! loops in place, and writes statements for each of them.
//!
//! Global tensors stay global: the program is not lowered, and its passes decide what to communicate. In a manual region
//! (`shard_map`) each value is the shards of all devices, with one device axis for each mesh axis along which the shards may
//! differ; so each collective is a resharding of that axis, and passes see it like any other.

mod collective;
mod control;
mod dot;
mod elementwise;
mod index;
mod manual;
mod reduce;
mod shape;

use grammar::{codes::Code, diagnostic::Diagnostic, dtype::DType, span::Span};
use rustc_hash::FxHashMap;

use crate::{
    operators,
    sharding::{Mesh, Sharding},
    tree::{Attribute, Block, Module, Operation, TensorType, Type, Use},
    value::{AxisSet, Scalar, Splat, Tensor, Value},
    writer::{Dim, Writer, Written},
};

/// The greatest number of operations and statements, with those of called functions and iterations.
const MAX_SIZE: usize = 1_000_000;

/// The greatest depth of calls.
const MAX_CALLS: usize = 200;

/// The greatest number of dimensions of a tensor.
const MAX_RANK: usize = 32;

/// The result of importing an operation.
pub(crate) type Imported<T> = Result<T, Box<Diagnostic>>;

/// A manual region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// The mesh of its shardings.
    mesh: usize,
    /// Its manual axes, one bit for each axis of the mesh.
    manual: AxisSet,
}

/// The state of the import.
pub(crate) struct Importer<'m, 's> {
    functions: FxHashMap<&'s str, &'m Operation<'s>>,
    meshes: Vec<Mesh>,
    /// The values of the functions being imported, by name, innermost scope last. A function begins at `frame`.
    scopes: Vec<FxHashMap<&'s str, Vec<Value>>>,
    frame: usize,
    calls: usize,
    visited: usize,
    region: Option<Region>,
    out: Writer,
    /// Tensors that a matrix product or a reduction computes and whose sharding nothing states yet.
    unsharded_sums: Vec<usize>,
}

/// Imports a module.
///
/// # Errors
/// Returns an error for the first operation that hir cannot import.
pub(crate) fn import(module: &Module<'_>) -> Imported<Written> {
    let mut importer = Importer {
        functions: FxHashMap::default(),
        meshes: Vec::new(),
        scopes: Vec::new(),
        frame: 0,
        calls: 0,
        visited: 0,
        region: None,
        out: Writer::default(),
        unsharded_sums: Vec::new(),
    };
    for op in &module.ops {
        match op.name {
            "func.func" => {
                if let Some(Attribute::String(name)) = op.attribute(&["sym_name"]) {
                    importer.functions.insert(name.trim_matches('"'), op);
                }
            }
            "sdy.mesh" => {
                let mesh = Mesh::read(op).map_err(|it| unsupported_sharding(op.span, it))?;
                importer.meshes.push(mesh);
            }
            _ => {
                importer.out.span = op.span;
                return Err(importer.unsupported(op.name));
            }
        }
    }
    let main = importer.functions.get("main").copied().ok_or_else(|| {
        let it = Diagnostic::new(Code::BadModule, Span::default(), "the module has no function `main`", "expected `func.func public @main`");
        Box::new(it.help("`jax.jit(f).lower(*args).as_text()` writes one"))
    })?;
    importer.main(main)
}

fn unsupported_sharding(span: Span, message: String) -> Box<Diagnostic> {
    let it = Diagnostic::new(Code::UnsupportedSharding, span, message, "hir cannot express this sharding");
    Box::new(it.help("use whole axes of one mesh, at most three with several devices, whose sizes divide the extents"))
}

impl<'m, 's> Importer<'m, 's> {
    // ---- errors

    /// Returns the error that hir has no import of an operator, or of this form of it.
    fn unsupported(&self, what: &str) -> Box<Diagnostic> {
        let message = format!("hir does not read `{what}`");
        let it = Diagnostic::new(Code::UnsupportedOperation, self.out.span, message, "no statement of Host IR was found for it");
        Box::new(it.help("`docs/jax.md` lists what is read; express the function by these operators"))
    }

    /// Returns the error that hir does not read a form of an operator.
    fn unsupported_form(&self, op: &Operation<'_>, form: &str) -> Box<Diagnostic> {
        let message = format!("hir does not read this form of `{}`: {form}", op.name);
        let it = Diagnostic::new(Code::UnsupportedOperation, self.out.span, message, "no statement of Host IR was found for it");
        Box::new(it.help("`docs/jax.md` lists what is read; express the function by these operators"))
    }

    /// Returns the error that the module contradicts itself.
    fn bad_module(&self, message: impl Into<String>, label: &str) -> Box<Diagnostic> {
        let it = Diagnostic::new(Code::BadModule, self.out.span, message, label);
        Box::new(it.help("the text was edited or damaged: write it again with `as_text()`"))
    }

    fn missing(&self, op: &Operation<'_>, what: &str) -> Box<Diagnostic> {
        self.bad_module(format!("`{}` has no `{what}`", op.name), "expected it here")
    }

    // ---- functions and blocks

    fn main(mut self, main: &'m Operation<'s>) -> Imported<Written> {
        self.out.span = main.span;
        let Some(body) = main.regions.first() else { return Err(self.missing(main, "body")) };
        let stated = main.attribute(&["arg_attrs"]);
        let mut inputs = Vec::new();
        let mut scope = FxHashMap::default();
        for (at, argument) in body.arguments.iter().enumerate() {
            self.out.span = argument.span;
            let ty = self.tensor_type(&argument.ty)?.clone();
            let attributes = generic_attributes(stated, at).unwrap_or(&argument.attributes);
            if let Some(it) = Attribute::find(attributes, "mhlo.sharding") {
                return Err(self.gspmd(it));
            }
            let sharding = self.sharding(Attribute::find(attributes, "sdy.sharding"), &ty.shape)?;
            let sharding = sharding.or_else(|| self.replicated(&ty.shape));
            let number = self.declare_sharded(&ty.shape, ty.dtype, sharding.as_ref());
            inputs.push(number);
            let value = Tensor { number, axes: 0, shape: ty.shape, dtype: ty.dtype };
            scope.insert(argument.name, vec![Value::Tensor(value)]);
        }
        self.scopes.push(scope);
        let results = self.block(body)?;
        let stated = main.attribute(&["res_attrs"]);
        let mut outputs: Vec<usize> = Vec::new();
        for (at, value) in results.into_iter().enumerate() {
            let own = main.result_attributes.get(at).map(Vec::as_slice);
            let attributes = generic_attributes(stated, at).or(own).unwrap_or(&[]);
            let mut tensor = self.materialized(value);
            if let Some(sharding) = self.sharding(Attribute::find(attributes, "sdy.sharding"), &tensor.shape)? {
                tensor = self.constrained(tensor, &sharding);
            }
            if inputs.contains(&tensor.number) || outputs.contains(&tensor.number) {
                let mesh = self.out.tensors[tensor.number].mesh.clone();
                let dims = self.out.tensors[tensor.number].dims.iter().filter(|it| !it.is_reduced).cloned().collect();
                let copy = self.out.declare(dims, tensor.dtype, mesh);
                self.out.statement(format!("T{copy} = Set( T{} )", tensor.number));
                tensor.number = copy;
            }
            outputs.push(tensor.number);
        }
        Ok(self.out.finish(&inputs, &outputs))
    }

    /// Returns the error for a sharding that was written before Shardy.
    fn gspmd(&self, _: &Attribute<'_>) -> Box<Diagnostic> {
        let message = "the module has shardings of GSPMD (`mhlo.sharding`)";
        let it = Diagnostic::new(Code::UnsupportedSharding, self.out.span, message, "expected `sdy.sharding`");
        Box::new(it.help("lower with `jax.config.update(\"jax_use_shardy_partitioner\", True)`, the default since JAX 0.7"))
    }

    /// Imports the operations of a block and returns the operands of its terminator.
    fn block(&mut self, block: &'m Block<'s>) -> Imported<Vec<Value>> {
        for op in &block.ops {
            self.out.span = op.span;
            self.visited += 1;
            if self.visited > MAX_SIZE || self.out.size() > MAX_SIZE {
                let message = format!("the module unrolls to more than {MAX_SIZE} operations");
                let it = Diagnostic::new(Code::UnboundedLoop, op.span, message, "the limit was reached here");
                return Err(Box::new(it.help("hir imports every iteration and every call: lower the function for fewer iterations or layers")));
            }
            if matches!(op.name, "return" | "func.return" | "stablehlo.return" | "sdy.return") {
                return op.operands.iter().map(|it| self.value(it)).collect();
            }
            let values = self.operation(op)?;
            self.bind(op, values)?;
        }
        Err(self.bad_module("the region has no terminator", "expected a `return` behind it"))
    }

    fn operation(&mut self, op: &'m Operation<'s>) -> Imported<Vec<Value>> {
        let Some(import) = operators::import(op.name) else {
            return Err(self.unsupported(op.name));
        };
        let operands = op.operands.iter().map(|it| self.value(it)).collect::<Imported<Vec<_>>>()?;
        import(self, op, operands)
    }

    /// Gives the values of an operation their names.
    fn bind(&mut self, op: &Operation<'s>, values: Vec<Value>) -> Imported<()> {
        let count: usize = op.results.iter().map(|it| it.1).fold(0, usize::saturating_add);
        if count != values.len() {
            let message = format!("`{}` has {} results, of which {count} are named", op.name, values.len());
            return Err(self.bad_module(message, "expected a name for each result"));
        }
        for (value, ty) in values.iter().zip(&op.result_types) {
            if let Type::Tensor(ty) = ty
                && (value.shape() != ty.shape || value.dtype() != ty.dtype)
            {
                let message = format!("`{}` has a result of shape {:?}, not {:?}", op.name, value.shape(), ty.shape);
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
            let it = Diagnostic::new(Code::BadModule, it.span, message, "expected a value that is defined before");
            Box::new(it.help("the text was edited or damaged: write it again with `as_text()`"))
        })
    }

    /// Imports a region whose arguments have these values.
    fn region_with(&mut self, block: &'m Block<'s>, values: Vec<Value>) -> Imported<Vec<Value>> {
        if block.arguments.len() != values.len() {
            let message = format!("a region has {} arguments for {} values", block.arguments.len(), values.len());
            return Err(self.bad_module(message, "expected as many arguments as values"));
        }
        let names = block.arguments.iter().map(|it| it.name);
        self.scopes.push(names.zip(values).map(|(name, value)| (name, vec![value])).collect());
        let span = self.out.span;
        let results = self.block(block);
        self.out.span = span;
        self.scopes.pop();
        results
    }

    // ---- types and shardings

    fn tensor_type<'a>(&self, ty: &'a Type<'_>) -> Imported<&'a TensorType> {
        match ty {
            Type::Tensor(it) if it.shape.len() > MAX_RANK => {
                Err(self.bad_module(format!("a tensor has more than {MAX_RANK} dimensions"), "expected fewer"))
            }
            Type::Tensor(it) => Ok(it),
            Type::Other(text) => Err(self.unsupported(text)),
        }
    }

    /// Returns the type of a result.
    fn result_type<'a>(&self, op: &'a Operation<'_>, at: usize) -> Imported<&'a TensorType> {
        let ty = op.result_types.get(at).ok_or_else(|| self.missing(op, "type"))?;
        self.tensor_type(ty)
    }

    fn sharding(&self, stated: Option<&Attribute<'_>>, shape: &[i64]) -> Imported<Option<Sharding>> {
        let read = |it| Sharding::read(it, &self.meshes, shape).map_err(|it| unsupported_sharding(self.out.span, it));
        stated.map(read).transpose()
    }

    /// Returns the sharding of a tensor that every device holds, if the module has a mesh of several devices.
    fn replicated(&self, shape: &[i64]) -> Option<Sharding> {
        let mesh = self.meshes.iter().position(|it| it.devices() > 1)?;
        Some(Sharding { mesh, dims: vec![Vec::new(); shape.len()] })
    }

    /// Returns the dimensions of a tensor with this sharding.
    fn sharded_dims(&self, shape: &[i64], sharding: &Sharding) -> Vec<Dim> {
        let mesh = &self.meshes[sharding.mesh];
        let shard = |axis: &usize| (mesh.letter(*axis), mesh.axes[*axis].1);
        let dims = shape.iter().zip(&sharding.dims);
        dims.map(|(extent, axes)| Dim { shards: axes.iter().map(shard).collect(), ..Dim::of(*extent) }).collect()
    }

    fn mesh_text(&self, mesh: usize) -> String {
        self.meshes.get(mesh).filter(|it| it.devices() > 1).map(Mesh::text).unwrap_or_default()
    }

    fn declare_sharded(&mut self, shape: &[i64], dtype: DType, sharding: Option<&Sharding>) -> usize {
        match sharding {
            Some(it) => {
                let (dims, mesh) = (self.sharded_dims(shape, it), self.mesh_text(it.mesh));
                self.out.declare(dims, dtype, mesh)
            }
            None => self.out.declare(shape.iter().copied().map(Dim::of).collect(), dtype, String::new()),
        }
    }

    /// Returns a tensor with this sharding. A sum whose sharding nothing states gets it in place, so that it need not be
    /// complete before it is sharded.
    fn constrained(&mut self, tensor: Tensor, sharding: &Sharding) -> Tensor {
        if let Some(at) = self.unsharded_sums.iter().position(|it| *it == tensor.number) {
            self.unsharded_sums.swap_remove(at);
            let dims = self.sharded_dims(&tensor.shape, sharding);
            let mesh = self.mesh_text(sharding.mesh);
            let it = &mut self.out.tensors[tensor.number];
            it.mesh = mesh;
            let mut kept = dims.into_iter();
            for dim in it.dims.iter_mut().filter(|it| !it.is_reduced) {
                *dim = kept.next().unwrap_or_default();
            }
            return tensor;
        }
        let number = self.declare_sharded(&tensor.shape, tensor.dtype, Some(sharding));
        self.out.statement(format!("T{number} = Set( T{} )", tensor.number));
        Tensor { number, ..tensor }
    }

    // ---- tensors

    /// Returns the device axes of a value before its own dimensions.
    fn device_dims(&self, axes: AxisSet) -> Vec<Dim> {
        let Some(region) = &self.region else { return Vec::new() };
        let mesh = &self.meshes[region.mesh];
        let all = 0..mesh.axes.len();
        all.filter(|it| axes & (1 << it) != 0).map(|it| Dim::device(mesh.letter(it), mesh.axes[it].1)).collect()
    }

    /// Returns the text of the mesh of values here: tensors outside of manual regions have none, so that passes choose it.
    fn region_mesh(&self) -> String {
        self.region.as_ref().map(|it| self.mesh_text(it.mesh)).unwrap_or_default()
    }

    /// Declares a tensor with these dimensions, behind those of devices.
    fn declare(&mut self, dims: Vec<Dim>, dtype: DType) -> usize {
        let mesh = self.region_mesh();
        self.out.declare(dims, dtype, mesh)
    }

    /// Declares a tensor for a result.
    fn tensor(&mut self, axes: AxisSet, shape: &[i64], dtype: DType) -> Tensor {
        let mut dims = self.device_dims(axes);
        dims.extend(shape.iter().copied().map(Dim::of));
        Tensor { number: self.declare(dims, dtype), axes, shape: shape.to_vec(), dtype }
    }

    /// Adds the statement `T1 = text`, whose result has this type.
    fn emit(&mut self, axes: AxisSet, shape: &[i64], dtype: DType, text: impl std::fmt::Display) -> Tensor {
        let it = self.tensor(axes, shape, dtype);
        self.out.statement(format!("T{} = {text}", it.number));
        it
    }

    /// Returns a value as a tensor.
    fn materialized(&mut self, value: Value) -> Tensor {
        match value {
            Value::Tensor(it) => it,
            Value::Splat(Splat { scalar, shape, dtype }) => {
                let axes = scalar.axes();
                let extents = self.device_dims(axes).into_iter().map(|it| it.extent).chain(shape.iter().copied());
                let extents = extents.map(|it| it.to_string()).collect::<Vec<_>>().join(", ");
                let text = format!("full({{{extents}}}, {});", scalar.text(dtype));
                if let (Scalar::Named(..), false) = (&scalar, dtype.is_integral()) {
                    // A scalar of the host is an integer.
                    let own = self.emit(axes, &shape, DType::Int64, text);
                    return self.emit(axes, &shape, dtype, format!("cast(T{});", own.number));
                }
                self.emit(axes, &shape, dtype, text)
            }
        }
    }

    /// Returns a tensor with the dimensions of these devices too, of extent 1 where it does not have them.
    fn with_axes(&mut self, tensor: Tensor, axes: AxisSet) -> Tensor {
        if tensor.axes | axes == tensor.axes {
            return tensor;
        }
        let axes = tensor.axes | axes;
        let mut dims = Vec::new();
        let mut flags = Vec::new();
        for axis in (0..8).filter(|it| axes & (1 << it) != 0) {
            let is_new = tensor.axes & (1 << axis) == 0;
            flags.push(is_new.to_string());
            dims.extend(if is_new { vec![Dim::of(1)] } else { self.device_dims(1 << axis) });
        }
        dims.extend(tensor.shape.iter().copied().map(Dim::of));
        flags.extend(tensor.shape.iter().map(|_| "false".to_owned()));
        let number = self.declare(dims, tensor.dtype);
        self.out.statement(format!("T{number} = broadcast( T{}, flags = {{{}}} )", tensor.number, flags.join(", ")));
        Tensor { number, axes, ..tensor }
    }

    /// Returns a tensor that has an index for each of these devices.
    fn on_axes(&mut self, tensor: Tensor, axes: AxisSet) -> Tensor {
        if tensor.axes | axes == tensor.axes {
            return tensor;
        }
        let it = self.with_axes(tensor, axes);
        let shape = it.shape.clone();
        self.emit(it.axes, &shape, it.dtype, format!("expand(T{})", it.number))
    }

    /// Returns the number of device axes of a value.
    fn device_count(axes: AxisSet) -> usize {
        axes.count_ones() as usize
    }

    /// Returns the operands of an operation, of which there are exactly `N`.
    fn operands<const N: usize>(&self, op: &Operation<'_>, operands: Vec<Value>) -> Imported<[Value; N]> {
        let count = operands.len();
        operands.try_into().map_err(|_| {
            self.bad_module(format!("`{}` has {count} operands", op.name), &format!("expected {N} operands"))
        })
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
