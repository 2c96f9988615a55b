//! Tests of how long a program would take without a communication, on the nominal GPU: kernels take 3 µs, all-reduces 10 µs.

use grammar::source::Source;
use hir_plan::timeline::{estimator::Estimator, gain::Gain, machine::Machine};

const DECLARED: &str = "\
%tensor T0_g_float[iS0{8}, iS1{8}] (DeviceMesh{0 1})
%tensor T1_g_float[iS2{8}, iS3{8}] (DeviceMesh{0 1})
%tensor T2_g_float[iS4{8}, iS5{8}] (DeviceMesh{0 1})
%tensor T3_g_float[iS6{8}, iS7{8}] (DeviceMesh{0 1})
%tensor T4_g_float[iS8{8}, iS9{8}] (DeviceMesh{0 1})
%tensor T5_g_float[iS10{8}, iS11{8}] (DeviceMesh{0 1})
%tensor T6_g_float[iS12{8}, iS13{8}] (DeviceMesh{0 1})
%tensor T7_g_float[iS14{8}, iS15{8}] (DeviceMesh{0 1})
%HostIrContainer { (T0, T1) -> (T6, T7) :
";

/// Returns how long the program of these statements takes, and its communications: the number of the line behind `DECLARED`, the exposed
/// time, and the times of the program if it is free, and if it is hidden.
fn gains(statements: &str) -> Option<(f64, Vec<[f64; 4]>)> {
    let text = format!("{DECLARED}{statements}}} // %HostIrContainer\n");
    let source = Source::new("gains.hir".to_owned(), text);
    let program = source.programs().0.pop()?;
    let world = hir_plan::build(&program, &source.lines, 2).ok()?;
    let (machine, mut admits) = (Machine::default(), |_| true);
    let estimator = Estimator { machine: &machine, ..Estimator::default() };
    let (timeline, all) = estimator.gains(&world, None, &mut admits).ok()?;
    let before = DECLARED.lines().count() as f64;
    let of = |it: &Gain| Some([f64::from(it.line) - before, it.exposed(), it.if_free?, it.if_hidden?]);
    Some((timeline.end(), all.iter().map(of).collect::<Option<_>>()?))
}

#[test]
fn nothing_waits_for_what_is_hidden() {
    let found = gains(
        "  T2 = linear(T0, T1)
  T3 = ALLOCATE(mem_type=global, zero_init=false)
  Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T2, output=T3, backend=NCCL)
  Wait(Communication 0)
  T6 = linear(T3, T1)
  T7 = linear(T0, T1)
",
    );
    // Free, three products are left. Hidden, the link is busy until 13 µs, and the products end before.
    assert_eq!(found, Some((19.0, vec![[3.0, 10.0, 9.0, 13.0]])));
}

#[test]
fn what_is_behind_a_hidden_one_in_its_queue_waits_for_it() {
    let found = gains(
        "  T2 = linear(T0, T1)
  T3 = ALLOCATE(mem_type=global, zero_init=false)
  Communication 0 (type=Allreduce, team=(0 1), red_op=SUM, input=T2, output=T3, backend=NCCL)
  Wait(Communication 0)
  T4 = linear(T3, T1)
  T5 = ALLOCATE(mem_type=global, zero_init=false)
  Communication 1 (type=Allreduce, team=(0 1), red_op=SUM, input=T4, output=T5, backend=NCCL)
  Wait(Communication 1)
  T6 = linear(T0, T1)
  T7 = linear(T5, T1)
",
    );
    // 3 + 10 + 3 + 10 + 3 + 3. Hidden, the first one is in the queue from 3 to 13, the second one from 13 to 23, before two products.
    // Hidden, the second one is in it from 16 to 26; both products end at 22.
    assert_eq!(found, Some((32.0, vec![[3.0, 10.0, 22.0, 29.0], [7.0, 10.0, 22.0, 26.0]])));
}
