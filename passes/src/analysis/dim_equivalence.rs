//! Computes which dimensions of different tensors are equivalent through operators.

use std::{cell::RefCell, rc::Rc};

use grammar::{
    DimMap, for_each_tensor_use,
    ir::{Program, Stmt, StmtId, TensorId},
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{
    dim_map,
    sharding::{Dim, Sharding},
};

/// Pairs of operand and result dimensions that are the same dimension. Stream parallelization is ignored.
pub struct DimEquivalence {
    edges: Vec<Edge>,
    /// Indices of the edges of each dimension.
    of: FxHashMap<(TensorId, usize), Vec<usize>>,
    inputs: FxHashSet<TensorId>,
    /// The results of reductions over devices.
    device_sums: FxHashSet<TensorId>,
    /// What searches through all operators have found from each dimension, if it is kept.
    known: Option<RefCell<FxHashMap<(TensorId, usize), Found>>>,
    /// The extents of the dimensions that have been asked for, which many components have in common.
    pub extents: RefCell<FxHashMap<(TensorId, usize), Extent>>,
}

/// The equivalent dimensions, or a tensor that would have two of them.
type Found = Result<Rc<EquivalentDims>, TensorId>;

/// How far equivalent dimensions are searched for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Through all operators.
    Everywhere,
    /// Up to the results of the matrix products that read the tensor, and back to the one that computes it.
    NextProduct,
    /// The same, and through what is computed from these results up to other matrix products.
    BehindProduct,
}

/// The extent of a dimension and the number of devices that have a part of it, if they are known, or why the dimension cannot be split.
pub type Extent = Result<Option<(i64, i64)>, String>;

/// A number of chunks, or why there is none.
pub type Count = Result<i64, Option<String>>;

/// Dimensions of several tensors that are equivalent, index by index.
#[derive(Default)]
pub struct EquivalentDims {
    /// The tensors with their equivalent dimension, in the order of discovery.
    pub dims: Vec<(TensorId, usize)>,
    at: FxHashMap<TensorId, usize>,
    /// Into how many chunks all of them can be split, or why they cannot, by the smallest and the largest number that was asked for.
    pub counts: RefCell<FxHashMap<(i64, i64), Count>>,
}

impl EquivalentDims {
    /// Returns the dimension of a tensor that belongs to this set.
    pub fn dim(&self, tensor: TensorId) -> Option<usize> {
        self.at.get(&tensor).copied()
    }

    /// Returns true if the statement mentions one of the tensors.
    pub fn is_mentioned_by(&self, program: &Program, stmt: StmtId) -> bool {
        let Stmt::Op(it) = &program.stmts[stmt] else { return false };
        let mut found = false;
        for_each_tensor_use(program, it, &mut |tensor, _| found |= self.dim(tensor).is_some());
        found
    }

    fn add(&mut self, tensor: TensorId, dim: usize) {
        self.dims.push((tensor, dim));
        self.at.insert(tensor, dim);
    }
}

impl DimEquivalence {
    /// Analyzes the top-level statements.
    pub fn of(program: &Program) -> Self {
        let edges = edges(program);
        let mut of: FxHashMap<(TensorId, usize), Vec<usize>> = FxHashMap::default();
        for (at, edge) in edges.iter().enumerate() {
            of.entry((edge.arg, edge.arg_dim)).or_default().push(at);
            of.entry((edge.out, edge.out_dim)).or_default().push(at);
        }
        let device_sums = edges.iter().filter(|it| it.kind == EdgeKind::DeviceSum).map(|it| it.out).collect();
        let inputs = Program::tensors_of(&program.inputs).collect();
        Self { edges, of, inputs, device_sums, known: None, extents: RefCell::default() }
    }

    /// Analyzes the top-level statements for many searches: a search through all operators is that of all dimensions that it has
    /// visited, apart from those of inputs, where it does not go on.
    pub fn for_many_searches(program: &Program) -> Self {
        Self { known: Some(RefCell::default()), ..Self::of(program) }
    }

    /// Returns the dimensions that are equivalent to dimension `dim` of `tensor` through top-level operators
    /// that leave its device axes unchanged. The set includes inputs of the program, but does not extend
    /// through an input from one reader to another. `Err` holds a tensor that would belong to the
    /// set with two dimensions.
    pub fn dims_equivalent_to(&self, tensor: TensorId, dim: usize) -> Result<Rc<EquivalentDims>, TensorId> {
        self.dims_within(Reach::Everywhere, tensor, dim)
    }

    /// Like `dims_equivalent_to`, within a reach.
    pub fn dims_within(
        &self,
        reach: Reach,
        tensor: TensorId,
        dim: usize,
    ) -> Result<Rc<EquivalentDims>, TensorId> {
        let known = self.known.as_ref().filter(|_| reach == Reach::Everywhere);
        if let Some(found) = known.and_then(|it| it.borrow().get(&(tensor, dim)).cloned()) {
            return found;
        }
        let mut visited = EquivalentDims::default();
        let twice = self.search(reach, (tensor, dim), &mut visited);
        let found = Rc::new(visited);
        let result = twice.map_or_else(|| Ok(Rc::clone(&found)), Err);
        if let Some(known) = known.filter(|_| !self.inputs.contains(&tensor)) {
            let visited = found.dims.iter().filter(|it| !self.inputs.contains(&it.0));
            known.borrow_mut().extend(visited.map(|it| (*it, result.clone())));
        }
        result
    }

    /// Finds the dimensions that are equivalent to one. Returns a tensor that would belong to them with two dimensions.
    fn search(
        &self,
        reach: Reach,
        (tensor, dim): (TensorId, usize),
        found: &mut EquivalentDims,
    ) -> Option<TensorId> {
        // Results of products, from which a search within `Reach::NextProduct` does not go on, and what is computed from them.
        let mut products: FxHashSet<TensorId> = FxHashSet::default();
        found.add(tensor, dim);
        let mut next = 0;
        while let Some((tensor, dim)) = found.dims.get(next).copied() {
            next += 1;
            let is_behind = products.contains(&tensor);
            if self.inputs.contains(&tensor) && next > 1 || is_behind && reach == Reach::NextProduct {
                continue;
            }
            for edge in self.of.get(&(tensor, dim)).into_iter().flatten().map(|at| &self.edges[*at]) {
                let from_arg = (edge.arg, edge.arg_dim) == (tensor, dim);
                let from_out = (edge.out, edge.out_dim) == (tensor, dim);
                if reach != Reach::Everywhere {
                    // The loop takes slices of what is computed before it, and what is behind it reads the whole sum.
                    let is_behind_sum =
                        edge.kind == EdgeKind::DeviceSum || self.device_sums.contains(&tensor);
                    let is_product = edge.kind == EdgeKind::Product;
                    if from_arg && is_behind_sum || is_product && (from_out || is_behind) {
                        continue;
                    }
                    if is_product {
                        products.insert(edge.out);
                    } else if is_behind {
                        products.insert(if from_arg { edge.out } else { edge.arg });
                    }
                }
                let (other, at) = if from_arg { (edge.out, edge.out_dim) } else { (edge.arg, edge.arg_dim) };
                match found.dim(other) {
                    Some(known) if known == at => (),
                    Some(_) => return Some(other),
                    None => found.add(other, at),
                }
            }
        }
        None
    }
}

/// A dimension of an operand that is a dimension of the result.
struct Edge {
    arg: TensorId,
    arg_dim: usize,
    out: TensorId,
    out_dim: usize,
    kind: EdgeKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EdgeKind {
    /// The operator is a matrix product.
    Product,
    /// The operator is a reduction over devices.
    DeviceSum,
    Other,
}

fn edges(program: &Program) -> Vec<Edge> {
    let mut edges = Vec::new();
    for stmt in program.body() {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        let ([Some(out)], true) =
            (&it.outs.iter().map(|it| it.tensor()).collect::<Vec<_>>()[..], it.computes())
        else {
            continue;
        };
        let args = it.tensor_operands();
        let Some(goal) = Sharding::of(program, *out) else { continue };
        for (position, arg) in args.iter().enumerate() {
            let (Some(maps), Some(from)) =
                (dim_map::dim_map(program, it, position), Sharding::of(program, *arg))
            else {
                continue;
            };
            let sums_devices = maps
                .iter()
                .zip(&from.dims)
                .any(|(map, dim)| *map == DimMap::Reduction && dim.devices().next().is_some());
            let kind = if it.rule().is_matrix_product() {
                EdgeKind::Product
            } else if sums_devices {
                EdgeKind::DeviceSum
            } else {
                EdgeKind::Other
            };
            for (arg_dim, map) in maps.into_iter().enumerate() {
                let devices = |dim: &Dim| dim.devices().collect::<Vec<_>>();
                if let DimMap::Parallel(out_dim) = map
                    && devices(&from.dims[arg_dim]) == devices(&goal.dims[out_dim])
                {
                    edges.push(Edge { arg: *arg, arg_dim, out: *out, out_dim, kind });
                }
            }
        }
    }
    edges
}
