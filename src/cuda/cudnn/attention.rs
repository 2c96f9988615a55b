//! The graphs of an attention and of its gradients, in the form that cuDNN recognises as one kernel.

use cudarc::cudnn::sys::{
    cudnnDataType_t as Data, cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Reduction,
};

use super::graph::{Graph, Layout, Tensor, of_dtype};
use crate::{ExecutorError, Result};
use hir_executor::{AttentionTask, DeviceTensor};

/// Adds `softmax(scale · query · keysᵀ) · values`.
pub(super) fn forward(graph: &mut Graph<'_>, task: &AttentionTask) -> Result<()> {
    let [query, key, value, out] = operands(task, 0)?;
    let dtype = of_dtype(task.tensors[0].dtype)?;
    let query = graph.operand(query, |it| it)?;
    let key = graph.operand(key, Layout::transposed)?;
    let scores = scores(graph, task, [query, key])?;
    let scores = if task.is_causal { causal(graph, scores)? } else { scores };
    let whole = graph.layout(scores);
    let rows = rows_of(whole);
    let max = graph.inner(rows, Data::CUDNN_DATA_FLOAT)?;
    graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_MAX, scores, max)?;
    let shifted = graph.with_pointwise(Mode::CUDNN_POINTWISE_SUB, &[scores, max], whole)?;
    let exponentials = graph.with_pointwise(Mode::CUDNN_POINTWISE_EXP, &[shifted], whole)?;
    let sum = graph.inner(rows, Data::CUDNN_DATA_FLOAT)?;
    graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, exponentials, sum)?;
    if let Some(it) = task.tensors.get(4) {
        let logarithms = graph.with_pointwise(Mode::CUDNN_POINTWISE_LOG, &[sum], rows)?;
        let to = graph.operand((4, it), |it| it)?;
        graph.pointwise(Mode::CUDNN_POINTWISE_ADD, &[max, logarithms], to)?;
    }
    let shares = graph.inner(whole, dtype)?;
    graph.pointwise(Mode::CUDNN_POINTWISE_DIV, &[exponentials, sum], shares)?;
    let value = graph.operand(value, |it| it)?;
    let out = graph.operand(out, |it| it)?;
    graph.matmul(shares, value, out)
}

/// Adds the gradients of query, keys and values, from the attention's result and logarithms of sums.
pub(super) fn gradient(graph: &mut Graph<'_>, task: &AttentionTask) -> Result<()> {
    let [query, key, value, out] = operands(task, 0)?;
    let [logsumexp, of_out, of_query, of_key] = operands(task, 4)?;
    let of_value = (8, task.tensors.get(8).ok_or_else(too_few)?);
    let dtype = of_dtype(task.tensors[0].dtype)?;
    let query = graph.operand(query, |it| it)?;
    let key = graph.operand(key, Layout::transposed)?;
    let [value, out, of_out] = [
        graph.operand(value, Layout::transposed)?,
        graph.operand(out, |it| it)?,
        graph.operand(of_out, |it| it)?,
    ];
    // The sums of the products of a row's result and its gradient.
    let like_out = Layout::contiguous(graph.layout(out).shape);
    let products = graph.with_pointwise(Mode::CUDNN_POINTWISE_MUL, &[of_out, out], like_out)?;
    let rows = rows_of(like_out);
    let unscaled = graph.inner(rows, Data::CUDNN_DATA_FLOAT)?;
    graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, products, unscaled)?;
    let one = graph.constant(1.0)?;
    let row_sums = graph.temporary(rows.shape)?;
    graph.pointwise(Mode::CUDNN_POINTWISE_MUL, &[unscaled, one], row_sums)?;
    // The weights of the values.
    let scores = scores(graph, task, [query, key])?;
    let whole = graph.layout(scores);
    let logsumexp = graph.operand(logsumexp, |it| it)?;
    let shifted = graph.with_pointwise(Mode::CUDNN_POINTWISE_SUB, &[scores, logsumexp], whole)?;
    let shifted = if task.is_causal { causal(graph, shifted)? } else { shifted };
    let shares = graph.with_pointwise(Mode::CUDNN_POINTWISE_EXP, &[shifted], whole)?;
    let transposed = graph.transpose(shares, dtype)?;
    by_heads(graph, transposed, of_out, of_value, dtype)?;
    // The gradients of the scores.
    let of_shares = graph.inner(whole, Data::CUDNN_DATA_FLOAT)?;
    graph.matmul(of_out, value, of_shares)?;
    let centred = graph.with_pointwise(Mode::CUDNN_POINTWISE_SUB, &[of_shares, row_sums], whole)?;
    let of_scaled = graph.with_pointwise(Mode::CUDNN_POINTWISE_MUL, &[centred, shares], whole)?;
    let scale = graph.constant(task.scale as f32)?;
    let of_scores = graph.with_pointwise(Mode::CUDNN_POINTWISE_MUL, &[of_scaled, scale], whole)?;
    let transposed = graph.transpose(of_scores, dtype)?;
    by_heads(graph, transposed, query, of_key, dtype)?;
    let keys = graph.transpose(key, dtype)?;
    let of_query = graph.operand(of_query, |it| it)?;
    graph.matmul(of_scores, keys, of_query)
}

/// Returns four tensors of a task from an index on, with their indices.
fn operands(task: &AttentionTask, first: usize) -> Result<[(usize, &DeviceTensor); 4]> {
    let found: Vec<_> = task.tensors.iter().enumerate().skip(first).take(4).collect();
    found.try_into().map_err(|_| too_few())
}

fn too_few() -> ExecutorError {
    ExecutorError::Internal("a task of attention has too few tensors".to_owned())
}

/// Returns the layout of one number for each row.
fn rows_of(Layout { shape: [b, h, l, _], .. }: Layout) -> Layout {
    Layout::contiguous([b, h, l, 1])
}

/// Adds `scale · query · keysᵀ`.
fn scores(graph: &mut Graph<'_>, task: &AttentionTask, [query, key]: [Tensor; 2]) -> Result<Tensor> {
    let [b, h, l, _] = graph.layout(query).shape;
    let whole = Layout::contiguous([b, h, l, graph.layout(key).shape[3]]);
    let products = graph.inner(whole, Data::CUDNN_DATA_FLOAT)?;
    graph.matmul(query, key, products)?;
    let scale = graph.constant(task.scale as f32)?;
    graph.with_pointwise(Mode::CUDNN_POINTWISE_MUL, &[products, scale], whole)
}

/// Adds scores with -∞ where a key follows the row.
fn causal(graph: &mut Graph<'_>, scores: Tensor) -> Result<Tensor> {
    let [row, column] = [graph.index(scores, 2)?, graph.index(scores, 3)?];
    let is_seen = graph.compare(Mode::CUDNN_POINTWISE_CMP_GE, [row, column])?;
    let hidden = graph.constant(f32::NEG_INFINITY)?;
    let operands = [scores, hidden, is_seen];
    graph.with_pointwise(Mode::CUDNN_POINTWISE_BINARY_SELECT, &operands, graph.layout(scores))
}

/// Adds the product of two tensors as a tensor of the task, whose heads are sums over those that share it.
fn by_heads(
    graph: &mut Graph<'_>,
    first: Tensor,
    second: Tensor,
    to: (usize, &DeviceTensor),
    dtype: Data,
) -> Result<()> {
    let to = graph.operand(to, |it| it)?;
    let [b, heads, rows, _] = graph.layout(first).shape;
    if graph.layout(to).shape[1] == heads {
        return graph.matmul(first, second, to);
    }
    let columns = graph.layout(second).shape[3];
    let by_head = graph.inner(Layout::contiguous([b, heads, rows, columns]), dtype)?;
    graph.matmul(first, second, by_head)?;
    graph.reduce(Reduction::CUDNN_REDUCE_TENSOR_ADD, by_head, to)
}
