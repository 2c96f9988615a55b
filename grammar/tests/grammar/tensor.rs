//! Tests the parsers of tensor and axis text on the spellings that two years of dumps contain.

use grammar::{
    dtype::DType,
    ir::{AxisKind, DeviceDim, Memory, Mesh, ParallelType},
    span::Span,
    tensor::*,
};

use super::parse::show;

#[track_caller]
fn tensor(text: &str) -> TensorText<'_> {
    match parse_tensor_text(text, 0) {
        Ok(res) => res,
        Err(error) => unreachable!("{text}: {error:?}"),
    }
}

#[track_caller]
fn axis(text: &str) -> AxisText<'_> {
    match parse_axis_text(text, 0) {
        Ok(res) => res,
        Err(error) => unreachable!("{text}: {error:?}"),
    }
}

fn axes(text: &str) -> Vec<&str> {
    tensor(text).axes.iter().map(|it| it.text).collect()
}

#[test]
fn names() {
    let found = |text| (tensor(text).number, tensor(text).memory, tensor(text).dtype);
    assert_eq!(found("T0_g___bfloat[iS1{128}]"), (0, Memory::Global, Some(DType::BFloat)));
    assert_eq!(found("T12_l[ iS1{128} ]"), (12, Memory::Local, None));
    assert_eq!(found("T0_s[]"), (0, Memory::Shared, None));
    assert_eq!(found("T0_s_float[]"), (0, Memory::Shared, Some(DType::Float)));
    assert_eq!(found("T0_sym_float[]"), (0, Memory::Symmetric, Some(DType::Float)));
    assert_eq!(found("T0_t_int64_t[  ]"), (0, Memory::Tensor, Some(DType::Int64)));
    assert_eq!(found("T0_g_std::complex<float>[]"), (0, Memory::Global, Some(DType::Complex64)));
    assert_eq!(found("T0_g      [ iS0{4} ]"), (0, Memory::Global, None));
    let named = |text| tensor(text).dtype.map(DType::name);
    assert_eq!(named("T0_g_float*[iS0{4}]"), Some("float*"));
    assert_eq!(named("T0_g_Array<float,4,1>[]"), Some("Array<float, 4, 1>"));
    assert_eq!(named("T0_g_struct {float x;}[]"), Some("struct { float x; }"));
}

#[test]
fn axes_positions_and_meshes() {
    assert_eq!(axes("T0_g[]"), [""; 0]);
    assert_eq!(axes("T0_g[  ]"), [""; 0]);
    assert_eq!(
        axes("T0_g[ iS0{max(i0, 3)}, ?S13{( -( fmax(0, i3) ) )}rf ]"),
        ["iS0{max(i0, 3)}", "?S13{( -( fmax(0, i3) ) )}rf"]
    );
    let text = "T3_l[bUR13{1}, iS5{4}] ca_pos( 3 ) produce_pos( 3 ) (DeviceMesh{0 2 3})";
    assert_eq!(tensor(text).positions, "ca_pos( 3 ) produce_pos( 3 )");
    assert_eq!(tensor(text).mesh, Mesh::new(vec![3], vec![0, 2, 3]));
    let mesh = |text: &str| tensor(&format!("T0_g[] (DeviceMesh{text})")).mesh;
    assert_eq!(mesh("{0, 1, }"), Mesh::new(vec![2], vec![0, 1]));
    assert_eq!(mesh("{{0 1 4}{2 3 5}}"), Mesh::new(vec![2, 3], vec![0, 1, 4, 2, 3, 5]));
    assert_eq!(mesh("{{0}{1}}"), Mesh::new(vec![2, 1], vec![0, 1]));
    assert_eq!(mesh("{{{0 1}{2 3}}{{4 5}{6 7}}}").shape, [2, 2, 2]);
    assert_eq!(mesh("{}"), Mesh::default());
    let piece = tensor("T0_g[iS0{4},\n  iS1{8}]").axes[1];
    assert_eq!((piece.text, piece.span), ("iS1{8}", Span { start: 15, end: 21 }));
}

#[test]
fn axis_words() {
    let found = |text| (axis(text).kind, axis(text).parallel, axis(text).number);
    assert_eq!(found("iS7{4}"), (AxisKind::Iteration, ParallelType::Serial, 7));
    assert_eq!(found("iStream7{4}"), (AxisKind::Iteration, ParallelType::Stream, 7));
    assert_eq!(found("iStreamIdx7{4}"), (AxisKind::Iteration, ParallelType::Stream, 7));
    assert_eq!(found("istreamIdx10{8}"), (AxisKind::Iteration, ParallelType::Stream, 10));
    assert_eq!(found("rdeviceIdx.x26{2}"), (AxisKind::Reduction, ParallelType::Device(DeviceDim::X), 26));
    assert_eq!(found("iUS65{1}"), (AxisKind::Iteration, ParallelType::Kernel("US"), 65));
    assert_eq!(found("iUR5{1}"), (AxisKind::Iteration, ParallelType::Kernel("UR"), 5));
    assert_eq!(found("sS3{2}"), (AxisKind::Stride, ParallelType::Serial, 3));
    assert_eq!(found("bB5{2}"), (AxisKind::Broadcast, ParallelType::Kernel("B"), 5));
    assert_eq!(found("?S13{i0}"), (AxisKind::Symbolic, ParallelType::Serial, 13));
}

#[test]
fn axis_extents() {
    let it = axis("iS21{( ceilDiv(i0, 3) )}rf_p");
    assert_eq!(
        (show(&it.extent).as_str(), &*it.suffix.to_string(), it.ragged),
        ("ceilDiv(i0 3)", "rf_p", false)
    );
    let it = axis("bS7{1 ex ( __to_index(i4) )}");
    assert_eq!(
        (show(&it.extent), it.expanded.as_ref().map(show)),
        ("1".into(), Some("__to_index(i4)".into()))
    );
    let it = axis("iS7{1 : i2 : i3}_c");
    assert_eq!(it.start.as_ref().map(show).zip(it.stop.as_ref().map(show)), Some(("1".into(), "i2".into())));
    assert_eq!((show(&it.extent).as_str(), &*it.suffix.to_string()), ("i3", "_c"));
    let it = axis("iS7{1 : i3}");
    assert_eq!((it.start.as_ref().map(show), it.stop.is_none()), (Some("1".into()), true));
    let it = axis("iS7Ragged{extents=i3}");
    assert_eq!((show(&it.extent).as_str(), it.ragged), ("i3", true));
}

#[test]
fn faults_point_into_the_source() {
    let place = |text: &str| parse_tensor_text(text, 100).err().map(|it| (it.span(), it.message));
    assert_eq!(
        place("T0_g_flaot[]"),
        Some((Span { start: 105, end: 110 }, "unknown element type `flaot`".into()))
    );
    assert_eq!(place("T0_q[]").map(|it| it.0), Some(Span { start: 103, end: 104 }));
    for mesh in ["{{0 1}{2}}", "{0 {1}}", "{0}{1}", "{{{{0}}}}", "{0 x}", "{", "{{0}{}}"] {
        assert!(place(&format!("T0_g[] (DeviceMesh{mesh})")).is_some(), "{mesh}");
    }
    let place = |text| parse_axis_text(text, 100).err().map(|it| it.span());
    assert_eq!(place("ifoo7{4}"), Some(Span { start: 101, end: 104 }));
    assert_eq!(place("iS7{4 +}").map(|it| it.start >= 104), Some(true));
    assert_eq!(place("iS7{}"), Some(Span { start: 103, end: 105 }));
    assert!(place("iS99999999999{4}").is_some());
}
