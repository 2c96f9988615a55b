//! The text of a fused kernel over rows. `lane` is the index of a thread among those of its row; access `n` of a lane is
//! access `lane + n * lanes` of the row; `v` is an element of it.

use std::fmt::Write;

use super::{RowKernel, RowLoad, RowStep, exchange::receive_rows};
use crate::kernels::{BLOCK, Operand, elementwise::statement, expression, type_name};
use grammar::DType;

/// Returns the type of the parameters of an instance.
pub(in crate::kernels) fn parameters(kernel: &RowKernel) -> String {
    let stored = kernel.stored().into_iter().filter(|it| *it).count();
    let rows =
        format!("Elementwise<{}, {}, {}>", kernel.loaded.len() + stored, kernel.constants, kernel.dims);
    match &kernel.exchange {
        Some(it) => format!("Both<{rows}, {}>", it.parameters()),
        None => rows,
    }
}

/// Returns the body of an instance.
pub(in crate::kernels) fn body(kernel: &RowKernel) -> String {
    let RowKernel { loaded, steps, constants, width, loads, exchange, .. } = kernel;
    let (lanes, rows) = (kernel.threads(), kernel.rows());
    let count = loads.div_ceil(lanes);
    let flags = kernel.stored();
    let stored: Vec<usize> = (0..steps.len()).filter(|at| flags[*at]).collect();
    let view_of = |at: usize| stored.iter().position(|it| *it == at).map(|it| loaded.len() + it);
    let mut text = format!(
        "  const u32 lane = threadIdx.x % {lanes}, column = threadIdx.x / {lanes}, rows = {rows};
  const u64 tiles = (p.count + rows - 1) / rows;
{terms}{start}  for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {{
    const u64 row = tile * rows + column;
    const bool inside = row < p.count;
    const u64 length = inside ? {length} : 0;
    u64 at[{views}];
    locate<u64, {views}, {constants}>(p, inside ? row : 0, at);
",
        views = loaded.len() + stored.len(),
        length = loads * width,
        // A kernel without reductions has no terms, and arrays have elements.
        terms = match (kernel.spread, kernel.term_bytes()) {
            (1, _) | (_, 0) => String::new(),
            (_, bytes) => format!("  __shared__ u64 terms[{}];\n", bytes.div_ceil(8)),
        },
        start = exchange.as_ref().map_or_else(String::new, |it| it.start(kernel))
    );
    // Writing to a string does not fail.
    for (at, (dtype, load)) in loaded.iter().enumerate() {
        let dtype = type_name(*dtype);
        let _ = match load {
            RowLoad::Value => {
                writeln!(text, "    const {dtype} x{at} = *reinterpret_cast<const {dtype}*>(at[{at}]);")
            }
            RowLoad::Elements => writeln!(
                text,
                "    Pack<{dtype}, {width}> x{at}[{count}];
#pragma unroll
    for (int n = 0; n < {count}; ++n)
      x{at}[n] = load_whole<{dtype}, {width}>(at[{at}], lane + n * {lanes}, length);"
            ),
            RowLoad::Packets => Ok(()),
        };
    }
    // The other operands arrive while a thread waits for packets.
    text += &receive_rows(kernel);
    // The text of an operand, for element v of access n.
    let name = |operand: &Operand| match operand {
        Operand::Load(at) if loaded[*at].1 == RowLoad::Value => format!("x{at}"),
        Operand::Load(at) => format!("x{at}[n].e[v]"),
        Operand::OpResult(at, _) => match &steps[*at] {
            RowStep::Map(_) => format!("y{at}[n][v]"),
            RowStep::MapRows(_) | RowStep::Reduce { .. } => format!("m{at}"),
        },
        Operand::Constant(at) => format!("p.constant[{at}]"),
    };
    // The values of rows that all threads have. The first warp of a row has all of them.
    let mut known = vec![kernel.spread == 1; steps.len()];
    for (at, step) in steps.iter().enumerate() {
        match step {
            RowStep::Map(op) => {
                for it in op.results() {
                    if let (false, Some(dtype)) = (known[it], value_dtype(&steps[it])) {
                        text += &broadcast_value(it, dtype, rows);
                        known[it] = true;
                    }
                }
                let out = type_name(op.out);
                let store_prefix = format!("y{at}[n][v] = ");
                let _ = write!(
                    text,
                    "    {out} y{at}[{count}][{width}];
#pragma unroll
    for (int n = 0; n < {count}; ++n) {{
#pragma unroll
    for (int v = 0; v < {width}; ++v) {{
{}    }}
    }}
",
                    statement(op, at, "0", &store_prefix, &name)
                );
                if let Some(view) = view_of(at) {
                    let _ = write!(
                        text,
                        "#pragma unroll
    for (int n = 0; n < {count}; ++n) {{
      Pack<{out}, {width}> y;
#pragma unroll
      for (int v = 0; v < {width}; ++v) y.e[v] = y{at}[n][v];
      save_whole<{out}, {width}>(at[{view}], lane + n * {lanes}, length, y);
    }}
"
                    );
                }
            }
            RowStep::MapRows(op) => {
                let out = type_name(op.out);
                let statement = statement(op, at, "0", &format!("m{at} = "), &name);
                let first = if kernel.spread == 1 { String::new() } else { format!("if (lane < {WARP}) ") };
                let _ = write!(text, "    {out} m{at};\n    {first}{{\n{statement}    }}\n");
                text += &store_value(at, out, view_of(at));
            }
            RowStep::Reduce { op, input, computed, start, out, .. } => {
                let step = expression::reduction_expression(*op, *computed).unwrap_or_default();
                let neutral = expression::identity_expression(*op, *computed);
                let result = expression::result_expression(*op, loads * width);
                let value = match input {
                    Operand::OpResult(_, dtype) => format!("bits<{}>({})", type_name(*dtype), name(input)),
                    Operand::Load(_) | Operand::Constant(_) => name(input),
                };
                let (out, computed) = (type_name(*out), computed.name());
                let _ = write!(
                    text,
                    "    {out} m{at};
    {{
      typedef {computed} C;
{sum}      const C a = (C)bits<f64>(p.constant[{start}]), b = sum[0], r = {step};
      m{at} = narrow(To<{out}>(), (C)({result}));
    }}
",
                    sum = match kernel.spread {
                        1 => sum_in_lanes(kernel, step, neutral, &value),
                        _ => sum_in_shared_memory(kernel, step, neutral, &value),
                    }
                );
                text += &store_value(at, out, view_of(at));
            }
        }
    }
    text += &exchange.as_ref().map_or_else(String::new, |it| it.end_of_row(kernel));
    if kernel.spread > 1 {
        text += "    // The next rows write shared memory again.\n    if (tile + gridDim.x < tiles) __syncthreads();\n";
    }
    text + "  }\n" + &exchange.as_ref().map_or_else(String::new, |it| it.end(kernel))
}

/// Returns the statement that stores the value that a step has for each row.
fn store_value(step: usize, dtype: &str, view: Option<usize>) -> String {
    view.map_or_else(String::new, |view| {
        format!("    if (inside && lane == 0) *reinterpret_cast<{dtype}*>(at[{view}]) = m{step};\n")
    })
}

/// Returns the element type of a value that a step has for each row.
fn value_dtype(step: &RowStep) -> Option<DType> {
    match step {
        RowStep::Map(_) => None,
        RowStep::MapRows(it) => Some(it.out),
        RowStep::Reduce { out, .. } => Some(*out),
    }
}

/// Returns the statements that give the value of a step to all threads of a row.
fn broadcast_value(step: usize, dtype: DType, rows: usize) -> String {
    format!(
        "    __shared__ {} all{step}[{rows}];
    if (lane == 0) all{step}[column] = m{step};
    __syncthreads();
    m{step} = all{step}[column];
",
        type_name(dtype)
    )
}

/// Lanes that exchange values without shared memory.
pub(super) const WARP: usize = 32;

/// Returns the statements that reduce the terms of a row to `sum[0]`, for all lanes.
fn sum_in_lanes(kernel: &RowKernel, step: &str, neutral: &str, value: &str) -> String {
    let RowKernel { width, lanes, loads, .. } = kernel;
    format!(
        "      C sum[{width}];
#pragma unroll
      for (int v = 0; v < {width}; ++v) sum[v] = {neutral};
#pragma unroll
      for (int n = 0; n < {count}; ++n) {{
        if (lane + n * {lanes} >= {loads}) continue;
#pragma unroll
        for (int v = 0; v < {width}; ++v) {{
          const C a = sum[v], b = widen<C>({value});
          sum[v] = {step};
        }}
      }}
#pragma unroll
      for (int v = 1; v < {width}; ++v) {{
        const C a = sum[0], b = sum[v];
        sum[0] = {step};
      }}
{across}",
        count = loads.div_ceil(*lanes),
        across = across_lanes(*lanes, step)
    )
}

/// Returns the statements that reduce the terms of a row to `sum[0]` of its first thread, in the order of `sum_in_lanes`.
/// `terms` has, by access of a lane and element of the access, the terms of all lanes. The threads of a lane add the terms of
/// different elements of its accesses, and the first warp adds the results of all lanes.
fn sum_in_shared_memory(kernel: &RowKernel, step: &str, neutral: &str, value: &str) -> String {
    let RowKernel { width, lanes, loads, spread, .. } = kernel;
    let (threads, parts) = (kernel.threads(), lanes / WARP);
    format!(
        "      C* const t = reinterpret_cast<C*>(terms) + column * {row};
      const u32 own = lane % {lanes}, turn = lane / {lanes};
      // An earlier reduction may still read `terms`.
      __syncthreads();
#pragma unroll
      for (int n = 0; n < {count}; ++n) {{
        if (lane + n * {threads} >= {loads}) continue;
#pragma unroll
        for (int v = 0; v < {width}; ++v) t[((turn + n * {spread}) * {width} + v) * {lanes} + own] = widen<C>({value});
      }}
      __syncthreads();
      for (u32 v = turn; v < {width}; v += {spread}) {{
        C r = {neutral};
#pragma unroll
        for (int n = 0; n < {accesses}; ++n) {{
          if (own + n * {lanes} >= {loads}) continue;
          const C a = r, b = t[(n * {width} + v) * {lanes} + own];
          r = {step};
        }}
        t[v * {lanes} + own] = r;
      }}
      __syncthreads();
      C sum[{parts}];
      if (lane < {WARP}) {{
#pragma unroll
        for (int w = 0; w < {parts}; ++w) {{
          sum[w] = t[w * {WARP} + lane];
#pragma unroll
          for (int v = 1; v < {width}; ++v) {{
            const C a = sum[w], b = t[v * {lanes} + w * {WARP} + lane];
            sum[w] = {step};
          }}
        }}
#pragma unroll
        for (int half = {parts} / 2; half > 0; half /= 2) {{
#pragma unroll
          for (int w = 0; w < half; ++w) {{
            const C a = sum[w], b = sum[w + half];
            sum[w] = {step};
          }}
        }}
      }} else sum[0] = {neutral};
{across}",
        row = kernel.row_terms(),
        count = loads.div_ceil(threads),
        accesses = loads.div_ceil(*lanes),
        across = across_warp(WARP, step)
    )
}

/// Returns the statements that reduce `sum[0]` over the lanes of a row, for all of them. The first lane adds in the order of
/// `reduce`: lane `l` and lane `l + half` for each `half` from half the lanes down. Every warp does the same, and takes the
/// result of its first lane.
fn across_lanes(lanes: usize, step: &str) -> String {
    let mut text = String::new();
    if lanes == 1 {
        return text;
    }
    let parts = lanes / WARP;
    if parts > 1 {
        let _ = write!(
            text,
            "      __shared__ C part[{BLOCK}];
      part[threadIdx.x] = sum[0];
      __syncthreads();
      C of_warp[{parts}];
#pragma unroll
      for (int w = 0; w < {parts}; ++w) of_warp[w] = part[threadIdx.x - lane + threadIdx.x % {WARP} + w * {WARP}];
#pragma unroll
      for (int half = {parts} / 2; half > 0; half /= 2) {{
#pragma unroll
        for (int w = 0; w < half; ++w) {{
          const C a = of_warp[w], b = of_warp[w + half];
          of_warp[w] = {step};
        }}
      }}
      sum[0] = of_warp[0];
      // The next rows write `part` again.
      __syncthreads();
"
        );
    }
    text + &across_warp(lanes.min(WARP), step)
}

/// Returns the statements that reduce `sum[0]` over some lanes of a warp, for all of them.
fn across_warp(lanes: usize, step: &str) -> String {
    format!(
        "#pragma unroll
      for (u32 half = {lanes} / 2; half > 0; half /= 2) {{
        const C a = sum[0], b = of_lane(sum[0], threadIdx.x ^ half);
        sum[0] = {step};
      }}
      sum[0] = of_lane(sum[0], threadIdx.x - threadIdx.x % {lanes});
"
    )
}
