//! Computes which dimensions of different tensors are equivalent through operators.

use std::{
    cell::{OnceCell, RefCell},
    rc::Rc,
};

use grammar::{DimMap, Id, Program, Stmt, StmtId, TensorId};
use rustc_hash::FxHashMap;

use crate::{
    analysis::{dim_map, sharding::Sharding},
    pass::Obstacle,
    second_thread::both,
};

/// Pairs of operand and result dimensions that are the same dimension. Stream parallelization is ignored.
pub struct DimEquivalence {
    edges: Vec<Edge>,
    /// The dimensions of all tensors, one after the other: the index of the first one of each tensor, and their number.
    first: Vec<usize>,
    /// The indices of the edges of each dimension, which begin in `edges_of` at the index in `first_edge`.
    first_edge: Vec<usize>,
    edges_of: Vec<usize>,
    is_input: Vec<bool>,
    /// Whether each tensor is the result of a reduction over devices.
    is_device_sum: Vec<bool>,
    /// What searches through all operators have found from each dimension, if it is kept.
    known: Option<RefCell<FxHashMap<(TensorId, usize), Found>>>,
    /// What the current search has found.
    visits: RefCell<Visits>,
    /// The extents of the dimensions that have been asked for, which many components have in common, by `index`.
    extents: RefCell<Vec<Option<Extent>>>,
}

/// The tensors that a search has visited.
struct Visits {
    /// The number of the search.
    search: usize,
    /// For each tensor, the last search that has visited it, and the dimension.
    dims: Vec<(usize, usize)>,
    /// For each tensor, the last search, within less than `Reach::Everywhere`, that found it to be the result of a product, or
    /// computed from one.
    products: Vec<usize>,
}

impl Visits {
    /// Returns what no search has visited, of this number of tensors.
    fn new(tensors: usize) -> Self {
        Self { search: 0, dims: vec![(0, 0); tensors], products: vec![0; tensors] }
    }

    fn dim(&self, tensor: TensorId) -> Option<usize> {
        let (search, dim) = self.dims[tensor.index()];
        (search == self.search).then_some(dim)
    }
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
pub type Extent = Result<Option<(i64, i64)>, Obstacle>;

/// A number of chunks, or why there is none.
pub type Count = Result<i64, Option<Obstacle>>;

/// Dimensions of several tensors that are equivalent, index by index.
#[derive(Default)]
pub struct EquivalentDims {
    /// The tensors with their equivalent dimension, in the order of discovery.
    pub dims: Vec<(TensorId, usize)>,
    /// The same, once a tensor is looked up.
    at: OnceCell<FxHashMap<TensorId, usize>>,
    /// Into how many chunks all of them can be split, or why they cannot, by the smallest and the largest number that was asked for.
    pub counts: RefCell<FxHashMap<(i64, i64), Count>>,
    /// Whether a matrix product reads or writes one of the tensors, once a search for products has asked.
    pub in_product: OnceCell<bool>,
}

impl EquivalentDims {
    /// Returns the dimension of a tensor that belongs to this set.
    pub fn dim(&self, tensor: TensorId) -> Option<usize> {
        self.at.get_or_init(|| self.dims.iter().copied().collect()).get(&tensor).copied()
    }

    /// Returns true if the statement mentions one of the tensors.
    pub fn is_mentioned_by(&self, program: &Program, stmt: StmtId) -> bool {
        program.op(stmt).is_some_and(|it| it.mentions(program).any(|it| self.dim(it).is_some()))
    }
}

impl DimEquivalence {
    /// Analyzes the top-level statements.
    pub fn of(program: &Program) -> Self {
        let (body, half) = (program.body(), program.body().len() / 2);
        let (mut edges, others) =
            both(program, || edges(program, &body[..half]), || edges(program, &body[half..]));
        edges.extend(others);
        let mut first = Vec::with_capacity(program.tensors.len());
        let mut dims = 0;
        for tensor in program.tensors.ids() {
            first.push(dims);
            dims += program.dimensions(tensor).count();
        }
        let ends =
            |it: &Edge| [(it.arg, it.arg_dim), (it.out, it.out_dim)].map(|(it, dim)| first[it.index()] + dim);
        let mut first_edge = vec![0; dims + 1];
        edges.iter().flat_map(ends).for_each(|at| first_edge[at + 1] += 1);
        (0..dims).for_each(|at| first_edge[at + 1] += first_edge[at]);
        let mut next = first_edge.clone();
        let mut edges_of = vec![0; 2 * edges.len()];
        for (at, edge) in edges.iter().enumerate() {
            for end in ends(edge) {
                edges_of[next[end]] = at;
                next[end] += 1;
            }
        }
        let (mut is_input, mut is_device_sum) = (vec![false; first.len()], vec![false; first.len()]);
        Program::tensors_of(&program.inputs).for_each(|it| is_input[it.index()] = true);
        let device_sums = edges.iter().filter(|it| it.kind == EdgeKind::DeviceSum);
        device_sums.for_each(|it| is_device_sum[it.out.index()] = true);
        let visits = RefCell::new(Visits::new(first.len()));
        let extents = RefCell::new(vec![None; dims]);
        Self { edges, first, first_edge, edges_of, is_input, is_device_sum, known: None, visits, extents }
    }

    /// Returns the index of a dimension among those of all tensors.
    fn index(&self, (tensor, dim): (TensorId, usize)) -> usize {
        self.first[tensor.index()] + dim
    }

    /// Analyzes the top-level statements for many searches: a search through all operators is that of all dimensions that it has
    /// visited, apart from those of inputs, where it does not go on.
    pub fn for_many_searches(program: &Program) -> Self {
        Self { known: Some(RefCell::default()), ..Self::of(program) }
    }

    /// Returns the extent of a dimension, which `compute` returns for the first caller.
    pub fn extent(&self, at: (TensorId, usize), compute: impl FnOnce() -> Extent) -> Extent {
        self.extents.borrow_mut()[self.index(at)].get_or_insert_with(compute).clone()
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
        let (dims, twice) = self.search(reach, (tensor, dim));
        let found = Rc::new(EquivalentDims { dims, ..EquivalentDims::default() });
        let result = twice.map_or_else(|| Ok(Rc::clone(&found)), Err);
        if let Some(known) = known.filter(|_| !self.is_input[tensor.index()]) {
            let visited = found.dims.iter().filter(|it| !self.is_input[it.0.index()]);
            known.borrow_mut().extend(visited.map(|it| (*it, result.clone())));
        }
        result
    }

    /// Finds the dimensions that are equivalent to one, up to a tensor that would belong to them with two dimensions.
    fn search(
        &self,
        reach: Reach,
        (tensor, dim): (TensorId, usize),
    ) -> (Vec<(TensorId, usize)>, Option<TensorId>) {
        let mut visits = self.visits.borrow_mut();
        visits.search += 1;
        let search = visits.search;
        let mut found = vec![(tensor, dim)];
        visits.dims[tensor.index()] = (search, dim);
        let mut next = 0;
        while let Some((tensor, dim)) = found.get(next).copied() {
            next += 1;
            // A search within `Reach::NextProduct` does not go on from the result of a product.
            let is_behind = visits.products[tensor.index()] == search;
            if self.is_input[tensor.index()] && next > 1 || is_behind && reach == Reach::NextProduct {
                continue;
            }
            let at = self.index((tensor, dim));
            for edge in &self.edges_of[self.first_edge[at]..self.first_edge[at + 1]] {
                let edge = &self.edges[*edge];
                let from_arg = (edge.arg, edge.arg_dim) == (tensor, dim);
                let from_out = (edge.out, edge.out_dim) == (tensor, dim);
                let (other, at) = if from_arg { (edge.out, edge.out_dim) } else { (edge.arg, edge.arg_dim) };
                if reach != Reach::Everywhere {
                    // The loop takes slices of what is computed before it, and what is behind it reads the whole sum.
                    let is_behind_sum =
                        edge.kind == EdgeKind::DeviceSum || self.is_device_sum[tensor.index()];
                    let is_product = edge.kind == EdgeKind::Product;
                    if from_arg && is_behind_sum || is_product && (from_out || is_behind) {
                        continue;
                    }
                    if is_product {
                        visits.products[edge.out.index()] = search;
                    } else if is_behind {
                        visits.products[other.index()] = search;
                    }
                }
                match visits.dim(other) {
                    Some(known) if known == at => (),
                    Some(_) => return (found, Some(other)),
                    None => {
                        visits.dims[other.index()] = (search, at);
                        found.push((other, at));
                    }
                }
            }
        }
        (found, None)
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

/// Returns the edges of statements.
fn edges(program: &Program, stmts: &[StmtId]) -> Vec<Edge> {
    let mut edges = Vec::new();
    let shardings: Vec<OnceCell<Option<Sharding>>> = vec![OnceCell::new(); program.tensors.len()];
    let sharding = |it: TensorId| shardings[it.index()].get_or_init(|| Sharding::of(program, it)).as_ref();
    for stmt in stmts {
        let Stmt::Op(it) = &program.stmts[*stmt] else { continue };
        let ([Some(out)], true) =
            (&it.outs.iter().map(|it| it.tensor()).collect::<Vec<_>>()[..], it.computes())
        else {
            continue;
        };
        let args = it.tensor_operands();
        let Some(goal) = sharding(*out) else { continue };
        for (position, arg) in args.iter().enumerate() {
            let (Some(maps), Some(from)) = (dim_map::dim_map(program, it, position), sharding(*arg)) else {
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
                if let DimMap::Parallel(out_dim) = map
                    && from.dims[arg_dim].devices().eq(goal.dims[out_dim].devices())
                {
                    edges.push(Edge { arg: *arg, arg_dim, out: *out, out_dim, kind });
                }
            }
        }
    }
    edges
}
