//! What unroll renumbers and drops in its copies.

use super::{corpus, transform};

fn check(passes: &str, before: &str, after: &str) {
    let whole = |body: &str| {
        format!("%HostIrContainer {{ (T0_g_float[iS0{{2}}]) -> () :\n{body}}} // %HostIrContainer\n")
    };
    assert_eq!(transform(passes, &whole(before)), Ok(whole(after)));
}

const POST: &str = "Communication 5 (type=Broadcast, team=(0 1), root=0, input=T0_g_float[iS0{2}], output=T0_g_float[iS0{2}])\n";

#[test]
fn work_of_an_iteration_gets_numbers_of_its_own() {
    let number = |text: &str, new: u32| text.replace("Communication 5", &format!("Communication {new}"));
    let copy = |new| format!("  {}  Wait(Communication {new})\n", number(POST, new));
    check(
        "unroll",
        &format!("  FOR i5 from 0 to 3:\n    {POST}    Wait(Communication 5)\n"),
        &(copy(5) + &copy(6) + &copy(7)),
    );
}

#[test]
fn work_that_is_awaited_elsewhere_keeps_its_number() {
    // Awaited behind the loop; in the next iteration; where the post is not certain.
    let twice = |copy: &str| copy.to_owned() + copy;
    check(
        "unroll",
        &format!("  FOR i5 from 0 to 2:\n    {POST}  Wait(Communication 5)\n"),
        &format!("{}  Wait(Communication 5)\n", twice(&format!("  {POST}"))),
    );
    check(
        "unroll",
        &format!("  {POST}  FOR i5 from 0 to 2:\n    Wait(Communication 5)\n    {POST}"),
        &format!("  {POST}{}", twice(&format!("  Wait(Communication 5)\n  {POST}"))),
    );
    let branch = |indent: &str| {
        format!("{indent}IF Manual ( i9 == rank ):\n{indent}  {POST}{indent}Wait(Communication 5)\n")
    };
    check("unroll", &format!("  FOR i5 from 0 to 2:\n{}", branch("    ")), &twice(&branch("  ")));
}

#[test]
fn a_factor_leaves_a_loop() {
    check(
        "unroll{loop=i5,factor=2}",
        "  FOR i5 from 3 to 7:\n    Synchronize(Stream i5)\n    FOR i6 from 0 to i5:\n      Synchronize(Stream i6)\n",
        "  FOR i5 from 0 to 2:
    Synchronize(Stream ( ( i5 * 2 ) + 3 ))
    FOR i6 from 0 to ( ( i5 * 2 ) + 3 ):
      Synchronize(Stream i6)
    Synchronize(Stream ( ( i5 * 2 ) + 4 ))
    FOR i6 from 0 to ( ( i5 * 2 ) + 4 ):
      Synchronize(Stream i6)
",
    );
}

#[test]
fn other_loops_stay() {
    let text = "  FOR i5 from 0 to i9:\n    FOR i6 from 0 to i5:\n      Synchronize(Stream i6)\n  FOR i7 from 2 to 2:\n    Synchronize(Stream 1)\n";
    check("unroll", text, text);
}

#[test]
fn what_is_unrolled_reads_back() {
    let mut unrolled = 0;
    for (path, text) in corpus() {
        match transform("unroll", &text) {
            Ok(once) => {
                unrolled += usize::from(transform("", &text).as_ref() != Ok(&once));
                assert_eq!(transform("unroll", &once).as_ref(), Ok(&once), "{path}, twice");
            }
            Err(why) => assert!(why.contains("cannot rewrite"), "{path}: {why}"),
        }
    }
    assert!(unrolled > 10, "{unrolled}");
}
