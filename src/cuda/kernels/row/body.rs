//! The text of a fused kernel over rows. `lane` is the index of a thread among those of its row; access `n` of a lane is
//! access `lane + n * lanes` of the row; `v` is an element of it.

use std::fmt::Write;

use super::{RowKernel, RowLoad, RowStep, exchange::receive_rows};
use crate::kernels::{BLOCK, Operand, elementwise::statement, expression, type_name};

/// Returns the type of the parameters of an instance.
pub(in crate::kernels) fn parameters(kernel: &RowKernel) -> String {
    let stored = kernel.stored().into_iter().filter(|it| *it).count();
    let rows = format!("Elementwise<{}, {}>", kernel.loaded.len() + stored, kernel.constants);
    match &kernel.exchange {
        Some(it) => format!("Both<{rows}, {}>", it.parameters()),
        None => rows,
    }
}

/// Returns the body of an instance.
pub(in crate::kernels) fn body(kernel: &RowKernel) -> String {
    let RowKernel { loaded, steps, constants, width, lanes, loads, exchange } = kernel;
    let (count, rows) = (loads.div_ceil(*lanes), BLOCK as usize / lanes);
    let flags = kernel.stored();
    let stored: Vec<usize> = (0..steps.len()).filter(|at| flags[*at]).collect();
    let view_of = |at: usize| stored.iter().position(|it| *it == at).map(|it| loaded.len() + it);
    let mut text = format!(
        "  const u32 lane = threadIdx.x % {lanes}, column = threadIdx.x / {lanes}, rows = {rows};
  const u64 tiles = (p.count + rows - 1) / rows;
{start}  for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {{
    const u64 row = tile * rows + column;
    const bool inside = row < p.count;
    const u64 length = inside ? {length} : 0;
    u64 at[{views}];
    locate<u64, {views}, {constants}>(p, inside ? row : 0, at);
",
        views = loaded.len() + stored.len(),
        length = loads * width,
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
    for (at, step) in steps.iter().enumerate() {
        match step {
            RowStep::Map(op) => {
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
                let _ = write!(text, "    {out} m{at};\n    {{\n{statement}    }}\n");
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
      C sum[{width}];
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
{across}      const C a = (C)bits<f64>(p.constant[{start}]), b = sum[0], r = {step};
      m{at} = narrow(To<{out}>(), (C)({result}));
    }}
",
                    across = across_lanes(*lanes, step)
                );
                text += &store_value(at, out, view_of(at));
            }
        }
    }
    text + "  }\n" + &exchange.as_ref().map_or_else(String::new, super::exchange::RowExchange::end)
}

/// Returns the statement that stores the value that a step has for each row.
fn store_value(step: usize, dtype: &str, view: Option<usize>) -> String {
    view.map_or_else(String::new, |view| {
        format!("    if (inside && lane == 0) *reinterpret_cast<{dtype}*>(at[{view}]) = m{step};\n")
    })
}

/// Lanes that exchange values without shared memory.
const WARP: usize = 32;

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
    let lanes = lanes.min(WARP);
    text + &format!(
        "#pragma unroll
      for (u32 half = {lanes} / 2; half > 0; half /= 2) {{
        const C a = sum[0], b = of_lane(sum[0], threadIdx.x ^ half);
        sum[0] = {step};
      }}
      sum[0] = of_lane(sum[0], threadIdx.x - threadIdx.x % {lanes});
"
    )
}
