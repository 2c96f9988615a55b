//! Which loops are merged, and which are not.

use super::transform;

const HEADER: &str =
    "(T0_g_float[iS0{4}, iS1{6}]) -> (T1_g_float[iS2{4}, iS3{6}], T2_g_float[iS4{4}, iS5{6}])";

fn whole(body: &str) -> String {
    format!(
        "%HostIrContainer {{ {HEADER} :\n  T1_g_float[iS2{{4}}, iS3{{6}}] = ALLOCATE(mem_type=global, zero_init=false)\n  \
         T2_g_float[iS4{{4}}, iS5{{6}}] = ALLOCATE(mem_type=global, zero_init=false)\n{body}}} // %HostIrContainer\n"
    )
}

fn loops(body: &str) -> usize {
    let once = transform("merge-stream-loops", &whole(body));
    assert!(once.is_ok(), "{once:?}");
    once.map_or(0, |it| it.matches("FOR ").count())
}

/// `name = HirAliasSelect( from, index )`.
fn slice(name: u32, from: u32, index: &str) -> String {
    let axes = [(0, 1), (2, 3), (4, 5)][from as usize];
    format!(
        "    T{name}_l_float[iS{}{{6}}]\n       = HirAliasSelect( T{from}_g_float[iS{}{{4}}, iS{}{{6}}], axis = iS{}{{4}}, index = {index} )\n",
        100 + name,
        axes.0,
        axes.1,
        axes.0
    )
}

/// `out = in + in`.
fn twice(out: u32, operand: u32) -> String {
    format!(
        "    T{out}_l_float[iS{0}{{6}}]\n       = T{operand}_l_float[iS{1}{{6}}]\n       + T{operand}_l_float[iS{1}{{6}}];\n",
        100 + out,
        100 + operand
    )
}

fn first(index: &str) -> String {
    format!("  FOR i5 from 0 to 4:\n{}{}{}", slice(10, 0, "i5"), slice(11, 1, index), twice(11, 10))
}

fn second(index: &str) -> String {
    format!("  FOR i6 from 0 to 4:\n{}{}{}", slice(12, 1, index), slice(13, 2, "i6"), twice(13, 12))
}

#[test]
fn equal_slices_are_merged() {
    assert_eq!(loops(&(first("i5") + &second("i6"))), 1);
    assert_eq!(loops(&(first("( ( rank + i5 ) % 4 )") + &second("( ( rank + i6 ) % 4 )"))), 1);
    assert_eq!(loops(&(first("( 3 - i5 )") + &second("( 3 - i6 )"))), 1);
    // Different outputs have nothing to do with each other.
    assert_eq!(
        loops(
            &(first("i5")
                + &first("i5").replace("T11", "T13").replace("iS111", "iS113").replace(
                    "T1_g_float[iS2{4}, iS3{6}], axis = iS2{4}",
                    "T2_g_float[iS4{4}, iS5{6}], axis = iS4{4}"
                ))
        ),
        1
    );
}

#[test]
fn slices_of_other_iterations_stay() {
    assert_eq!(loops(&(first("i5") + &second("( 3 - i6 )"))), 2);
    assert_eq!(loops(&(first("i5") + &second("0"))), 2);
    // The same slice twice, in different iterations.
    assert_eq!(loops(&(first("( i5 % 2 )") + &second("( i6 % 2 )"))), 2);
    assert_eq!(loops(&(first("( i5 / 2 )") + &second("( i6 / 2 )"))), 2);
}

#[test]
fn whole_tensors_stay() {
    let all = "  FOR i6 from 0 to 4:
    T2_g_float[iS4{4}, iS5{6}]
       = T1_g_float[iS2{4}, iS3{6}]
       + T1_g_float[iS2{4}, iS3{6}];
";
    assert_eq!(loops(&(first("i5") + all)), 2);
}

#[test]
fn other_bounds_and_statements_between_stay() {
    assert_eq!(loops(&(first("i5") + &second("i6").replace("to 4", "to 3"))), 2);
    let by_rank = |text: String| text.replace("to 4", "to ( rank + 1 )");
    assert_eq!(loops(&(by_rank(first("i5")) + &by_rank(second("i6")))), 2);
    assert_eq!(loops(&(first("i5") + "  Synchronize(Stream 3)\n" + &second("i6"))), 2);
    let storage = "  T30_g_float[iS130{6}] = ALLOCATE(mem_type=global, zero_init=false)\n";
    assert_eq!(loops(&(first("i5") + storage + &second("i6"))), 1);
    // Storage that the first loop uses is not made in front of it; nor does a computation move.
    let used = "  T1_g_float[iS2{4}, iS3{6}] = ALLOCATE(mem_type=global, zero_init=false)\n";
    assert_eq!(loops(&(first("i5") + used + &second("i6"))), 2);
    let sum = "  T2_g_float[iS4{4}, iS5{6}]\n     = T1_g_float[iS2{4}, iS3{6}]\n     + T1_g_float[iS2{4}, iS3{6}];\n";
    assert_eq!(loops(&(first("i5") + sum + &second("i6"))), 2);
}

#[test]
fn a_name_that_only_the_first_binds_stays() {
    let reads = second("i6")
        .replace(&slice(12, 1, "i6"), "")
        .replace("T12_l_float[iS112{6}]", "T10_l_float[iS110{6}]");
    assert_eq!(loops(&(first("i5") + &reads)), 2);
}

#[test]
fn streams_have_to_be_the_same() {
    let on = |text: String, index: &str, stream: &str| {
        text.replace("4:\n", &format!("4:\n    SetCurrentStream(Stream ( {index} + {stream} ))\n"))
    };
    let set = |one: &str, two: &str| on(first("i5"), "i5", one) + &on(second("i6"), "i6", two);
    assert_eq!(loops(&set("7", "7")), 1);
    assert_eq!(loops(&set("7", "8")), 2);
    assert_eq!(loops(&(on(first("i5"), "i5", "7") + &second("i6"))), 2);
    // A join in the middle of a body.
    assert_eq!(loops(&(first("i5") + "    Synchronize(Stream 3)\n" + &twice(11, 10) + &second("i6"))), 2);
}

#[test]
fn work_and_transfers() {
    let team = "type=Broadcast, team=(0 1), root=0";
    let post = |number: u32, name: u32| {
        let buffer = format!("T{name}_l_float[iS{}{{6}}]", 100 + name);
        format!("    Communication {number} ({team}, input={buffer}, output={buffer})\n")
    };
    let wait = |number: u32| format!("    Wait(Communication {number})\n");
    let send = |number: u32, name: u32| {
        format!(
            "    P2PCommunication {number} (type=send, buffer=T{name}_l_float[iS{}{{6}}], peer=rank)\n",
            100 + name
        )
    };
    let pair = |one: &str, two: &str| loops(&(first("i5") + one + &second("i6") + two));
    assert_eq!(pair(&(post(1, 11) + &wait(1)), &(post(2, 13) + &wait(2))), 1);
    assert_eq!(pair(&post(1, 11), &wait(1)), 2);
    assert_eq!(pair(&(post(1, 11) + &wait(1)), &(send(2, 13) + &wait(2))), 2);
    assert_eq!(pair("", &(send(2, 13) + &wait(2))), 1);
    let branch = |text: String| format!("    IF Manual ( rank == 0 ):\n{}", text.replace("    ", "      "));
    assert_eq!(pair(&(post(1, 11) + &wait(1)), &branch(post(2, 13) + &wait(2))), 2);
}
